"""Documents in an index: what is written where.

    id        ──hash──> the vector's id: 63 bits of BLAKE2b, so that nothing has to be looked up; also in the column `_stratann_id`
    metadata  ────────> columns by key (`columns.py`), as far as a column can have them
    all of it ────────> the payload, {"id", "content", "metadata"}, which is checked against the id and given back

Vector, attributes and payload of a document are one record of the log: after a crash it is there as a whole, or not. Two ids of one hash are
refused (`IdCollisionError`): of a hundred million documents that is to be expected once in two thousand collections.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import operator
import os
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
# The codes of an index are those of the vectors that it was built of, and of very few they tell nothing apart: 5,000 vectors inserted into an
# index of one are found at recall@10 .2, into an index of ten at .99. So it is built anew when it has grown this much, until it was built of enough.
_GROWTH = 4
_ENOUGH = 5_000

# Names that Documents takes: its own, and those of a build but for what a store gives it.
_OWN = ("metric", "dimension", "memory", "filterable", "moments", "watch_recall")
_OF_BUILD = [name for name in inspect.signature(build).parameters if name not in (*_OWN, "base", "path", "ids", "attributes", "payload", "overwrite")]

FilterLike = Union[Filter, str, None]
T = TypeVar("T")


class DuplicateError(ValueError):
    """A document whose id is there already, where that was to be refused. `ids` says which."""

    def __init__(self, ids: List[str]) -> None:
        super().__init__(f"there are documents with the ids {ids[:5]!r}{' and others' if len(ids) > 5 else ''} already: nothing was written")
        self.ids = ids


class IdCollisionError(StratannError):
    """Two ids that have the same hash: one of them has to be another."""


@dataclasses.dataclass(frozen=True)
class Document:
    """A document: its id, what it says, what is known of it, and its vector, (d,), which it may lack."""

    id: str
    content: Any = None
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    vector: Any = None


def hash_of(id: str) -> int:
    """The id of the vector of a document: 63 bits."""
    digest = hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Documents:
    """Documents in the folder of an index, which is there from the first document on.

    Parameters
    ----------
    path : path
        The folder of the index. `stratann.open` and the command line read it as any other.
    metric : str
        "cosine", "ip" or "l2", of an index that is to be built; of one that is there it has to be the same.
    dimension : int, optional
        Of the vectors; else the first vector says it. Documents without a vector may come before. Where documents have vectors already it has to be theirs.
    memory : int or str, optional
        What searches may take, as in `stratann.open`. Stores of one folder in a process share it: the size that is given last counts for all, and
        is refused while one of them is open for changes, which `close` ends.
    filterable : iterable of str, optional
        The keys of metadata that filters may ask; None is all. An index has at most 1024 columns, some of which are the store's own: with more keys
        than that `put` and `update` raise ValueError, and this says which take columns. `columns` refuses others by name, as it does
        keys that documents have which came when they were not filterable.
    moments : bool
        Texts of metadata in ISO 8601 can be compared as times, too.
    watch_recall : int, optional
        How many of the queries that `search` serves are kept as a sample for live recall, as in `stratann.open`: `index().stats()["live_recall"]` tells it.
        Stores of one folder in a process share the sample, as they share `memory`. It begins anew when the index is built anew, and when another process
        has changed it.
    options
        Of `stratann.build`: preset, degree, build_list, ... Names and values are checked at once; what depends on the dimension of the
        vectors where `dimension` is given, else by the first `put`.

    Any number of threads may use one, and any number of processes read; one process at a time writes, from its first change to `close`.
    Threads that read do not wait for one that writes; threads that write wait for each other.
    Two stores of one folder in a process share what they see. A forked process may go on with those that it inherits: it opens the index anew, and its
    changes take a lock of their own, which its parent has to give back first (`close`).
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
        # Whether an index that is there can be opened with this memory, its opening says.
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
            raise ValueError(f"{index.path}: its metric is {index.metric!r}, not {self._metric!r}: pass metric={index.metric!r}")
        return index

    def _check_dimension(self, index: Index) -> None:
        if self._dimension in (None, index.dim) or not len(index) or not self._has_vectors(index):
            return
        raise ValueError(
            f"dimension is {self._dimension}; the documents in {index.path} have vectors of {index.dim} dimensions. Pass dimension={index.dim}, or leave it out"
        )

    # What is read.

    def index(self) -> Optional[Index]:
        """The index as it is now; None before the first document. It is closed with the documents."""
        return self._check(self._handle.index())

    def columns(self, *, deleting: bool = False) -> Columns:
        """In which columns metadata is, and comparisons by its keys for filters: of a deletion, which refuse to deny a key that nothing has."""
        index = self.index()
        if index is None:
            return Columns({}, filterable=self._filterable)
        return Columns(index.columns, filterable=self._filterable, count=self.count, deleting=deleting)

    def _reading(self, read: Callable[[Index], T], index: Optional[Index] = None) -> Optional[Tuple[Index, T]]:
        """What `read` gives of an index, or else of the index as it is now, and of which it gave that; None if there is none.

        An index opens some of its files when they are asked for. They are gone where it was built anew meanwhile: then the new one is read.
        """
        index = index or self.index()
        failed = None
        while index is not None:
            try:
                return index, read(index)
            except (FileNotFoundError, OutdatedError):
                # Twice of one and the same index: it lacks a file.
                if index is failed:
                    raise
                failed, index = index, self.index()
        return None

    def __len__(self) -> int:
        index = self.index()
        return 0 if index is None else len(index)

    def count(self, filter: FilterLike = None) -> int:
        """How many documents there are, or match."""
        found = self._reading(lambda index: len(index) if filter is None else index.count(filter))
        return 0 if found is None else found[1]

    def get(self, ids: Iterable[str], *, vectors: bool = False) -> List[Optional[Document]]:
        """Documents by their ids, in that order; None for those that are not there. One text is no list of ids, and a TypeError."""
        ids = listed(ids, "ids", "get({})")
        if not ids:
            return []
        numbers = _hashes(ids)
        found = self._reading(lambda index: self._read(index, numbers, vectors))
        if found is None:
            return [None] * len(ids)
        return [document if document is not None and document.id == id else None for id, document in zip(ids, found[1])]

    def scan(self, filter: FilterLike = None, *, vectors: bool = False) -> Iterator[Document]:
        """All documents, or those that match, in an order that stays the same. What is there throughout comes once, whatever changes meanwhile."""
        index: Optional[Index] = None
        after: Optional[int] = None

        def page(index: Index) -> Tuple[NDArray[numpy.uint64], List[Optional[Document]]]:
            ids = index.ids(after, _BATCH, filter=filter)
            return ids, self._read(index, ids, vectors)

        while True:
            found = self._reading(page, index)
            if found is None:
                return
            # Where another index has taken this one's place, the documents that stay have the ids that they had.
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
        """The nearest k documents to a vector, (d,), nearest first, with their distances: "cosine" is 1 - cos, "ip" minus the product, "l2" squared.

        With `filter`, k documents come whenever k match. `check` is asked of each document, in Python, for what no filter can say: more and more
        are searched for until k pass. `options` are those of `Index.search`: recall, list_size, ...
        """
        if k < 1:
            raise ValueError(f"k is {k}: it must be 1 or more")
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
        """The answers of a search of an index."""
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
        """The filter, and no document without a vector."""
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

    # What is changed.

    def put(self, documents: Iterable[Document], *, existing: str = "replace") -> List[str]:
        """Writes documents; the ids of those that were written. They are durable when it returns.

        `existing` says what becomes of one whose id is there, in the collection or earlier in these: "replace" writes it anew, "skip" leaves what is
        there, "refuse" raises DuplicateError, and nothing is written. An error of a value is raised before anything is written; after a crash or
        with a full disk the first documents are in, each as a whole.
        """
        if existing not in ("replace", "skip", "refuse"):
            raise ValueError(f'existing is {existing!r}: it must be "replace", "skip" or "refuse"')
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
                raise IdCollisionError(f"the ids {document.id!r} and {found.id!r} have one hash: give one of them another id")
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
                raise ValueError(f"a vector has {dimension} dimensions: it must have {index.dim}, as those in {index.path}")
            built = there - (index.count(column(LATE).exists()) if LATE in index.columns else 0)
            late = built < _ENOUGH
            anew = late and there + len(given) > _GROWTH * built
            dimension = index.dim
        else:
            late, anew = False, dimension is not None or not there
            if self._dimension is not None and dimension not in (None, self._dimension):
                raise ValueError(f"a vector has {dimension} dimensions: it must have {self._dimension}")
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
        # What goes is no column any more.
        _check_columns((), rows)
        self._handle.build(vectors, ids, rows, payload, {"metric": self._metric, **self._options})

    def _has_vectors(self, index: Index) -> bool:
        return BARE not in index.columns or index.count(column(BARE).missing()) > 0

    def _joined(
        self, index: Index, vectors: Any, ids: NDArray[numpy.uint64], rows: List[Dict[str, Any]], payload: List[Any]
    ) -> Tuple[Any, NDArray[numpy.uint64], List[Dict[str, Any]], List[Any]]:
        """These, and what there is beside them."""
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
        """Puts `change` of each document that matches in its place, with the vector that it has; how many. Each is durable as a whole."""
        with self._handle.lock:
            index = self._check(self._handle.hold())
            if index is None:
                return 0
            # All of them first: what is changed may match no more, or anew.
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
        """Deletes documents by their ids; how many were there. One text is no list of ids, and a TypeError: its letters would be other ids."""
        wanted = list(dict.fromkeys(listed(ids, "ids", "delete({})")))
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
        """Deletes the documents that match, or with None all; how many. An empty text is no filter, and refused."""
        with self._handle.lock:
            if self.index() is None:
                return 0
            index = self._handle.hold()
            return 0 if index is None else index.delete(filter=EVERYTHING if filter is None else filter) or 0

    def flush(self) -> None:
        """Makes every change durable; only needed for an index with another durability than what is usual."""
        with self._handle.lock:
            index = self.index()
            if index is not None:
                index.flush()

    def close(self) -> None:
        """Ends the changes, so that another process may make some. The next one takes the lock again."""
        self._handle.close()

    def __enter__(self) -> "Documents":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()


