"""Stores documents as vectors, attributes and payloads of an index.

    id        ──hash──> the vector's id: 63 bits of BLAKE2b, which needs no table of ids. The id
                        itself is in the column `_stratann_id`.
    metadata  ────────> columns by key (`columns.py`), as far as columns can hold its values.
    document  ────────> the payload, {"id", "content", "metadata"}. A read checks it against the id
                        and returns it.

Vector, attributes and payload of a document are one record of the log. After a crash the index has
the whole document or none of it. Two ids with the same hash are refused (`IdCollisionError`). With
a hundred million documents, this is expected once in two thousand collections.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import operator
import os
import uuid
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

import numpy
from numpy.typing import NDArray

from .._stratann import MOST_COLUMNS, MOST_PADDED, MOST_PAYLOAD, Filter, Index, OutdatedError, StratannError, build, check_build, column
from ..naming import refuse_others
from . import values
from .columns import BARE, EVERYTHING, ID, LATE, Columns
from .handle import Handle, Path
from .several import listed

_BATCH = 1024
_NO_ID = 2**64 - 1
# The codes of an index are trained on the vectors of its build, and codes of very few vectors
# hardly tell vectors apart. If 5,000 vectors are inserted into an index of one, recall@10 is .2;
# into an index of ten, it is .99. So the index is rebuilt each time it has grown by this factor,
# until a build had enough vectors.
_GROWTH = 4
_ENOUGH = 5_000

# The arguments of Documents: its own, and the arguments of a build that a store does not set
# itself.
_OWN = ("metric", "dimension", "memory", "filterable", "moments", "watch_recall")
_OF_BUILD = [name for name in inspect.signature(build).parameters if name not in (*_OWN, "base", "path", "ids", "attributes", "payload", "overwrite")]

FilterLike = Union[Filter, str, None]
T = TypeVar("T")


class DuplicateError(ValueError):
    """A document has an id that exists already, and `existing` is "refuse". `ids` has these ids."""

    def __init__(self, ids: List[str]) -> None:
        super().__init__(f"documents with the ids {ids[:5]!r}{' and others' if len(ids) > 5 else ''} exist already; nothing was written")
        self.ids = ids


class IdCollisionError(StratannError):
    """Two ids have the same hash. One of the documents needs another id."""


@dataclasses.dataclass(frozen=True)
class Document:
    """A document: its id (a UUID becomes its text), its content, its metadata, and its vector, (d,),
    or None.
    """

    id: str
    content: Any = None
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    vector: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.id, uuid.UUID):
            object.__setattr__(self, "id", str(self.id))


def _texts(ids: List[Any]) -> List[Any]:
    """Ids of documents, with the texts of UUIDs."""
    return [str(id) if isinstance(id, uuid.UUID) else id for id in ids]


def hash_of(id: str) -> int:
    """The id of a document's vector: 63 bits."""
    digest = hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Documents:
    """Documents in the folder of an index. The folder exists from the first document on.

    Parameters
    ----------
    path : path
        The folder of the index. `stratann.open` and the command line can read it like any other
        index.
    metric : str
        "cosine", "ip" or "l2" of an index that is to be built. An existing index must have this
        metric.
    dimension : int, optional
        The dimension of the vectors. None takes the dimension of the first vector. Documents
        without a vector may come before it. If documents have vectors already, this must be the
        dimension of these.
    memory : int or str, optional
        The most memory of searches, as in `stratann.open`. Stores of one folder in a process share
        it, and the size that was passed last applies to all. Another size is refused while one of
        the stores is open for changes, until its `close`.
    filterable : iterable of str, optional
        The keys of metadata that filters may ask for. None is all. An index has at most 1024
        columns, and the store takes some of them itself. With more keys, `put` and `update` raise
        ValueError, and `filterable` chooses the keys that take columns. `columns` refuses a filter
        on another key, and on a key of documents that were put when it was not filterable.
    moments : bool
        Whether texts of metadata in ISO 8601 can also be compared as times.
    watch_recall : int, optional
        The number of queries of `search` that are kept as a sample for live recall, as in
        `stratann.open`. `index().stats()["live_recall"]` has the result. Stores of one folder in a
        process share the sample, as they share `memory`. It starts again after a rebuild of the
        index, and after a change by another process.
    options
        Arguments of `stratann.build`: preset, degree, build_list, ... Names and values are checked
        at once. Checks that need the dimension come at once if `dimension` is given, else with the
        first `put`.

    Any number of threads may use one store, and any number of processes may read the documents. One
    process at a time writes, from its first change to `close`. Readers do not wait for writers, and
    writers wait for each other. Two stores of one folder in a process see each other's changes.

    A forked process may use the stores that it inherits. It opens the index again, and its changes
    take a lock of their own. Its parent must release that lock first (`close`).
    """

    def __init__(
        self,
        path: Path,
        *,
        metric: str = "cosine",
        dimension: Optional[int] = None,
        memory: Union[int, str, None] = None,
        filterable: Optional[Iterable[str]] = None,
        moments: bool = False,
        watch_recall: Optional[int] = None,
        **options: Any,
    ) -> None:
        refuse_others("Documents", options, (*_OWN, *_OF_BUILD))
        if dimension is not None:
            dimension = _checked_dimension(dimension)
        # Opening an existing index checks whether it can be opened with this memory.
        is_there = os.path.exists(os.path.join(path, "MANIFEST"))
        check_build(dimension, None if is_there else memory, metric=metric, watch_recall=watch_recall, **options)
        self._metric = metric
        self._dimension = dimension
        self._filterable = None if filterable is None else frozenset(listed(filterable, "filterable", "filterable={}"))
        self._moments = moments
        self._options = options
        self._handle = Handle.of(path, memory, watch_recall)
        self._check(self._handle.index())
        self._reading(self._check_dimension)

    def _check(self, index: Optional[Index]) -> Optional[Index]:
        if index is not None and index.metric != self._metric:
            raise ValueError(f"{index.path}: its metric is {index.metric!r}, not {self._metric!r}. Pass metric={index.metric!r}")
        return index

    def _check_dimension(self, index: Index) -> None:
        if self._dimension in (None, index.dim) or not len(index) or not self._has_vectors(index):
            return
        raise ValueError(
            f"dimension is {self._dimension}; the documents in {index.path} have vectors of {index.dim} dimensions. Pass dimension={index.dim}, or leave it out"
        )

    # Reads.

    def index(self) -> Optional[Index]:
        """The current index. None before the first document. It is closed with the documents."""
        return self._check(self._handle.index())

    def columns(self, *, deleting: bool = False) -> Columns:
        """The columns of the metadata, to make filters from comparisons by key. Columns for a
        deletion (`deleting`) refuse to negate a key that no document has.
        """
        index = self.index()
        if index is None:
            return Columns({}, filterable=self._filterable)
        return Columns(index.columns, filterable=self._filterable, count=self.count, deleting=deleting)

    def _reading(self, read: Callable[[Index], T], index: Optional[Index] = None) -> Optional[Tuple[Index, T]]:
        """The result of `read` on `index`, or else on the current index, with that index. None if
        there is none.

        An index opens some of its files only when they are needed. After a rebuild these files are
        gone, so the new index is read.
        """
        index = index or self.index()
        failed = None
        while index is not None:
            try:
                return index, read(index)
            except (FileNotFoundError, OutdatedError):
                # The same index failed twice, so it lacks a file.
                if index is failed:
                    raise
                failed, index = index, self.index()
        return None

    def __len__(self) -> int:
        index = self.index()
        return 0 if index is None else len(index)

    def count(self, filter: FilterLike = None) -> int:
        """The number of documents, or of the documents that match a filter."""
        found = self._reading(lambda index: len(index) if filter is None else index.count(filter))
        return 0 if found is None else found[1]

    def get(self, ids: Iterable[str], *, vectors: bool = False) -> List[Optional[Document]]:
        """Documents by their ids, in that order. None stands for an id that does not exist. A
        single text in place of a list of ids is a TypeError.
        """
        ids = _texts(listed(ids, "ids", "get({})"))
        if not ids:
            return []
        numbers = _hashes(ids)
        found = self._reading(lambda index: self._read(index, numbers, vectors))
        if found is None:
            return [None] * len(ids)
        return [document if document is not None and document.id == id else None for id, document in zip(ids, found[1])]

    def scan(self, filter: FilterLike = None, *, vectors: bool = False) -> Iterator[Document]:
        """All documents, or those that match a filter, in a fixed order. A document that exists all
        the time comes exactly once, also while others change.
        """
        index: Optional[Index] = None
        after: Optional[int] = None

        def page(index: Index) -> Tuple[NDArray[numpy.uint64], List[Optional[Document]]]:
            ids = index.ids(after, _BATCH, filter=filter)
            return ids, self._read(index, ids, vectors)

        while True:
            found = self._reading(page, index)
            if found is None:
                return
            # If another index has replaced this one, the remaining documents still have their ids.
            index, (ids, documents) = found
            for document in documents:
                if document is not None:
                    yield document
            if len(ids) < _BATCH:
                return
            after = int(ids[-1])

    def search(
        self,
        vector: Any,
        k: int = 10,
        *,
        filter: FilterLike = None,
        check: Optional[Callable[[Document], bool]] = None,
        vectors: bool = False,
        **options: Any,
    ) -> List[Tuple[Document, float]]:
        """The k nearest documents to a vector, (d,), with their distances, nearest first. Distances
        are 1 - cos for "cosine", minus the inner product for "ip", and squared for "l2".

        If at least k documents match `filter`, the search returns k. `check` is a Python function
        for conditions that a filter cannot express. It is called with each document, and the search
        continues with more and more vectors until k documents pass. `options` are arguments of
        `Index.search`: recall, list_size, ...
        """
        if k < 1:
            raise ValueError(f"k is {k}; a search returns at least one result. Pass 1 or more")
        found = self._reading(lambda index: self._nearest(index, vector, k, filter, check, vectors, options))
        return [] if found is None else found[1]

    def _nearest(
        self,
        index: Index,
        vector: Any,
        k: int,
        filter: FilterLike,
        check: Optional[Callable[[Document], bool]],
        vectors: bool,
        options: Dict[str, Any],
    ) -> List[Tuple[Document, float]]:
        """The answers of a search of one index."""
        if len(index) == 0:
            return []
        filter = self._with_vectors(index, filter)
        if filter is not None and index.dim == 1 and not index.count(filter):
            return []
        asked = k
        while True:
            ids, distances = index.search(vector, asked, filter=filter, **options)
            known = ids != _NO_ID
            documents = self._read(index, ids[known], vectors)
            found = [(one, float(far)) for one, far in zip(documents, distances[known]) if one is not None and (check is None or check(one))]
            if len(found) >= k or check is None or not known.all() or asked >= MOST_PADDED:
                return found[:k]
            asked = min(asked * 4, MOST_PADDED)

    def _with_vectors(self, index: Index, filter: FilterLike) -> FilterLike:
        """The filter, which also excludes documents without a vector."""
        if BARE not in index.columns:
            return filter
        wanted = column(BARE).missing()
        if filter is None:
            return wanted
        return wanted & (Filter(filter) if isinstance(filter, str) else filter)

    def _read(self, index: Index, ids: NDArray[numpy.uint64], vectors: bool) -> List[Optional[Document]]:
        payload = index.payload(ids)
        by_id: Dict[int, Any] = {}
        if vectors and len(ids):
            rows = index.get(ids)
            bare = self._bare(index, ids)
            by_id = {int(id): vector for id, vector in zip(rows.ids, rows.vectors) if int(id) not in bare}
        return [_document(held, by_id.get(int(id))) for id, held in zip(ids, payload)]

    def _bare(self, index: Index, ids: NDArray[numpy.uint64]) -> "set[int]":
        if BARE not in index.columns:
            return set()
        return {int(id) for id, row in zip(ids, index.attributes(ids)) if row and row.get(BARE)}

    # Changes.

    def put(self, documents: Iterable[Document], *, existing: str = "replace") -> List[str]:
        """Writes documents, and returns the ids of the written ones. They are durable when the call
        returns.

        `existing` decides about a document whose id exists already, in the collection or earlier in
        `documents`. "replace" replaces that document, and "skip" keeps it. "refuse" raises
        DuplicateError, and nothing is written. A wrong value raises an error before anything is
        written. After a crash or on a full disk, the first documents are in the index, each as a
        whole.
        """
        if existing not in ("replace", "skip", "refuse"):
            raise ValueError(f'existing is {existing!r}; there is no such choice. Pass "replace", "skip" or "refuse"')
        given = _unique(documents, existing)
        if not given:
            return []
        with self._handle.lock:
            index = self._check(self._handle.hold())
            if index is not None:
                given = self._admit(index, given, existing)
            if given:
                self._write(index, given)
        return [document.id for document in given]

    def _admit(self, index: Index, given: List[Document], existing: str) -> List[Document]:
        there = self._read(index, _hashes([document.id for document in given]), False)
        for document, found in zip(given, there):
            if found is not None and found.id != document.id:
                raise IdCollisionError(f"the ids {document.id!r} and {found.id!r} have the same hash. Give one of them another id")
        duplicates = [document.id for document, found in zip(given, there) if found is not None]
        if existing == "refuse" and duplicates:
            raise DuplicateError(duplicates)
        if existing == "skip":
            return [document for document, found in zip(given, there) if found is None]
        return given

    def _write(self, index: Optional[Index], given: List[Document]) -> None:
        dimension = _dimension_of(given)
        there = 0 if index is None else len(index)
        if index is not None and there and self._has_vectors(index):
            if dimension is not None and dimension != index.dim:
                raise ValueError(f"a vector has {dimension} dimensions; the vectors in {index.path} have {index.dim}. Pass vectors of this dimension")
            built = there - (index.count(column(LATE).exists()) if LATE in index.columns else 0)
            late = built < _ENOUGH
            anew = late and there + len(given) > _GROWTH * built
            dimension = index.dim
        else:
            late, anew = False, dimension is not None or not there
            if self._dimension is not None and dimension not in (None, self._dimension):
                raise ValueError(f"a vector has {dimension} dimensions; the store has {self._dimension}. Pass vectors of this dimension")
            dimension = dimension or self._dimension or (index.dim if there and index is not None else 1)
        columns = Columns({} if index is None or not there else index.columns)
        ids, rows, payload = self._encode(given, columns)
        vectors = _matrix(given, dimension)
        if index is not None and not anew:
            for row in rows if late else []:
                row[LATE] = True
            _check_columns(index.columns, rows)
            index.upsert(vectors, ids, attributes=rows, payload=payload)
            return
        if index is not None and there:
            vectors, ids, rows, payload = self._joined(index, vectors, ids, rows, payload)
        # A rebuilt index has only the columns of its rows.
        _check_columns((), rows)
        self._handle.build(vectors, ids, rows, payload, {"metric": self._metric, **self._options})

    def _has_vectors(self, index: Index) -> bool:
        return BARE not in index.columns or index.count(column(BARE).missing()) > 0

    def _joined(
        self, index: Index, vectors: Any, ids: NDArray[numpy.uint64], rows: List[Dict[str, Any]], payload: List[Any]
    ) -> Tuple[Any, NDArray[numpy.uint64], List[Dict[str, Any]], List[Any]]:
        """The given rows, and the remaining rows of the index."""
        others = index.ids()
        others = others[~numpy.isin(others, ids)]
        kept = numpy.ones((len(others), vectors.shape[1]), numpy.float32)
        if index.dim == vectors.shape[1] and len(others):
            kept[:] = index.get(others).vectors
        return (
            numpy.concatenate([kept, vectors]),
            numpy.concatenate([others, ids]),
            [_without(row or {}, LATE) for row in index.attributes(others)] + rows,
            index.payload(others) + payload,
        )

    def _encode(self, given: List[Document], columns: Columns) -> Tuple[NDArray[numpy.uint64], List[Dict[str, Any]], List[Any]]:
        rows, payload = [], []
        for document in given:
            row = columns.attributes(document.metadata, self._filterable, self._moments)
            row[ID] = document.id
            if document.vector is None:
                row[BARE] = True
            rows.append(row)
            payload.append(_payload(document))
        return _hashes([document.id for document in given]), rows, payload

    def update(self, filter: FilterLike, change: Callable[[Document], Document]) -> int:
        """Replaces each document that matches by `change` of it, with the same vector. Returns the
        number of documents. Each change is durable as a whole.
        """
        with self._handle.lock:
            index = self._check(self._handle.hold())
            if index is None:
                return 0
            # Reads all ids first, since a changed document may no longer match, or match again.
            every = index.ids(filter=filter) if filter is not None else index.ids()
            for at in range(0, len(every), _BATCH):
                ids = every[at : at + _BATCH]
                pairs = [(row, one) for row, one in zip(index.attributes(ids), self._read(index, ids, False)) if one is not None]
                given = [dataclasses.replace(change(one), id=one.id) for _, one in pairs]
                numbers, rows, payload = self._encode(given, Columns(index.columns))
                for row, (before, _) in zip(rows, pairs):
                    row.pop(BARE, None)
                    row.update({name: True for name in (BARE, LATE) if before and name in before})
                _check_columns(index.columns, rows)
                index.set_attributes(numbers, rows, payload=payload)
            return len(every)

    def delete(self, ids: Iterable[str]) -> int:
        """Deletes documents by their ids, and returns how many existed. A single text in place of a
        list of ids is a TypeError, since its letters would be taken for ids.
        """
        wanted = list(dict.fromkeys(_texts(listed(ids, "ids", "delete({})"))))
        with self._handle.lock:
            if not wanted or self.index() is None:
                return 0
            index = self._handle.hold()
            if index is None:
                return 0
            found = [document.id for document in self.get(wanted) if document is not None]
            if found:
                index.delete(_hashes(found))
            return len(found)

    def delete_matching(self, filter: FilterLike) -> int:
        """Deletes the documents that match, or all with None, and returns their number. An empty
        text is no filter, and is refused.
        """
        with self._handle.lock:
            if self.index() is None:
                return 0
            index = self._handle.hold()
            return 0 if index is None else index.delete(filter=EVERYTHING if filter is None else filter) or 0

    def flush(self) -> None:
        """Makes every change durable. Only an index with another durability than the default needs
        it.
        """
        with self._handle.lock:
            index = self.index()
            if index is not None:
                index.flush()

    def close(self) -> None:
        """Ends the changes, so that another process may make changes. The next change takes the
        lock again.
        """
        self._handle.close()

    def __enter__(self) -> "Documents":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()


