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

BYTES = {".u8bin": 1, ".i8bin": 1, ".hbin": 2}  # of an element; 4 in all other files


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
        """Files of the queries of these numbers and of their answers, as arguments of a step."""
        queries, truth = folder / f"{name}.query{self.queries.suffix}", folder / f"{name}.truth.bin"
        rows, count, _ = rows_of(self.queries)
        write_rows(queries, [rows], numbers)
        ids, answered, k = rows_of(self.truth)
        if answered < count:
            sys.exit(f"error: {self.truth} has answers to {answered} of {count} queries. Make it with `stratann truth`.")
        # Behind all ids may be all distances.
        with open(self.truth, "rb") as file:
            file.seek(8 + answered * k * 4)
            distances = file.read(answered * k * 4)
        write_rows(truth, [ids, (distances, k * 4)] if distances else [ids], numbers)
        return {"queries": str(queries), "truth": str(truth), "count": len(numbers)}

    def halves(self, folder, most):
        """The first queries, at most so many: those of even number to tune by, and those of odd number to time."""
        count = min(most, rows_of(self.queries)[1])
        return [self.part(folder, name, range(first, count, 2)) for first, name in enumerate(["tune", "time"])]


def caps(runs):
    """The least and the most memory of the runs of `stratann`, in bytes. None without two of them."""
    sizes = {
        size(run["search"]["memory"])
        for run in runs
        if run.get("preset") == "stratann" and "memory" in run.get("search", {})
    }
    return [min(sizes), max(sizes)] if len(sizes) > 1 else None


def size(text):
    """Bytes of a size such as 48MB."""
    number, unit = text.rstrip("GMkB"), text.lstrip("0123456789.")
    return round(float(number) * {"kB": 1e3, "MB": 1e6, "GB": 1e9}[unit])


def rows_of(path):
    """The bytes of the rows of a file and the bytes of one, how many there are, and their length."""
    content = path.read_bytes()
    count, length = (int.from_bytes(content[at : at + 4], "little") for at in (0, 4))
    row = length * BYTES.get(path.suffix, 4)
    return (content[8 : 8 + count * row], row), count, length


def write_rows(path, blocks, numbers):
    """A file of these rows of each block; its second number is the elements of a row, as in the first block."""
    with open(path, "wb") as file:
        length = blocks[0][1] // BYTES.get(path.suffix, 4)
        file.write(len(numbers).to_bytes(4, "little") + length.to_bytes(4, "little"))
        for content, row in blocks:
            file.writelines(content[number * row : (number + 1) * row] for number in numbers)