def _checked_dimension(dimension: Any) -> int:
    try:
        number = operator.index(dimension)
    except TypeError:
        raise TypeError(f"dimension is {dimension!r}; it is a count of elements. Pass an int, 1 or more") from None
    if number < 1:
        raise ValueError(f"dimension is {number}: it must be 1 or more")
    return number


def _unique(documents: Iterable[Document], existing: str) -> List[Document]:
    by_id: Dict[str, Document] = {}
    by_hash: Dict[int, str] = {}
    for document in listed(documents, "documents", "put({})"):
        if not isinstance(document, Document):
            raise TypeError(f"documents has {document!r}; put writes stratann.documents.Document. Pass Document(id, content, metadata, vector)")
        if not isinstance(document.id, str) or not document.id:
            raise TypeError(f"the id of a document is {document.id!r}: it must be a str, and not empty")
        other = by_hash.setdefault(hash_of(document.id), document.id)
        if other != document.id:
            raise IdCollisionError(f"the ids {document.id!r} and {other!r} have one hash: give one of them another id")
        if document.id in by_id and existing == "refuse":
            raise DuplicateError([document.id])
        if document.id not in by_id or existing == "replace":
            by_id[document.id] = document
    return list(by_id.values())


def _check_columns(there: Iterable[str], rows: List[Dict[str, Any]]) -> None:
    """Raises ValueError where an index that has these columns would have too many with those of rows."""
    names = set(there).union(*rows)
    if len(names) > MOST_COLUMNS:
        raise ValueError(
            f"the keys of metadata take {len(names)} columns; an index has at most {MOST_COLUMNS}. Open the store with the keys that filters "
            "ask in filterable=: all others take no column, and come back with their document as before"
        )