def _checked_dimension(dimension: Any) -> int:
    try:
        number = operator.index(dimension)
    except TypeError:
        raise TypeError(f"dimension is {dimension!r}; it is a number of elements. Pass an int, 1 or more") from None
    if number < 1:
        raise ValueError(f"dimension is {number}; a vector has at least one element. Pass 1 or more")
    return number


def _unique(documents: Iterable[Document], existing: str) -> List[Document]:
    by_id: Dict[str, Document] = {}
    by_hash: Dict[int, str] = {}
    for document in listed(documents, "documents", "put({})"):
        if not isinstance(document, Document):
            raise TypeError(f"documents has {document!r}; put writes stratann.documents.Document. Pass Document(id, content, metadata, vector)")
        if not isinstance(document.id, str) or not document.id:
            raise TypeError(f"the id of a document is {document.id!r}; an id is a text. Pass a str that is not empty")
        other = by_hash.setdefault(hash_of(document.id), document.id)
        if other != document.id:
            raise IdCollisionError(f"the ids {document.id!r} and {other!r} have the same hash. Give one of them another id")
        if document.id in by_id and existing == "refuse":
            raise DuplicateError([document.id])
        if document.id not in by_id or existing == "replace":
            by_id[document.id] = document
    return list(by_id.values())


def _check_columns(there: Iterable[str], rows: List[Dict[str, Any]]) -> None:
    """Raises ValueError if the columns that exist and the columns of `rows` are too many for an
    index.
    """
    names = set(there).union(*rows)
    if len(names) > MOST_COLUMNS:
        raise ValueError(
            f"the keys of metadata take {len(names)} columns; an index has at most {MOST_COLUMNS}. Open the store with the keys of your filters "
            "in filterable=. Other keys then take no column, and are returned with their document as before"
        )


