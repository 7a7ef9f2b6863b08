"""Vectors with their ids, and answers, as other packages have them: numpy, pandas, pyarrow."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

import numpy
from numpy.typing import NDArray

from .merging import NOTHING

if TYPE_CHECKING:
    from ._stratann import Index


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Vectors that were looked up by their ids (`Index.get`, `Index.batches`).

    Its length is that of `ids`, and it gives pairs of an id (int) and its vector (d,):

        vectors = dict(index.get([3, 17]))
    """

    ids: NDArray[numpy.uint64]
    """(n,): those that are in the index, in the order in which they were asked for."""
    vectors: NDArray[Any]
    """(n, d), of the index's dtype: to the bit what was inserted."""
    missing: NDArray[numpy.uint64]
    """Ids that were asked for and are not in the index."""

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Tuple[int, NDArray[Any]]]:
        return zip(self.ids.tolist(), self.vectors)

    def to_pandas(self) -> Any:
        """A pandas.DataFrame: indexed by `id`, with a column `vector` of arrays (d,)."""
        import pandas

        index = pandas.Index(self.ids, name="id")
        return pandas.DataFrame({"vector": list(self.vectors)}, index=index)

    def to_arrow(self) -> Any:
        """A pyarrow.Table: `id` (uint64) and `vector` (a fixed-size list of d elements)."""
        import pyarrow

        elements = pyarrow.array(numpy.ascontiguousarray(self.vectors).reshape(-1))
        vectors = pyarrow.FixedSizeListArray.from_arrays(elements, self.vectors.shape[1])
        return pyarrow.table({"id": pyarrow.array(self.ids), "vector": vectors})


@dataclasses.dataclass(frozen=True, eq=False)
class Page:
    """Some of what is within a distance (`Index.search_range`); its length is that of `ids`."""

    ids: NDArray[numpy.uint64]
    """(n,): nearest first."""
    distances: NDArray[numpy.float32]
    """(n,): exact."""
    next: Optional[Tuple[float, int, int]]
    """What the next page is asked for with, as `after`; None if this is the last."""
    complete: bool
    """Whether it is certain that none was missed."""

    def __len__(self) -> int:
        return len(self.ids)


def to_lists(ids: NDArray[numpy.uint64], distances: NDArray[numpy.float32]) -> List[Any]:
    """The answers of a search as lists of pairs of an id (int) and its distance (float), nearest first: a list for each query, or one for one query.

        for number, answers in enumerate(stratann.to_lists(*index.search(queries, k=10))):
            for id, distance in answers: ...

    `ids` and `distances` are what `search` returned, (nq, k) or (k,). Places without an answer are left out, so that a list is shorter than k where
    there are fewer.
    """
    ids, distances = _same_shape(ids, distances)
    if ids.ndim == 1:
        return _pairs(ids, distances)
    return [_pairs(*row) for row in zip(ids, distances)]


def _pairs(ids: NDArray[Any], distances: NDArray[Any]) -> List[Tuple[int, float]]:
    known = ids != NOTHING
    return list(zip(ids[known].tolist(), distances[known].tolist()))


def _same_shape(ids: Any, distances: Any) -> Tuple[NDArray[Any], NDArray[Any]]:
    ids, distances = numpy.asarray(ids), numpy.asarray(distances)
    if ids.shape != distances.shape or ids.ndim not in (1, 2):
        raise ValueError(f"ids has the shape {ids.shape} and distances {distances.shape}: pass what a search returned")
    return ids, distances


def to_pandas(ids: NDArray[numpy.uint64], distances: NDArray[numpy.float32]) -> Any:
    """The answers of a search as a pandas.DataFrame: a row for each, with `query` (its row), `rank` (0 is the nearest), `id` and `distance`.

    `ids` and `distances` are what `search` returned, (nq, k) or (k,). Places without an answer are left out.
    """
    import pandas

    return pandas.DataFrame(_columns(ids, distances))


def to_arrow(ids: NDArray[numpy.uint64], distances: NDArray[numpy.float32]) -> Any:
    """The same as a pyarrow.Table."""
    import pyarrow

    return pyarrow.table(_columns(ids, distances))


def _columns(ids: NDArray[numpy.uint64], distances: NDArray[numpy.float32]) -> Dict[str, NDArray[Any]]:
    ids, distances = map(numpy.atleast_2d, _same_shape(ids, distances))
    query, rank = numpy.nonzero(ids != NOTHING)
    return {"query": query, "rank": rank, "id": ids[query, rank], "distance": distances[query, rank]}


def batches(index: Index, size: int) -> Iterator[Rows]:
    """All of an index, `size` ids at a time."""
    if size < 1:
        raise ValueError(f"size={size}: it must be at least 1")
    return _batches(index, size)


def _batches(index: Index, size: int) -> Iterator[Rows]:
    ids = index.ids(None, size)
    while len(ids):
        rows = index.get(ids)
        # Those that were deleted since were never asked for.
        yield dataclasses.replace(rows, missing=rows.missing[:0])
        ids = index.ids(int(ids[-1]), size)


def every_id(index: Index) -> Iterator[int]:
    """All ids of an index, ascending."""
    ids = index.ids(None, 1 << 14)
    while len(ids):
        yield from ids.tolist()
        ids = index.ids(int(ids[-1]), 1 << 14)


def reopen(path: "os.PathLike[str]", arguments: Dict[str, Any]) -> Index:
    """An index that was pickled, opened again."""
    from ._stratann import open

    return open(path, **arguments)
