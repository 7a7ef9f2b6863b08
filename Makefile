# The targets of this tree; `make` without a target lists them. Builds go to CARGO_TARGET_DIR, if it
# is set.

TARGET := $(or $(CARGO_TARGET_DIR),target)
PYTHON ?= python3
VENV ?= .venv
RAY_VENV ?= $(VENV)-ray
INTEGRATIONS_VENV ?= $(VENV)-integrations
DOCS_VENV ?= $(VENV)-docs
MKDOCS := "mkdocs>=1.6,<2"
# Packages of integrations/ that are installed, each with the tests of its framework. Modules are files
# that users copy into a benchmark.
INTEGRATIONS := langchain-stratann haystack-stratann llama-index-stratann mteb-stratann
INTEGRATED_MODULES := ann-benchmarks big-ann-benchmarks vectordbbench
# The dependencies that the client and the search runner of VectorDBBench need. All of its
# dependencies would be 1.3 GB.
VECTORDBBENCH := vectordb-bench==2.0.0
VECTORDBBENCH_NEEDS := click environs h5py hdrhistogram ir_datasets polars psutil "pydantic>=2" ujson
RAY := "ray[data]>=2.60,<3"
STRATANN := $(TARGET)/release/stratann
WHEEL_PROFILE ?= release

.DEFAULT_GOAL := help
.PHONY: help build demo test test-rust test-python python-package test-slow test-ray test-integrations steady test-ucx check check-format check-lints check-docs check-rules bench bench-rivals docs docs-crates wheel test-wheel clean

help: ## list the targets
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

build: ## the stratann command, optimised
	cargo build --release --locked --package stratann-cli
	@echo "built $(STRATANN)"

# `make demo STRATANN=PROGRAM` runs that program, and builds none.
demo: $(if $(filter command,$(word 1,$(origin STRATANN))),,build) ## build and search indexes of real data, compared with brute force; needs only Rust
	@STRATANN="$(STRATANN)" sh demo.sh

# Each part runs even if one before it failed. One list at the end names every failure.
test: ## everything that CI runs
	VENV="$(VENV)" $(PYTHON) .ci/tests.py check rust python

test-rust: ## the tests of the Rust crates
	$(PYTHON) .ci/tests.py rust

test-python: ## the tests of the Python package, installed into .venv as a user installs it
	VENV="$(VENV)" $(PYTHON) .ci/tests.py python

# A user's `pip install .` optimises all crates as one unit, which takes minutes. The tests need
# overflow checks instead, and the features of the tests of Rust (crates/python/Cargo.toml), so that
# crates compiled for those are used again.
install-package = MATURIN_PEP517_ARGS="--profile dev --features testing" PATH="$(abspath $(1))/bin:$$PATH" "$(1)/bin/python" -m pip install --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall .

# The package, and the command, which some of its tests start. `cargo build` would compile the command
# with other features of its dependencies than `make test-rust` does. The tests of the command need the
# same units as there, so cargo compiles only those that have changed.
python-package: $(VENV)/ready
	$(call install-package,$(VENV))
	cargo test --no-run --locked --workspace --features stratann/testing --test command

test-slow: ## the tests of Rust and Python, with those that take minutes (STRATANN_SLOW=1)
	cargo check --locked --benches --manifest-path bench/kernels/Cargo.toml
	STRATANN_SLOW=1 VENV="$(VENV)" $(PYTHON) .ci/tests.py --release rust python
	$(MAKE) test-wheel
	$(MAKE) test-ray
	$(MAKE) test-integrations

steady: ## TESTS="NAME...": run these tests twenty times, beside two busy processes and with slow syncs
	@test -n "$(TESTS)" || { echo 'error: no tests are named. Use make steady TESTS="part_of_a_name test_build.py::test_x"' >&2; exit 2; }
	VENV="$(VENV)" $(PYTHON) .ci/steady.py $(TESTS)

