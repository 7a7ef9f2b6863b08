"""A job of `bench/`, as far as other programs need it. Python 3.11 or later."""

import os
import pathlib
import struct
import sys

import diskann

try:
    import tomllib
except ImportError:
    sys.exit("error: Python 3.11 or later is needed (it reads the job with tomllib)")


class Job:
    """Its vectors, and its options as far as others have them."""

    def __init__(self, path):
        with open(path, "rb") as file:
            job = tomllib.load(file)
        data, build, search = job["data"], job.get("build", {}), job.get("search", {})
        root = pathlib.Path(os.environ.get("STRATANN_DATA") or path.parent / data.get("root", "."))
        self.name = job["name"]
        self.base, self.queries, self.truth = (
            (root / data[what]).resolve() for what in ("base", "queries", "truth")
        )
        for file in (self.base, self.queries, self.truth):
            if not file.is_file():
                sys.exit(f"error: {file} is not there: set STRATANN_DATA to the folder that holds the data")
        if self.base.suffix not in diskann.ELEMENTS:
            sys.exit(f"error: {self.base}: the rivals read {', '.join(diskann.ELEMENTS)}")
        self.metric = data["metric"]
        if self.metric not in diskann.DISTANCES:
            sys.exit(f"error: metric = \"{self.metric}\": the rivals know {', '.join(diskann.DISTANCES)}")
        with open(self.base, "rb") as file:
            self.rows, self.dim = struct.unpack("<II", file.read(8))
        self.repeat = job.get("repeat", 3)
        self.degree = build.get("degree", 64)
        self.build_list = build.get("build_list", 100)
        self.code_bytes = build.get("code_bytes", -(-self.dim // 4))
        self.build_threads = build.get("threads", os.cpu_count())
        self.k = search.get("k", 10)
        self.lists = [size for size in search.get("lists", [20, 40, 60, 100]) if size >= self.k]
        self.threads = search.get("threads", 1)
        self.beam = search.get("beam", 4)
