"""The source of a sharded build: a Ray Dataset, or a file or an array, converted to a Dataset.

A row has a vector in one column, and perhaps an id in another. If no column has ids, the row number
is the id, so this module makes Ray Data keep the order of rows.
"""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
from typing import Any, Iterator, Optional, Union

import numpy
import ray
import ray.data
from numpy.typing import NDArray
from ray.data import Dataset
from ray.data.dataset import MaterializedDataset

from ..files import read as read_file
from ..files import write_header

Path = Union[str, "os.PathLike[str]"]
_Rows = MaterializedDataset[Any]
Source = Union[Path, NDArray[Any], Dataset]

VECTOR, ID = "vector", "id"

PIECE = 64 << 20
"""The approximate bytes of a file that one task reads."""

_MAPPED = (".fbin", ".hbin", ".u8bin", ".i8bin", ".npy")
_WHOLE = (".fvecs", ".bvecs")
_ENDINGS = {"float32": ".fbin", "float16": ".hbin", "uint8": ".u8bin", "int8": ".i8bin"}


def read(path: Path) -> Dataset:
    """A vector file as a lazy Ray Dataset with the columns "id" (uint64, the row's number) and
    "vector".

    Files of .fbin, .hbin, .u8bin, .i8bin and .npy are read in pieces, by a task for each piece.
    Files of .fvecs and .bvecs are read by one task, which has the whole file in memory. Every node
    must see the file under this path.
    """
    file = pathlib.Path(path).absolute()
    suffix = file.suffix.lower()
    if suffix not in (*_MAPPED, *_WHOLE):
        known = ", ".join((*_MAPPED, *_WHOLE))
        raise ValueError(
            f"{file}: the ending {suffix or 'is missing and'} is not a vector file's ({known}). "
            "Read other files by Ray Data: pass ray.data.read_parquet(..), for example"
        )
    if suffix in _MAPPED:
        rows = read_file(file, mmap=True)
        if rows.ndim != 2:
            raise ValueError(f"{file}: the file has an array of the shape {rows.shape}; vectors have (n, d). Save such an array")
        pieces = max(1, math.ceil(rows.nbytes / PIECE))
        bounds = [len(rows) * piece // pieces for piece in range(pieces + 1)]
    else:
        # A file of s bytes has fewer than s rows, and a slice stops at the last row.
        bounds = [0, file.stat().st_size]
    ranges = [{"first": first, "end": end} for first, end in zip(bounds, bounds[1:])]

    def piece(batch: dict[str, Any]) -> dict[str, Any]:
        first, end = int(batch["first"][0]), int(batch["end"][0])
        rows = read_file(file, mmap=True)[first:end]
        return {ID: numbers(first, len(rows)), VECTOR: numpy.ascontiguousarray(rows)}

    return ray.data.from_items(ranges, override_num_blocks=len(ranges)).map_batches(piece, batch_size=1)


class Rows:
    """The rows of a source in the cluster's object store, and the names of their columns."""

    def __init__(self, source: Source, vector_column: Optional[str], id_column: Optional[str]) -> None:
        dataset: Dataset
        if isinstance(source, numpy.ndarray):
            _no_columns(vector_column, id_column, "an array")
            if source.ndim != 2:
                raise ValueError(f"source has the shape {source.shape}; vectors have (n, d). Pass such an array")
            dataset, vector_column = ray.data.from_numpy(source), None
        elif isinstance(source, Dataset):
            dataset = source
        elif isinstance(source, (str, os.PathLike)):
            _no_columns(vector_column, id_column, "a file")
            dataset, vector_column, id_column = read(source), VECTOR, ID
        else:
            raise TypeError(
                f"source is a {type(source).__name__}; it has no vectors. Pass a Ray Dataset, the path of a vector file or an array"
            )
        with _in_order(dataset):
            self.dataset: _Rows = dataset.materialize()
        self.count = self.dataset.count()
        if self.count == 0:
            raise ValueError("source has no rows; an index of it would be empty. Pass vectors")
        names = self.dataset.schema().names
        self.ids = id_column if id_column is None else _column(id_column, names, "id_column")
        others = [name for name in names if name != self.ids]
        if vector_column is None:
            if len(others) != 1:
                raise ValueError(f"the dataset has the columns {', '.join(names)}. Name the column that has the vectors (vector_column=..)")
            vector_column = others[0]
        self.vectors = _column(vector_column, names, "vector_column")

    def cut(self, parts: int) -> list[tuple[int, _Rows]]:
        """Cuts the rows into parts, in their order. The sizes of two parts differ by at most one
        row. Returns each part with the number of its first row.
        """
        bounds = [self.count * part // parts for part in range(parts)]
        if parts == 1:
            return [(0, self.dataset)]
        return list(zip(bounds, self.dataset.split_at_indices(bounds[1:])))

    def sample(self, rows: int, seed: int) -> _Rows:
        """About `rows` random rows, or all rows if the source has at most `rows`."""
        if self.count <= rows:
            return self.dataset
        with _in_order(self.dataset):
            sample: _Rows = self.dataset.random_sample(rows / self.count, seed=seed).materialize()
        return sample


def matrices(rows: _Rows, column: str) -> Iterator[NDArray[Any]]:
    """The vectors of rows, one block of the dataset after the other. Each block is (n, d) and
    C-contiguous.
    """
    for batch in _batches(rows):
        yield _matrix(batch[column], column)


def matrix(rows: _Rows, column: str) -> NDArray[Any]:
    """The vectors of rows as one array."""
    return numpy.concatenate(list(matrices(rows, column)))


def spool(rows: _Rows, vectors: str, ids: Optional[str], folder: pathlib.Path) -> tuple[pathlib.Path, Optional[NDArray[Any]]]:
    """Writes the vectors of rows to a vector file, one block after the other.

    Returns the file's path, and the ids of the rows if a column has them.
    """
    count, named = rows.count(), []
    path, shape = folder / "rows", None
    with path.open("wb") as file:
        for batch in _batches(rows):
            block = _matrix(batch[vectors], vectors)
            if shape is None:
                shape = block.dtype, block.shape[1]
                write_header(file, count, block.shape[1])
            if (block.dtype, block.shape[1]) != shape:
                raise ValueError(
                    f"the column {vectors!r} has vectors of {shape[1]} {shape[0]} and of {block.shape[1]} {block.dtype}; all must have one dimension and type. Convert them before"
                )
            block.tofile(file)
            if ids is not None:
                named.append(numpy.asarray(batch[ids]))
    if shape is None:
        raise ValueError("a shard has no rows; an index of it would be empty. Pass fewer shards")
    whole = path.with_suffix(_ENDINGS[shape[0].name])
    path.rename(whole)
    return whole, numpy.concatenate(named) if ids is not None else None


def numbers(first: int, count: int) -> NDArray[numpy.uint64]:
    """The ids of rows without a column of ids: their row numbers."""
    return numpy.arange(first, first + count, dtype=numpy.uint64)


def _batches(rows: _Rows) -> Iterator[dict[str, Any]]:
    # Many tasks read rows at the same time, so no task shows a progress bar.
    rows.context.enable_progress_bars = False
    return iter(rows.iter_batches(batch_size=None, batch_format="numpy"))


def _matrix(column: NDArray[Any], name: str) -> NDArray[Any]:
    """A column of vectors as a matrix. For a column of lists, as in Parquet files, `column` is an
    array of arrays.
    """
    if column.dtype == object:
        lengths = {len(vector) for vector in column}
        if len(lengths) > 1:
            raise ValueError(
                f"the column {name!r} has vectors of {min(lengths)} and of {max(lengths)} dimensions; all must have the same. Convert them before"
            )
        column = numpy.stack(list(column))
    if column.ndim != 2:
        raise ValueError(f"the column {name!r} has values of the shape {column.shape[1:]}; a vector has (d,). Pass a column of vectors")
    if column.dtype.name not in _ENDINGS:
        raise TypeError(
            f"the column {name!r} has {column.dtype}; it must be {', '.join(_ENDINGS)}. "
            f"Convert it: map_batches(lambda b: {{**b, {name!r}: b[{name!r}].astype(numpy.float32)}})"
        )
    return numpy.ascontiguousarray(column)


@contextlib.contextmanager
def _in_order(dataset: Dataset) -> Iterator[None]:
    """Makes Ray Data keep the order of rows inside the `with` block. Otherwise, Ray Data returns
    rows in the order in which they are ready.
    """
    options = dataset.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        yield
    finally:
        options.preserve_order = before


def _no_columns(vector_column: Optional[str], id_column: Optional[str], what: str) -> None:
    if vector_column is not None or id_column is not None:
        raise TypeError(f"vector_column and id_column are for datasets; {what} has no columns, and its ids are the row numbers. Leave them out")


def _column(name: Optional[str], names: list[str], argument: str) -> str:
    if name not in names:
        raise ValueError(f"{argument} is {name!r}; the dataset has no such column. Pass one of {', '.join(names)}")
    return str(name)