# This environment is separate: Ray has some hundred megabytes that no other test needs, and the
# package must work without it.
test-ray: $(RAY_VENV)/ready ## stratann.ray, on a Ray cluster of several nodes on this machine
	$(call install-package,$(RAY_VENV))
	"$(RAY_VENV)/bin/python" -m mypy --strict --package stratann.ray
	"$(RAY_VENV)/bin/python" -m pytest crates/python/ray_tests

# This environment is separate: the frameworks have some hundred megabytes. Each package is tested by
# itself, since each has its own settings of pytest.
test-integrations: $(INTEGRATIONS_VENV)/ready ## the packages of integrations/, with the tests of the frameworks that they are for
	$(call install-package,$(INTEGRATIONS_VENV))
	set -e; for package in $(INTEGRATIONS); do \
	  (cd "integrations/$$package" && "$(abspath $(INTEGRATIONS_VENV))/bin/python" -m mypy src && "$(abspath $(INTEGRATIONS_VENV))/bin/python" -m pytest); done
	set -e; for module in $(INTEGRATED_MODULES); do \
	  (cd "integrations/$$module" && "$(abspath $(INTEGRATIONS_VENV))/bin/python" -m pytest); done
	cd integrations && "$(abspath $(INTEGRATIONS_VENV))/bin/python" -m pytest tests

# For every Python from 3.9 on. The tag is the oldest manylinux whose glibc has the symbols that the
# linker used here. So wheels of releases are built on a machine with an old glibc.
wheel: $(VENV)/ready ## a wheel for Linux that pip installs without Rust, in dist/
	rm -rf dist
	"$(VENV)/bin/python" -m maturin build --locked --profile $(WHEEL_PROFILE) --auditwheel check --out dist
	ls dist/stratann-*-cp39-abi3-manylinux_*.whl

test-wheel: wheel ## install the wheel into a fresh environment without Rust, and run the page of recipes there
	rm -rf "$(VENV)-wheel"
	$(PYTHON) -m venv "$(VENV)-wheel"
	PATH=/usr/bin:/bin "$(VENV)-wheel/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: dist/stratann-*.whl "pytest>=7" pandas pyarrow
	PATH=/usr/bin:/bin "$(VENV)-wheel/bin/python" -m pytest crates/python/tests/test_docs.py crates/python/tests/test_lookups.py crates/python/tests/test_async.py

# If the library is missing, the tests are skipped with a message. Debian: apt-get install libucx0, and
# libucx-dev to compare the declarations of this tree with the header.
test-ucx: ## memory servers and those of DistVS through UCX (RDMA), over its own TCP and shared memory
	cargo clippy --locked --package stratann-node --features ucx --all-targets -- -D warnings
	cargo test --locked --package stratann-tier --features ucx --lib -- remote::ucx
	cargo test --locked --package stratann-node --features ucx --test ucx

check: check-format check-rules check-lints check-release check-docs ## format, lints, dependency direction, unsafe, links, words

check-format:
	cargo fmt --all --check
	cargo fmt --manifest-path bench/kernels/Cargo.toml --check

# `make test` lints and documents the crates while it compiles and tests them (LINTING in
# .ci/tests.py), and runs the other checks as they are here.
check-lints:
	cargo clippy --locked --workspace --all-targets --features stratann/testing -- -D warnings

# Other crates differ in nothing without the feature for tests (.ci/dependencies.py), except for the hooks of
# stratann-python, which `make test-wheel` compiles without it.
check-release:
	cargo check --locked --package stratann-tier --lib

check-docs:
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --lib --no-deps --features stratann-tier/testing

