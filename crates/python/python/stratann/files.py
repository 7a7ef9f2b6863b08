"""Vector files and ground-truth files as numpy arrays.

```text
.fbin .hbin .u8bin .i8bin .ibin    u32 rows, u32 dimension, then the rows (big-ann)
.fvecs .bvecs .ivecs               before each row its dimension as i32
.npy                               numpy's own
.bin                               ground truth: u32 queries, u32 k, u32 ids[queries * k], then
                                   f32 distances[queries * k] or nothing
.bin64                             the same with u64 ids
```

All numbers are little-endian. If the name of a file of the first kind ends with .crop_nb_N, the
file has only the first N of the rows that its header counts.
"""

from __future__ import annotations

import os
import pathlib
import re
from typing import IO, Any, Union

import numpy

Path = Union[str, "os.PathLike[str]"]

_MATRICES = {".fbin": "<f4", ".hbin": "<f2", ".u8bin": "u1", ".i8bin": "i1", ".ibin": "<i4"}
_RECORDS = {".fvecs": "<f4", ".bvecs": "u1", ".ivecs": "<i4"}
_KNOWN = ", ".join([*_MATRICES, *_RECORDS, ".npy", ".bin", ".bin64"])
_CROPPED = re.compile(r"\.crop_nb_([0-9]+)", re.IGNORECASE)


def read(path: Path, *, mmap: bool = False) -> Any:
    """Reads the array in a file. For a ground-truth file (.bin, .bin64), returns the pair `(ids,
    distances)`.

    With `mmap`, rows stay on disk until the caller accesses them. Files of .fvecs, .bvecs and
    .ivecs are read whole even then. `distances` is None if the file has no distances. If a query
    has fewer than k neighbours, its last ids are 2^32 - 1 (2^64 - 1 in .bin64 and .npy), at
    infinite distance.
    """
    path = pathlib.Path(path)
    cropped = _CROPPED.fullmatch(path.suffix)
    suffix = pathlib.Path(path.stem if cropped else path).suffix.lower()
    if suffix in _MATRICES:
        return _read_matrix(path, numpy.dtype(_MATRICES[suffix]), mmap, int(cropped[1]) if cropped else None)
    if suffix in _RECORDS:
        return _read_records(path, numpy.dtype(_RECORDS[suffix]))
    if suffix == ".npy":
        return numpy.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
    if suffix == ".bin":
        return _read_truth(path, numpy.dtype("<u4"))
    if suffix == ".bin64":
        return _read_truth(path, numpy.dtype("<u8"))
    has = f"has the ending {suffix}, which no format has" if suffix else "has no ending, so its format is unknown"
    more = ". Read Parquet with pyarrow.parquet.read_table(path), and pass its columns" if suffix == ".parquet" else ""
    raise ValueError(f"{path}: the file name {has}. Use one of {_KNOWN}{more}")


def write(path: Path, array: numpy.ndarray[Any, Any]) -> None:
    """Writes the rows of `array`, (n, d), to a file. The extension of `path` decides the type of
    the file, and the array must have the dtype of this type.
    """
    path = pathlib.Path(path)
    suffix = path.suffix.lower()
    array = numpy.asarray(array)
    if array.ndim != 2:
        raise ValueError(f"array has the shape {array.shape}; vectors have (n, d). Pass such an array")
    if suffix == ".npy":
        numpy.save(path, array)
        return
    name = _MATRICES.get(suffix) or _RECORDS.get(suffix)
    if name is None:
        has = f"has the ending {suffix}, which no format of vectors has" if suffix else "has no ending, so its format is unknown"
        raise ValueError(f"{path}: the file name {has}. Give the file another name")
    dtype = numpy.dtype(name)
    if array.dtype != dtype:
        raise TypeError(f"array is {array.dtype}, and {suffix} files hold {dtype}. Pass array.astype(numpy.{dtype})")
    with path.open("wb") as file:
        if suffix in _MATRICES:
            write_header(file, *array.shape)
            numpy.ascontiguousarray(array).tofile(file)
        else:
            rows, dimension = array.shape
            records = numpy.empty(rows, dtype=_record(dtype, dimension))
            records["dimension"] = dimension
            records["row"] = array
            records.tofile(file)


def write_header(file: IO[bytes], rows: int, dimension: int) -> None:
    """Writes the header of a big-ann file for this number of rows."""
    numpy.array([rows, dimension], dtype="<u4").tofile(file)


def _read_matrix(path: pathlib.Path, dtype: numpy.dtype[Any], mmap: bool, left: int | None) -> Any:
    rows, dimension = _header(path)
    if left is not None:
        if left > rows:
            raise ValueError(f"{path}: its header says {rows} rows, and its name says {left}, which is more. Fetch the file again")
        rows = left
    _expect(path, 8 + rows * dimension * dtype.itemsize, f"{rows} rows of {dimension} {dtype}")
    if mmap and rows * dimension:
        return numpy.memmap(path, dtype=dtype, mode="r", offset=8, shape=(rows, dimension))
    return numpy.fromfile(path, dtype=dtype, offset=8).reshape(rows, dimension)


def _read_records(path: pathlib.Path, dtype: numpy.dtype[Any]) -> Any:
    size = path.stat().st_size
    if size == 0:
        return numpy.empty((0, 0), dtype)
    first = numpy.fromfile(path, dtype="<i4", count=1)
    dimension = int(first[0]) if len(first) else 0
    record = _record(dtype, dimension) if dimension > 0 else None
    if record is None or size % record.itemsize:
        raise ValueError(f"{path}: {size} bytes are no whole number of rows of {dimension} {dtype}; the file is damaged or cut off. Fetch it again")
    records = numpy.fromfile(path, dtype=record)
    if (records["dimension"] != dimension).any():
        row = int((records["dimension"] != dimension).argmax())
        raise ValueError(f"{path}: row {row} has {records['dimension'][row]} dimensions and row 0 has {dimension}; the file is damaged. Fetch it again")
    return numpy.ascontiguousarray(records["row"])


def _read_truth(path: pathlib.Path, dtype: numpy.dtype[Any]) -> Any:
    queries, k = _header(path)
    size, ids_only = path.stat().st_size, 8 + dtype.itemsize * queries * k
    if size not in (ids_only, ids_only + 4 * queries * k):
        raise ValueError(
            f"{path}: {size} bytes, but ids of {queries} queries and k = {k} need {ids_only}, "
            f"with distances {ids_only + 4 * queries * k}; the file is damaged, cut off or no ground truth. Fetch it again, or check its name"
        )
    ids = numpy.fromfile(path, dtype=dtype, offset=8, count=queries * k).reshape(queries, k)
    if size == ids_only:
        return ids, None
    return ids, numpy.fromfile(path, dtype="<f4", offset=ids_only).reshape(queries, k)


def _header(path: pathlib.Path) -> tuple[int, int]:
    header = numpy.fromfile(path, dtype="<u4", count=2)
    if len(header) < 2:
        raise ValueError(f"{path}: the file ends within its header of 8 bytes; it is cut off. Fetch it again")
    return int(header[0]), int(header[1])


def _expect(path: pathlib.Path, size: int, what: str) -> None:
    actual = path.stat().st_size
    if actual != size:
        raise ValueError(f"{path}: {actual} bytes, but {what} need {size}; the file is damaged, cut off or of another type. Fetch it again, or check its name")


def _record(dtype: numpy.dtype[Any], dimension: int) -> numpy.dtype[Any]:
    return numpy.dtype([("dimension", "<i4"), ("row", dtype, (dimension,))])
