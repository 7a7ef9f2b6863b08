"""The parts of a job of `bench/` that other programs need. Needs Python 3.11 or later."""

import os
import pathlib
import struct
import sys

import diskann

try:
    import tomllib
except ImportError:
    sys.exit("error: this Python has no tomllib, and the job is read with it. Use Python 3.11 or later")

# Bytes of an element, by extension. Files with another extension have 4.
BYTES = {".u8bin": 1, ".i8bin": 1, ".hbin": 2}


class Job:
    """The files of a job, and the options that other programs also have."""

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
                sys.exit(f"error: {file}; no such file. Set STRATANN_DATA to the folder of the data")
        if self.base.suffix not in diskann.ELEMENTS:
            sys.exit(f"error: {self.base}; the rivals read only {', '.join(diskann.ELEMENTS)}. Give such a file as `base` of the job")
        self.metric = data["metric"]
        if self.metric not in diskann.DISTANCES:
            sys.exit(f"error: metric = \"{self.metric}\"; the rivals have only {', '.join(diskann.DISTANCES)}. Choose one of them")
        with open(self.base, "rb") as file:
            self.rows, self.dim = struct.unpack("<II", file.read(8))
        self.element_bytes = BYTES.get(self.base.suffix, 4)
        self.repeat = job.get("repeat", 3)
        self.degree = build.get("degree", 64)
        self.build_list = build.get("build_list", 100)
        self.code_bytes = build.get("code_bytes", -(-self.dim // 4))
        self.build_threads = build.get("threads", os.cpu_count())
        self.k = search.get("k", 10)
        self.lists = [size for size in search.get("lists", [20, 40, 60, 100]) if size >= self.k]
        self.threads = search.get("threads", 1)
        self.beam = search.get("beam", 4)
        self.caps = caps(job.get("run", []))

    def part(self, folder, name, numbers):
        """Writes the queries with these numbers to a file, and their exact results to another file.
        Returns the arguments of a step that uses both files.
        """
        queries, truth = folder / f"{name}.query{self.queries.suffix}", folder / f"{name}.truth.bin"
        rows, count, _ = rows_of(self.queries)
        write_rows(queries, [rows], numbers)
        ids, answered, k = rows_of(self.truth)
        if answered < count:
            sys.exit(f"error: {self.truth}; it has the results of {answered} of {count} queries. Compute all with `stratann truth`")
        # A truth file has all ids, and may have all distances after them.
        with open(self.truth, "rb") as file:
            file.seek(8 + answered * k * 4)
            distances = file.read(answered * k * 4)
        write_rows(truth, [ids, (distances, k * 4)] if distances else [ids], numbers)
        return {"queries": str(queries), "truth": str(truth), "count": len(numbers)}

    def halves(self, folder, most):
        """Splits the first `most` queries. The queries with even numbers choose the settings, and
        the queries with odd numbers are timed.
        """
        count = min(most, rows_of(self.queries)[1])
        return [self.part(folder, name, range(first, count, 2)) for first, name in enumerate(["tune", "time"])]


def caps(runs):
    """The smallest and the largest `memory` of the job's runs of `stratann`, in bytes. None if
    these runs do not have two different sizes.
    """
    sizes = {
        size(run["search"]["memory"])
        for run in runs
        if run.get("preset") == "stratann" and "memory" in run.get("search", {})
    }
    return [min(sizes), max(sizes)] if len(sizes) > 1 else None


def size(text):
    """Converts a size such as 48MB to bytes."""
    number, unit = text.rstrip("GMkB"), text.lstrip("0123456789.")
    return round(float(number) * {"kB": 1e3, "MB": 1e6, "GB": 1e9}[unit])


def rows_of(path):
    """((the bytes of all rows of a file, the bytes of one row), the number of rows, the elements of
    a row).
    """
    content = path.read_bytes()
    count, length = (int.from_bytes(content[at : at + 4], "little") for at in (0, 4))
    row = length * BYTES.get(path.suffix, 4)
    return (content[8 : 8 + count * row], row), count, length


def write_rows(path, blocks, numbers):
    """Writes a file: a header, and then the rows with these numbers from each block. The header has
    the number of rows, and the number of elements in a row of the first block.
    """
    with open(path, "wb") as file:
        length = blocks[0][1] // BYTES.get(path.suffix, 4)
        file.write(len(numbers).to_bytes(4, "little") + length.to_bytes(4, "little"))
        for content, row in blocks:
            file.writelines(content[number * row : (number + 1) * row] for number in numbers)