check-rules:
	$(PYTHON) .ci/dependencies.py --self-test
	$(PYTHON) .ci/dependencies.py
	$(PYTHON) .ci/modules.py --self-test
	$(PYTHON) .ci/modules.py
	$(PYTHON) .ci/extending.py --self-test
	$(PYTHON) .ci/extending.py
	$(PYTHON) .ci/unsafe.py --self-test
	$(PYTHON) .ci/unsafe.py
	$(PYTHON) .ci/links.py --self-test
	$(PYTHON) .ci/links.py
	$(PYTHON) .ci/site.py --self-test
	$(PYTHON) .ci/prose.py --self-test
	$(PYTHON) .ci/prose.py
	$(PYTHON) .ci/tests.py --self-test

bench: build ## measure on the fixtures, or JOB=bench/other.toml
	"$(STRATANN)" bench $(or $(JOB),bench/fixture.toml)

bench-rivals: build ## the same beside DiskANN's own program, and packages that pip installs
	$(MAKE) -C bench/rivals

# `check` leaves this out, since it downloads MkDocs. In `check`, .ci/links.py checks the same links.
docs: $(DOCS_VENV)/ready ## the pages of docs/ as a site; links and headings are checked
	$(PYTHON) .ci/site.py "$(TARGET)/site-pages"
	STRATANN_SITE="$(abspath $(TARGET))/site-pages" "$(DOCS_VENV)/bin/python" -m mkdocs build --strict --site-dir "$(abspath $(TARGET))/site"
	@echo "open $(TARGET)/site/index.html"

docs-crates: ## the crates' documentation as HTML
	cargo doc --locked --workspace --lib --no-deps --features stratann-tier/testing
	@echo "open $(TARGET)/doc/stratann/index.html"

clean: ## remove all build outputs
	cargo clean
	rm -rf "$(VENV)" "$(RAY_VENV)" "$(INTEGRATIONS_VENV)" "$(DOCS_VENV)" "$(VENV)-wheel" dist
	rm -rf bench/kernels/target

# Debian has the module venv in a package of its own, so the error names that package.
define make-venv
	@rm -rf "$(1)"
	@$(PYTHON) -m venv "$(1)" >/dev/null 2>&1 || { \
	  rm -rf "$(1)"; \
	  echo "error: $(PYTHON) cannot make a virtual environment. Run apt-get install python3-venv, or set PYTHON to an interpreter with venv" >&2; \
	  exit 1; }
endef

define make-environment
	$(call make-venv,$(1))
	"$(1)/bin/python" -m pip install --quiet --disable-pip-version-check "maturin>=1.9.4,<2" "numpy>=1.20" "pytest>=7" pandas polars pyarrow $(2) mypy
	@touch "$(1)/ready"
endef

$(VENV)/ready: pyproject.toml
	$(call make-environment,$(VENV),"pytest-xdist>=3")

# Only MkDocs is installed, since nothing of this tree is built or imported.
$(DOCS_VENV)/ready:
	$(call make-venv,$(DOCS_VENV))
	"$(DOCS_VENV)/bin/python" -m pip install --quiet --disable-pip-version-check $(MKDOCS)
	@touch "$(DOCS_VENV)/ready"

$(RAY_VENV)/ready: pyproject.toml
	$(call make-environment,$(RAY_VENV),$(RAY))

# stratann is built from this tree. All else is installed as the files of the packages require it.
$(INTEGRATIONS_VENV)/ready: pyproject.toml $(INTEGRATIONS:%=integrations/%/pyproject.toml)
	$(call make-environment,$(INTEGRATIONS_VENV),hatchling)
	@rm "$(INTEGRATIONS_VENV)/ready"
	$(call install-package,$(INTEGRATIONS_VENV))
	"$(INTEGRATIONS_VENV)/bin/python" -m pip install --quiet --disable-pip-version-check $(INTEGRATIONS:%=--editable "integrations/%[test]") pyyaml scipy $(VECTORDBBENCH_NEEDS)
	"$(INTEGRATIONS_VENV)/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps $(VECTORDBBENCH)
	@touch "$(INTEGRATIONS_VENV)/ready"