def _without(row: Dict[str, Any], name: str) -> Dict[str, Any]:
    row.pop(name, None)
    return row


def _hashes(ids: Sequence[str]) -> NDArray[numpy.uint64]:
    for id in ids:
        if not isinstance(id, str):
            raise TypeError(f"the id of a document is {id!r}; an id is a text. Pass a str")
    return numpy.array([hash_of(id) for id in ids], numpy.uint64)


def _dimension_of(given: List[Document]) -> Optional[int]:
    found: Optional[int] = None
    for document in given:
        if document.vector is None:
            continue
        if found is not None and len(document.vector) != found:
            raise ValueError(f"the vector of {document.id!r} has {len(document.vector)} dimensions, and one before it has {found}. Pass vectors of one dimension")
        found = len(document.vector)
    return found


def _matrix(given: List[Document], dimension: int) -> NDArray[numpy.float32]:
    # A document without a vector may have any values, since no search returns it.
    vectors = numpy.ones((len(given), dimension), numpy.float32)
    for row, document in zip(vectors, given):
        if document.vector is not None:
            row[:] = document.vector
    return vectors


def _payload(document: Document) -> Dict[str, Any]:
    payload = {
        "id": document.id,
        "content": values.encode(document.content, f"the content of {document.id!r}"),
        "metadata": values.encode(dict(document.metadata), f"the metadata of {document.id!r}"),
    }
    size = len(json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
    if size > MOST_PAYLOAD:
        raise ValueError(f"the document {document.id!r} takes {size} bytes with its metadata; it may take at most {MOST_PAYLOAD}. Split it into parts")
    return payload


def _document(held: Any, vector: Any) -> Optional[Document]:
    if not isinstance(held, dict) or "id" not in held:
        return None
    return Document(held["id"], values.decode(held.get("content")), values.decode(held.get("metadata") or {}), vector)
