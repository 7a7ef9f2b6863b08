"""Vectors with their ids, and results of searches, also as objects of pandas and pyarrow."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Tuple

import numpy
from numpy.typing import NDArray

from .merging import NOTHING

if TYPE_CHECKING:
    from ._stratann import Index


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Vectors that were looked up by their ids (`Index.get`, `Index.batches`).

    `len` counts the ids. Iteration gives pairs of an id (int) and its vector (d,):

        vectors = dict(index.get([3, 17]))
    """

    ids: NDArray[numpy.uint64]
    """(n,): the ids that are in the index, in the order of the call."""
    vectors: NDArray[Any]
    """(n, d), of the index's dtype: equal to the bit to the inserted vectors."""
    missing: NDArray[numpy.uint64]
    """The ids of the call that are not in the index."""

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
    """A page of the vectors within a distance (`Index.search_range`). `len` counts the ids."""

    ids: NDArray[numpy.uint64]
    """(n,): nearest first."""
    distances: NDArray[numpy.float32]
    """(n,): exact."""
    next: Optional[Tuple[float, int, int]]
    """The argument `after` for the next page; None after the last one."""
    complete: bool
    """Whether certainly no result is missing."""
    attributes: Optional[List[Any]] = None
    """A dict for each id, if the call asked for attributes."""
    payload: Optional[List[Any]] = None
    """A payload for each id, if the call asked for payloads."""

    def __len__(self) -> int:
        return len(self.ids)


class AttributesOfResults(List[Any]):
    """The attributes that a search returned. This list also has the `names` of the columns that the
    search asked for.
    """

    def __init__(self, values: Iterable[Any] = (), names: Tuple[str, ...] = ()) -> None:
        super().__init__(values)
        self.names = names


class PayloadsOfResults(List[Any]):
    """The list of payloads that a search returned."""


def to_lists(ids: NDArray[numpy.uint64], distances: NDArray[numpy.float32], *parts: Any) -> List[Any]:
    """The results of a search as lists of pairs of an id (int) and its distance (float), nearest
    first. Several queries give a list of such lists, and a single query gives one list.

        for number, answers in enumerate(stratann.to_lists(*index.search(queries, k=10))):
            for id, distance in answers: ...

    `ids` and `distances` are the arrays that `search` returned, (nq, k) or (k,). If `search` also
    returned attributes or payloads, these extend each pair: (id, distance, attributes). Stats and
    missing results are left out, so a list may be shorter than k.
    """
    ids, distances = _same_shape(ids, distances)
    lists = [_checked(part, ids, "a part") for part in parts if not isinstance(part, dict)]
    if ids.ndim == 1:
        return _tuples(ids, distances, *lists)
    return [_tuples(*row) for row in zip(ids, distances, *lists)]


def _tuples(ids: NDArray[Any], distances: NDArray[Any], *parts: List[Any]) -> List[Tuple[Any, ...]]:
    known = ids != NOTHING
    lists = [[one for one, is_known in zip(part, known) if is_known] for part in parts]
    return list(zip(ids[known].tolist(), distances[known].tolist(), *lists))


def _same_shape(ids: Any, distances: Any) -> Tuple[NDArray[Any], NDArray[Any]]:
    ids, distances = numpy.asarray(ids), numpy.asarray(distances)
    if ids.shape != distances.shape or ids.ndim not in (1, 2):
        raise ValueError(f"ids has the shape {ids.shape} and distances has {distances.shape}. Pass the ids and distances that a search returned")
    return ids, distances


def to_pandas(ids: NDArray[numpy.uint64], distances: NDArray[numpy.float32], attributes: Any = None, payload: Any = None, stats: Any = None) -> Any:
    """The results of a search as a pandas.DataFrame. Each result is a row with `query` (the number
    of its query), `rank` (0 is the nearest), `id` and `distance`.

    The arguments are the parts that `search` returned: `to_pandas(*index.search(..))`. Missing
    results and stats are left out. Each attribute that the search asked for is a column of its
    name, with the prefix `attribute_` if the name is taken, as `id` is. If no result has the
    attribute, the column has only missing values. Payloads are the column `payload`. Pass payloads
    that are not from a search by name: `to_pandas(ids, distances, payload=index.payload(ids))`.
    """
    import pandas

    columns = _columns(ids, distances, *_parts(attributes, payload))
    for name, values in columns.items():
        # A column of integers with a missing value would become floats, which lose digits.
        if isinstance(values, list) and None in values and all(value is None or type(value) is int for value in values) and any(value is not None for value in values):
            columns[name] = pandas.array(values, dtype="Int64")
    return pandas.DataFrame(columns)