def _without(row: Dict[str, Any], name: str) -> Dict[str, Any]:
    row.pop(name, None)
    return row


def _hashes(ids: Sequence[str]) -> NDArray[numpy.uint64]:
    for id in ids:
        if not isinstance(id, str):
            raise TypeError(f"the id of a document is {id!r}: it must be a str")
    return numpy.array([hash_of(id) for id in ids], numpy.uint64)


def _dimension_of(given: List[Document]) -> Optional[int]:
    found: Optional[int] = None
    for document in given:
        if document.vector is None:
            continue
        if found is not None and len(document.vector) != found:
            raise ValueError(f"the vector of {document.id!r} has {len(document.vector)} dimensions, and one before it {found}: they must be alike")
        found = len(document.vector)
    return found


def _matrix(given: List[Document], dimension: int) -> NDArray[numpy.float32]:
    # Of a document without a vector any will do, since no search finds it.
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
        raise ValueError(f"the document {document.id!r} takes {size} bytes: at most {MOST_PAYLOAD} with its metadata; split it into parts")
    return payload


def _document(held: Any, vector: Any) -> Optional[Document]:
    if not isinstance(held, dict) or "id" not in held:
        return None
    return Document(held["id"], values.decode(held.get("content")), values.decode(held.get("metadata") or {}), vector)
