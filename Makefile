# What one does with this tree; `make` alone says so. Everything is built where CARGO_TARGET_DIR says, if it is set.

TARGET := $(or $(CARGO_TARGET_DIR),target)
PYTHON ?= python3
VENV ?= .venv
STRATANN := $(TARGET)/release/stratann

.DEFAULT_GOAL := help
.PHONY: help build demo test test-rust test-python python-package test-slow steady test-ucx check check-format check-lints check-docs check-rules bench bench-rivals docs clean

help: ## say what can be made
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

build: ## the stratann command, optimised
	cargo build --release --locked --package stratann-cli
	@echo "built $(STRATANN)"

demo: build ## build and search indexes of real data, beside brute force; needs only Rust
	@STRATANN="$(STRATANN)" sh demo.sh

# Each part runs whatever failed before it, and one list at the end names every failure.
test: ## everything that CI runs
	VENV="$(VENV)" $(PYTHON) .ci/tests.py check rust python

test-rust: ## the tests of the Rust crates
	$(PYTHON) .ci/tests.py rust

test-python: ## the tests of the Python package, installed into .venv as a user installs it
	VENV="$(VENV)" $(PYTHON) .ci/tests.py python

# A user's `pip install .` optimises all crates as one, which takes minutes; the tests want overflow checks instead,
# and the features that the tests of Rust have (crates/python/Cargo.toml): what was compiled for those is taken as it is.
python-package: $(VENV)/ready
	MATURIN_PEP517_ARGS="--profile dev --features testing" PATH="$(abspath $(VENV))/bin:$$PATH" "$(VENV)/bin/python" -m pip install --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall .

test-slow: ## the tests of Rust and Python, with those that take minutes (STRATANN_SLOW=1)
	cargo check --locked --benches --manifest-path bench/kernels/Cargo.toml
	STRATANN_SLOW=1 VENV="$(VENV)" $(PYTHON) .ci/tests.py --release rust python

steady: ## TESTS="NAME...": these twenty times beside two busy processes, on a disk whose syncs are slow
	@test -n "$(TESTS)" || { echo 'error: say which: make steady TESTS="part_of_a_name test_build.py::test_x"' >&2; exit 2; }
	VENV="$(VENV)" $(PYTHON) .ci/steady.py $(TESTS)

# Where the library is missing the tests say so and pass. Debian: apt-get install libucx0, and libucx-dev to compare our declarations with the header.
test-ucx: ## memory servers through UCX (RDMA), over its own TCP and shared memory
	cargo clippy --locked --package stratann-node --features ucx --all-targets -- -D warnings
	cargo test --locked --package stratann-tier --features ucx --lib -- remote::ucx
	cargo test --locked --package stratann-node --features ucx --test ucx

check: check-format check-rules check-lints check-docs ## format, lints, dependency direction, unsafe, links

check-format:
	cargo fmt --all --check
	cargo fmt --manifest-path bench/kernels/Cargo.toml --check

# The second line: as releases have it, without what only tests need.
check-lints:
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --package stratann-tier --package stratann-python -- -D warnings

check-docs:
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --lib --no-deps --features stratann-tier/testing

check-rules:
	$(PYTHON) .ci/dependencies.py --self-test
	$(PYTHON) .ci/dependencies.py
	$(PYTHON) .ci/unsafe.py --self-test
	$(PYTHON) .ci/unsafe.py
	$(PYTHON) .ci/links.py --self-test
	$(PYTHON) .ci/links.py
	$(PYTHON) .ci/tests.py --self-test

bench: build ## measure on the fixtures, or JOB=bench/other.toml
	"$(STRATANN)" bench $(or $(JOB),bench/fixture.toml)

bench-rivals: build ## the same beside DiskANN's own program and an in-memory HNSW
	$(MAKE) -C bench/rivals

docs: ## the crates' documentation as HTML
	cargo doc --locked --workspace --lib --no-deps --features stratann-tier/testing
	@echo "open $(TARGET)/doc/stratann/index.html"

clean: ## forget what was built
	cargo clean
	rm -rf bench/kernels/target
	rm -rf "$(VENV)"

# Debian splits the module venv off Python: say what to install instead of what went wrong inside.
$(VENV)/ready: pyproject.toml
	@rm -rf "$(VENV)"
	@$(PYTHON) -m venv "$(VENV)" >/dev/null 2>&1 || { \
	  rm -rf "$(VENV)"; \
	  echo "error: $(PYTHON) cannot make a virtual environment: apt-get install python3-venv (or set PYTHON to one that can)" >&2; \
	  exit 1; }
	"$(VENV)/bin/python" -m pip install --quiet --disable-pip-version-check "maturin>=1.9.4,<2" "numpy>=1.20" "pytest>=7" "pytest-xdist>=3" mypy
	@touch "$@"