def to_arrow(ids: NDArray[numpy.uint64], distances: NDArray[numpy.float32], attributes: Any = None, payload: Any = None, stats: Any = None) -> Any:
    """The results of a search as a pyarrow.Table, with the columns of `to_pandas`. Payloads are
    texts of JSON, because a column has one type.
    """
    import pyarrow

    attributes, payload = _parts(attributes, payload)
    columns = _columns(ids, distances, attributes, payload)
    if payload is not None:
        columns["payload"] = [None if one is None else json.dumps(one, ensure_ascii=False) for one in columns["payload"]]
    return pyarrow.table(columns)


def _parts(attributes: Any, payload: Any) -> Tuple[Any, Any]:
    """The attributes and the payloads among the parts of a search, by their kinds. A dict in
    place of a list is the stats.
    """
    attributes, payload = (None if isinstance(part, dict) else part for part in (attributes, payload))
    if isinstance(attributes, PayloadsOfResults) or isinstance(payload, AttributesOfResults):
        attributes, payload = payload, attributes
    if isinstance(attributes, PayloadsOfResults) or isinstance(payload, AttributesOfResults):
        raise TypeError("attributes and payload are two lists of the same kind. Pass one list of each")
    return attributes, payload


def _checked(part: Any, ids: NDArray[Any], what: str) -> Any:
    """Returns `part`. Raises ValueError if a result has no value in it."""
    if len(part) != len(ids):
        raise ValueError(f"{what} has {len(part)} rows and ids has {len(ids)}. Pass the parts that one search returned")
    if ids.ndim == 2:
        for number, row in enumerate(part):
            if not isinstance(row, (list, tuple, numpy.ndarray)) or len(row) != ids.shape[1]:
                raise ValueError(f"{what} has {row!r} for query {number}; each query has a list of {ids.shape[1]} values. Pass a list for each query")
    return part


def _columns(ids: Any, distances: Any, attributes: Any = None, payload: Any = None) -> Dict[str, Any]:
    """The columns of a table of results."""
    single = numpy.ndim(ids) == 1
    ids, distances = map(numpy.atleast_2d, _same_shape(ids, distances))
    query, rank = numpy.nonzero(ids != NOTHING)

    def of_results(part: Any, what: str) -> List[Any]:
        rows = _checked([part] if single else part, ids, what)
        return [rows[number][place] for number, place in zip(query.tolist(), rank.tolist())]

    columns: Dict[str, Any] = {"query": query, "rank": rank, "id": ids[query, rank], "distance": distances[query, rank]}
    if payload is not None:
        columns["payload"] = of_results(payload, "payload")
    if attributes is None:
        return columns
    rows = [{} if row is None else row for row in of_results(attributes, "attributes")]
    for row in rows:
        if not isinstance(row, dict):
            raise TypeError(f"attributes has {row!r}; attributes of a result are a dict. If these are payloads, pass them as payload=")
    names = dict.fromkeys(getattr(attributes, "names", ()))
    names.update(dict.fromkeys(name for row in rows for name in row))
    taken = set(columns)
    for name in names:
        column = name
        while column in taken or (column != name and column in names):
            column = f"attribute_{column}"
        taken.add(column)
        columns[column] = [row.get(name) for row in rows]
    return columns


def batches(index: Index, size: int) -> Iterator[Rows]:
    """All vectors of an index, `size` at a time."""
    if size < 1:
        raise ValueError(f"size={size}; a batch has at least one vector. Pass 1 or more")
    return _batches(index, size)


def _batches(index: Index, size: int) -> Iterator[Rows]:
    ids = index.ids(None, size)
    while len(ids):
        rows = index.get(ids)
        # Ids that were deleted between the two calls are not reported as missing, because the
        # caller did not ask for them.
        yield dataclasses.replace(rows, missing=rows.missing[:0])
        ids = index.ids(int(ids[-1]), size)


def every_id(index: Index) -> Iterator[int]:
    """All ids of an index, ascending."""
    ids = index.ids(None, 1 << 14)
    while len(ids):
        yield from ids.tolist()
        ids = index.ids(int(ids[-1]), 1 << 14)


def reopen(path: "os.PathLike[str]", arguments: Dict[str, Any]) -> Index:
    """Opens the index of an unpickled object again."""
    from ._stratann import open

    return open(path, **arguments)
