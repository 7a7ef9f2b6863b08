"""Tests of minutes, for `make test-slow`."""

import json
import os
import subprocess
import sys

import numpy
import pytest

import stratann

pytestmark = pytest.mark.skipif("STRATANN_SLOW" not in os.environ, reason="takes minutes; set STRATANN_SLOW=1")

BUILD = """
import json, resource, sys
import stratann

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
index = stratann.build(sys.argv[1], sys.argv[2], memory=int(sys.argv[3]))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"grown": (after - before) * 1024, "parts": index.build_report["parts"]}))
"""


def test_a_build_stays_under_its_memory_and_finds(base, queries, tmp_path):
    # The rows are ten slightly different views of the descriptors: 200,000 rows, and a graph of at
    # least 51 MB.
    generator = numpy.random.default_rng(1)
    views = [
        numpy.clip(base.astype(numpy.int16) + generator.integers(-12, 13, base.shape), 0, 255).astype(numpy.uint8)
        for _ in range(10)
    ]
    rows = numpy.concatenate(views)
    file = tmp_path / "views.u8bin"
    stratann.write(file, rows)
    memory = 64 << 20
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(file), str(tmp_path / "views.idx"), str(memory)],
        stdout=subprocess.PIPE,
        check=True,
    )
    report = json.loads(done.stdout)
    assert report["parts"] > 1
    assert report["grown"] <= memory
    index = stratann.open(tmp_path / "views.idx")
    found = index.search(queries, 10, list_size=100)
    assert stratann.recall(found, stratann.truth(rows, queries, 10)) >= 0.95
