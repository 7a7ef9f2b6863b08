"""Stores documents as vectors, attributes and payloads of an index.

    id        ──hash──> the vector's id: 63 bits of BLAKE2b, which needs no table of ids. The id
                        itself is in the column `_stratann_id`.
    metadata  ────────> columns by key (`columns.py`), as far as columns can hold its values.
    document  ────────> the payload, {"id", "content", "metadata"}. A read compares this id
                        with the requested id, and returns the document.

Vector, attributes and payload of a document are one record of the log. After a crash, the index has
the complete document or nothing of it. If two ids have the same hash, the second is refused
(`IdCollisionError`). Among two thousand collections of a hundred million documents each, one such
pair is expected.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import operator
import os
import uuid
from collections.abc import ItemsView, KeysView, ValuesView
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

import numpy
from numpy.typing import NDArray

from .._stratann import MOST_COLUMNS, MOST_PADDED, MOST_PAYLOAD, Filter, Index, OutdatedError, StratannError, build, check_build, column, no_attribute, warn_of_new
from ..conditions import filter_of
from ..conversion import single
from ..naming import checked, refuse_others
from . import values
from .columns import BARE, EVERYTHING, ID, LATE, Columns
from .document import REMEDY, UNREAD, Document
from .handle import Handle, Path
from .several import listed
from .views import Items, Values

_BATCH = 1024
_NO_ID = 2**64 - 1
# The codes of an index are trained on the vectors of its build, and codes of very few vectors
# hardly distinguish vectors. After 5,000 inserts into an index of one vector, recall@10 is .2;
# after as many inserts into an index of ten vectors, it is .99. So the index is rebuilt each time it
# has grown by the factor `_GROWTH`, until a build had `_ENOUGH` vectors.
_GROWTH = 4
_ENOUGH = 5_000

# The arguments of Documents: its own arguments, and the arguments of a build that a store does not
# set itself.
_OWN = ("metric", "dimension", "memory", "filterable", "moments", "watch_recall")
_OF_BUILD = [name for name in inspect.signature(build).parameters if name not in (*_OWN, "base", "path", "ids", "attributes", "payload", "overwrite")]

# Presets whose indexes record no compression. A build of them takes "raw".
_OF_CLUSTERS = ("spann", "tiered-cluster")

# Arguments of `Index.search` that add to its results.
_OF_TUPLE = ("attributes", "payload", "return_stats")

FilterLike = Union[Filter, str, Mapping[str, Any], None]
T = TypeVar("T")


class DuplicateError(ValueError):
    """Documents with these `ids` exist already, and `existing` is "refuse"."""

    def __init__(self, ids: List[str]) -> None:
        super().__init__(f"documents with the ids {ids[:5]!r}{' and others' if len(ids) > 5 else ''} exist already; nothing was written")
        self.ids = ids


class UnreadVectorError(ValueError):
    """The vectors of documents with these `ids` were not read, so `put` cannot store them."""

    def __init__(self, ids: List[str]) -> None:
        super().__init__(
            f"the vectors of the documents {ids[:5]!r}{' and others' if len(ids) > 5 else ''} were not read; put would store these documents without "
            f"vectors. {REMEDY}. To store a document without a vector, pass vector=None"
        )
        self.ids = ids


class IdCollisionError(StratannError):
    """Two ids have the same hash. One of the documents needs another id."""


def _texts(ids: List[Any]) -> List[Any]:
    """Ids of documents, in which each UUID is converted to a str."""
    return [str(id) if isinstance(id, uuid.UUID) else id for id in ids]


def _changed(changed: Any) -> Document:
    """The result of a function that changes a document. Raises TypeError for another object."""
    if not isinstance(changed, Document):
        raise TypeError(
            f"change returned an object of type {type(changed).__name__}; it is no Document. "
            "Return a Document, for example dataclasses.replace(document, metadata={**document.metadata, 'year': 2026})"
        )
    return changed


def hash_of(id: str) -> int:
    """The id of a document's vector: 63 bits."""
    digest = hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Documents:
    """Documents in the folder of an index. The first document creates the folder. Like a dict,
    `Documents` has `len`, `in`, `[]` and `del` by id, iteration over ids, `keys`, `items` and
    `values`. `put` writes documents.

    Parameters
    ----------
    path : path
        The folder of the index. `stratann.open` and the command line can read it like any other
        index.
    metric : str
        "cosine", "ip" or "l2", for an index that the store will build. An existing index must have
        this metric.
    dimension : int, optional
        The dimension of the vectors. None takes the dimension of the first vector; earlier
        documents may have no vector. If documents have vectors already, `dimension` must be the
        dimension of these vectors.
    memory : int or str, optional
        The maximum memory of searches, as in `stratann.open`. All stores of one folder in a process
        share this memory, and the size that was passed last applies to all of them. While one of
        these stores is open for changes, another size is refused.
    filterable : iterable of str, optional
        The keys of metadata that filters may use. None means all keys. An index has at most 1024
        columns, and the store needs some of them itself. If there are too many keys, `put` and
        `update` raise ValueError; then choose the keys that get columns with `filterable`.
        `columns` refuses a filter on any other key, and on a key that was not filterable when a
        document with this key was put.
    moments : bool
        Whether filters can also compare a text in metadata as a time, if the text is an ISO 8601
        time.
    watch_recall : int, optional
        The number of queries of `search` in the sample for live recall, as in `stratann.open`.
        `index().stats()["live_recall"]` has the result. Stores of one folder in a process share the
        sample, as they share `memory`. A new sample begins after a rebuild of the index, and after
        a change by another process.
    options
        Arguments of `stratann.build`: preset, degree, build_list, ... Names and values are checked
        immediately. Checks that need the dimension are made immediately if `dimension` is given,
        else by the first `put`. A store that exists keeps the options with which it was made, and
        refuses other values, and options that its preset does not have. Leave the options out, or
        pass the same values. The index does not record `search_memory`, `space`, `query_log`,
        `codebook`, `calibrate`, `threads`, and a `layout` that the preset can choose by itself:
        pass them again for later builds. The store builds its index again as it grows, up to 5,000
        documents.

    Any number of threads may use one store, and any number of processes may read the documents. One
    process at a time writes, from its first change to `close`. Readers of other processes do not wait
    for the writer. In the process that writes, a read with vectors waits for the running change.
    Writers of one process wait for each other. Two stores of one folder in a process see each
    other's changes.

    A forked process may use the stores that it inherits. It opens the index again, and needs the
    lock for its own changes. So its parent must release the lock first (`close`).
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
        if not os.fspath(path):
            raise ValueError("the path of the store is empty; no store has an empty path. Pass the path of its folder")
        if dimension is not None:
            dimension = _checked_dimension(dimension)
        # `memory` is not checked for an existing index here, since opening the index checks it.
        is_there = os.path.exists(os.path.join(path, "MANIFEST"))
        normal = check_build(dimension, None if is_there else memory, metric=metric, watch_recall=watch_recall, **options)
        self._metric = normal["metric"]
        self._dimension = dimension
        self._filterable = None if filterable is None else frozenset(listed(filterable, "filterable", "filterable={}"))
        self._moments = moments
        self._options = {name: value for name, value in options.items() if value is not None}
        self._asked = {name: normal[name] for name in self._options if name in normal}
        """The passed options that an index records, in the form in which it records them."""
        self._handle = Handle.of(path, memory, watch_recall)
        self._check(self._handle.index())
        self._reading(self._check_dimension)
        self._reading(self._check_options)

    def _check(self, index: Optional[Index]) -> Optional[Index]:
        if index is not None and index.metric != self._metric:
            raise ValueError(f"{index.path}: its metric is {index.metric!r}, not {self._metric!r}. Pass metric={index.metric!r}")
        if index is not None and ID not in index.columns and len(index):
            raise ValueError(
                f"{index.path}: it is an index of {len(index)} vectors without documents, which Documents did not write. Pass the path of another "
                "folder, or open this one with stratann.open"
            )
        return index

    def _check_dimension(self, index: Index) -> None:
        if self._dimension in (None, index.dim) or not len(index) or not self._has_vectors(index):
            return
        raise ValueError(
            f"dimension is {self._dimension}; the documents in {index.path} have vectors of {index.dim} dimensions. Pass dimension={index.dim}, or leave it out"
        )

    def _check_options(self, index: Index) -> None:
        """Raises ValueError if an option was passed with another value than the index was built
        with.
        """
        built = self._built_with(index) if self._asked else {}
        if "layout" in self._asked:
            # The options of a build leave out a layout that its preset could have chosen.
            built["layout"] = index.stats()["layout"]
        for name, asked in self._asked.items():
            here = built.get(name, asked)
            if here == asked or (name == "compression" and asked == "raw" and index.preset in _OF_CLUSTERS):
                continue
            if here is None:
                raise ValueError(f"{index.path}: {name} is {asked!r}; the index was built without it (preset {index.preset!r}). Leave it out")
            raise ValueError(f"{index.path}: its {name} is {here!r}, not {asked!r}. Pass {name}={here!r}, or leave it out")

    def _built_with(self, index: Index) -> Dict[str, Any]:
        """The options of the index's build that also apply to the next build. None stands for an
        option without which the index was built.
        """
        without = set()
        # The degree and the least list size follow from these options, which the caller passed
        # again.
        if "space" in self._options or "search_memory" in self._options:
            without.update(["degree", "build_list"])
        # Vectors of another dimension may come after documents without vectors.
        if "codebook" in self._options or not len(index) or not self._has_vectors(index):
            without.add("code_bytes")
        return {name: value for name, value in index._built_with.items() if name not in without}

    # With this method, a type checker would accept any name.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Called for a name that the class does not have."""
            if name in ("compact", "export", "snapshot", "stats"):
                raise AttributeError(f'"Documents" has no attribute "{name}"; its index has. Use index().{name}, if the store has a document')
            raise no_attribute(self, name)

    # Reads.

    def index(self) -> Optional[Index]:
        """The current index, or None before the first document. `close` of this store closes the
        index too.
        """
        return self._check(self._handle.index())

    def columns(self, *, deleting: bool = False) -> Columns:
        """The columns of the metadata, from which filters by key are made. Columns for a deletion
        (`deleting`) refuse a filter that negates a key which no document has.
        """
        index = self.index()
        if index is None:
            return Columns({}, filterable=self._filterable)
        return Columns(index.columns, filterable=self._filterable, count=self.count, deleting=deleting)

    def _filter(self, index: Index, filter: FilterLike, deleting: bool = False) -> Union[Filter, str, None]:
        """A filter, in which a dict compares keys of metadata, whatever the kinds of their values. A
        text compares columns.
        """
        if isinstance(filter, str):
            Columns(index.columns, count=index.count, deleting=deleting).check_text(filter)
        if not isinstance(filter, Mapping):
            if not isinstance(filter, (Filter, str, type(None))):
                raise TypeError(f"filter is {filter!r:.80}; it is no filter. Pass a dict such as {{'price': {{'$lt': 10}}}}, a text, or a stratann.Filter")
            return filter
        columns = Columns(index.columns, filterable=self._filterable, count=self.count, deleting=deleting, suggesting=True)
        return filter_of(filter, columns.compared(self._moments), columns.negated)

    def _reading(self, read: Callable[[Index], T], index: Optional[Index] = None) -> Optional[Tuple[Index, T]]:
        """The result of `read` on `index`, or else on the current index, together with the index
        that was read. None if there is no index.

        An index opens some of its files only when they are needed. A rebuild removes these files.
        In this case, the new index is read.
        """
        index = index or self.index()
        failed = None
        while index is not None:
            try:
                return index, read(index)
            except (FileNotFoundError, OutdatedError):
                # If the same index fails twice, it lacks a file.
                if index is failed:
                    raise
                failed, index = index, self.index()
        return None

    def __len__(self) -> int:
        index = self.index()
        return 0 if index is None else len(index)

    def __contains__(self, id: object) -> bool:
        # A value of another type is the id of no document.
        return isinstance(id, (str, uuid.UUID)) and self.get([id])[0] is not None

    def __getitem__(self, id: Union[str, uuid.UUID]) -> Document:
        """The document with this id. Raises KeyError if it does not exist."""
        (found,) = self.get([id])
        if found is None:
            raise KeyError(id)
        return found

    def __iter__(self) -> Iterator[str]:
        """Iterates over the ids of all documents, in the order of `scan`."""
        return (document.id for document in self.scan())

    def __reversed__(self) -> Iterator[str]:
        raise TypeError("a store of documents was to be reversed; its ids have no order of their own. Pass reversed(list(documents))")

    def keys(self) -> "KeysView[str]":
        """The ids of all documents, as a view like that of a dict."""
        return KeysView(self)

    def items(self) -> "ItemsView[str, Document]":
        """Pairs of an id and its document, as a view like that of a dict. Iteration reads no
        vectors (`values`). `(id, document) in documents.items()` compares the vectors, too, unless
        the vector of `document` is `UNREAD`.
        """
        return Items(self)

    def values(self) -> "ValuesView[Document]":
        """All documents, as a view like that of a dict. Iteration reads no vectors: if a document
        has one, its `vector` is `UNREAD`, which `put` refuses. To copy a store, pass
        `scan(vectors=True)` to `put`.
        """
        return Values(self)

    def count(self, filter: FilterLike = None) -> int:
        """The number of all documents, or of the documents that match a filter."""
        found = self._reading(lambda index: len(index) if filter is None else index.count(self._filter(index, filter)))
        return 0 if found is None else found[1]

    def get(self, ids: Iterable[Union[str, uuid.UUID]], *, vectors: bool = False) -> List[Optional[Document]]:
        """The documents with these ids, in the order of the ids. None stands for an id that does
        not exist. A single text instead of a list of ids raises TypeError.

        Without `vectors`, here and in other methods, the vector of a document that has one is
        `UNREAD`.
        """
        ids = _texts(listed(ids, "ids", "get({})", _id))
        if not ids:
            return []
        numbers = _hashes(ids)
        found = self._reading(lambda index: self._read(index, numbers, vectors))
        if found is None:
            return [None] * len(ids)
        return [document if document is not None and document.id == id else None for id, document in zip(ids, found[1])]

    def scan(self, filter: FilterLike = None, *, vectors: bool = False) -> Iterator[Document]:
        """Iterates over all documents, or over the documents that match a filter, in a fixed order.
        A document that exists during the whole iteration is returned exactly once, even if other
        documents change.
        """
        index: Optional[Index] = None
        after: Optional[int] = None

        def page(index: Index) -> Tuple[NDArray[numpy.uint64], List[Optional[Document]]]:
            ids = index.ids(after, _BATCH, filter=self._filter(index, filter))
            return ids, self._read(index, ids, vectors)

        while True:
            found = self._reading(page, index)
            if found is None:
                return
            # If a rebuild has replaced the index, the remaining documents have the same ids in the
            # new index.
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
        """Finds the k documents nearest to a vector, (d,), and returns them with their distances,
        nearest first. Distances are 1 - cos for "cosine", minus the inner product for "ip", and
        squared for "l2". An array of vectors, (n, d), raises ValueError, since the result is one
        list.

        If at least k documents match `filter`, the search returns k. A filter is a text, a
        `stratann.Filter`, or a dict of conditions on keys of metadata: {"year": {"$gte": 2020}}.
        `check` is a Python function for conditions that a filter cannot express: it is called with
        a document, and returns whether the document may be a result. The search fetches more
        vectors until k documents pass. `options` are arguments of `Index.search`: recall,
        list_size, ...
        """
        if not isinstance(k, (int, numpy.integer)) or isinstance(k, bool):
            raise TypeError(f"k={k!r}; it is of another type. Pass a whole number")
        if k < 1:
            raise ValueError(f"k is {k}; a search returns at least one result. Pass 1 or more")
        for name in _OF_TUPLE:
            if name in options:
                raise TypeError(f'search() has no argument "{name}"; results are pairs of a document, with its metadata, and a distance. Leave it out')
        refuse_others("Documents.search", options, _OF_SEARCH)
        vector = single(vector, "vector", "a search", "Call search for each vector")
        found = self._reading(lambda index: self._nearest(index, vector, k, filter, check, vectors, options))
        return [] if found is None else found[1]

    def _nearest(
        self,
        index: Index,
        vector: NDArray[Any],
        k: int,
        filter: FilterLike,
        check: Optional[Callable[[Document], bool]],
        vectors: bool,
        options: Dict[str, Any],
    ) -> List[Tuple[Document, float]]:
        """The results of a search of one index."""
        if len(index) == 0:
            return []
        filter = self._with_vectors(index, filter)
        if filter is not None and index.dim == 1 and not index.count(filter):
            return []
        if len(vector) != index.dim:
            raise ValueError(
                f"vector has {len(vector)} dimensions; the vectors in {index.path} have {index.dim}. Pass a vector of {index.dim} dimensions"
            )
        asked = k
        while True:
            ids, distances = index.search(vector, asked, filter=filter, **options)
            known = ids != _NO_ID
            documents = self._read(index, ids[known], vectors)
            found = [(one, float(far)) for one, far in zip(documents, distances[known]) if one is not None and (check is None or check(one))]
            if len(found) >= k or check is None or not known.all() or asked >= MOST_PADDED:
                return found[:k]
            asked = min(asked * 4, MOST_PADDED)

    def _with_vectors(self, index: Index, filter: FilterLike) -> Union[Filter, str, None]:
        """`filter`, with a condition that excludes documents without a vector."""
        filter = self._filter(index, filter)
        if BARE not in index.columns:
            return filter
        wanted = column(BARE).missing()
        if filter is None:
            return wanted
        return wanted & (Filter(filter) if isinstance(filter, str) else filter)

    def _read(self, index: Index, ids: NDArray[numpy.uint64], vectors: bool) -> List[Optional[Document]]:
        # One call reads all parts of a document in one state, even if the document is replaced
        # meanwhile.
        rows, payload, found = index._records(ids, [ID, BARE], vectors)
        by_id: Dict[int, Any] = {} if found is None else dict(zip(found.ids.tolist(), found.vectors))
        documents = []
        for id, row, held in zip(ids.tolist(), rows, payload):
            if not _is_document(held) and row is not None and ID not in row:
                raise StratannError(
                    f"{index.path}: the vector with the id {id} has no document, since Documents did not write it. Delete it: "
                    f"with stratann.open(..) as index: index.delete(filter='not exists {ID}')"
                )
            bare = row is not None and row.get(BARE)
            documents.append(_document(held, None if bare else by_id.get(id, UNREAD)))
        return documents

    # Changes.

    def put(self, documents: Iterable[Document], *, existing: str = "replace") -> List[str]:
        """Writes documents, and returns the ids of the written documents. When the call returns,
        they are durable.

        `existing` applies to a document whose id exists already, in the collection or earlier in
        `documents`. "replace" replaces the earlier document, and "skip" keeps it. "refuse" raises
        DuplicateError, and nothing is written. A wrong value in a document raises an error before
        anything is written; so does a vector that was not read (`UnreadVectorError`). After a crash or on a full disk, the index has only the first
        documents, each of them complete.
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
        of_documents = _vectors_of(given)
        dimension = _dimension_of(given, of_documents)
        there = 0 if index is None else len(index)
        if index is not None and there and self._has_vectors(index):
            if dimension is not None and dimension != index.dim:
                raise ValueError(f"a vector has {dimension} dimensions; the vectors in {index.path} have {index.dim}. Pass vectors of {index.dim} dimensions")
            built = there - (index.count(column(LATE).exists()) if LATE in index.columns else 0)
            late = built < _ENOUGH
            anew = late and there + len(given) > _GROWTH * built
            dimension = index.dim
        else:
            late, anew = False, dimension is not None or not there
            if self._dimension is not None and dimension not in (None, self._dimension):
                raise ValueError(f"a vector has {dimension} dimensions; the store has {self._dimension}. Pass vectors of {self._dimension} dimensions")
            dimension = dimension or self._dimension or (index.dim if there and index is not None else 1)
        columns = Columns({} if index is None or not there else index.columns)
        ids, rows, payload = self._encode(given, columns)
        vectors = _matrix(of_documents, dimension)
        if index is not None and not anew:
            for row in rows if late else []:
                row[LATE] = True
            _check_columns(index.columns, rows)
            index.upsert(vectors, ids, attributes=rows, payload=payload)
            return
        if index is not None and there:
            # An upsert warns by itself.
            warn_of_new(index, sorted(set().union(*rows)))
            vectors, ids, rows, payload = self._joined(index, vectors, ids, rows, payload)
        # A rebuilt index has only the columns of its rows.
        _check_columns((), rows)
        self._handle.build(vectors, ids, rows, payload, self._options_of_build(index))

    def _options_of_build(self, index: Optional[Index]) -> Dict[str, Any]:
        """The options of the build whose index replaces `index`."""
        if index is None:
            return {"metric": self._metric, **self._options}
        self._check_options(index)
        built = {name: value for name, value in self._built_with(index).items() if value is not None}
        return {**built, **self._options, "metric": self._metric}

    def _has_vectors(self, index: Index) -> bool:
        return BARE not in index.columns or index.count(column(BARE).missing()) > 0

    def _joined(
        self, index: Index, vectors: Any, ids: NDArray[numpy.uint64], rows: List[Dict[str, Any]], payload: List[Any]
    ) -> Tuple[Any, NDArray[numpy.uint64], List[Dict[str, Any]], List[Any]]:
        """The given rows, and the rows of the index whose ids are not given."""
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
        """Calls `change` with each document that matches, and replaces the document by the result.
        The vector stays the same. Returns the number of documents. Each document is replaced
        atomically and durably. As in `delete_matching`, if a filter excludes values of a key that
        no document has, the call raises ValueError, since such a filter matches every document.
        """
        if not callable(change):
            raise TypeError(f"change is of type {type(change).__name__}; it is no function. Pass a function that takes a Document and returns the new one")
        with self._handle.lock:
            index = self._check(self._handle.hold())
            if index is None:
                return 0
            # All ids are read first, since a changed document may no longer match, or match a
            # second time.
            every = index.ids(filter=self._filter(index, filter, deleting=True))
            for at in range(0, len(every), _BATCH):
                ids = every[at : at + _BATCH]
                pairs = [(row, one) for row, one in zip(index.attributes(ids), self._read(index, ids, False)) if one is not None]
                given = [dataclasses.replace(_changed(change(one)), id=one.id) for _, one in pairs]
                numbers, rows, payload = self._encode(given, Columns(index.columns))
                for row, (before, _) in zip(rows, pairs):
                    row.pop(BARE, None)
                    row.update({name: True for name in (BARE, LATE) if before and name in before})
                _check_columns(index.columns, rows)
                index.set_attributes(numbers, rows, payload=payload)
            return len(every)

    def delete(self, ids: Iterable[Union[str, uuid.UUID]]) -> int:
        """Deletes documents by their ids, and returns how many of them existed. A single text
        instead of a list of ids raises TypeError, since each of its letters would be an id.
        """
        wanted = list(dict.fromkeys(_texts(listed(ids, "ids", "delete({})", _id))))
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

    def __delitem__(self, id: Union[str, uuid.UUID]) -> None:
        """Deletes the document with this id. Raises KeyError if it does not exist."""
        if not self.delete([id]):
            raise KeyError(id)

    def __setitem__(self, id: Any, document: Any) -> None:
        raise TypeError(f"documents[{id!r}] was to be assigned; a document has its id itself. Call put([document])")

    def delete_matching(self, filter: FilterLike) -> int:
        """Deletes the documents that match `filter`, and returns their number. None and an empty
        text or dict are refused, since they are no filter. `clear` deletes all documents.
        """
        if filter is None:
            raise TypeError("filter is None; a deletion needs a condition. Pass a filter, or call clear() to delete all documents")
        return self._delete(lambda index: self._filter(index, filter, deleting=True))

    def clear(self) -> int:
        """Deletes all documents, and returns their number."""
        return self._delete(lambda _: EVERYTHING)

    def _delete(self, filter_of: Callable[[Index], Union[Filter, str, None]]) -> int:
        with self._handle.lock:
            if self.index() is None:
                return 0
            index = self._handle.hold()
            return 0 if index is None else index.delete(filter=filter_of(index)) or 0

    def flush(self) -> None:
        """Makes every change durable. With the default durability, changes are durable already."""
        with self._handle.lock:
            index = self.index()
            if index is not None:
                index.flush()

    def close(self) -> None:
        """Makes all changes durable and releases the lock, so that another process can make
        changes. The next change takes the lock again. If `close` raises an error or is interrupted
        before the index is closed, the store keeps the lock: call `close` again.
        """
        self._handle.close()

    def __enter__(self) -> "Documents":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()


# Arguments that a method does not have, but another method.
_ELSEWHERE = {
    "get": {"filter": "scan reads the documents that match a filter. Call scan(filter)"},
    "scan": {"ids": "get reads documents by their ids. Call get(ids)"},
    "delete": {"filter": "delete_matching deletes the documents that match a filter. Call delete_matching(filter)"},
    "delete_matching": {"ids": "delete deletes documents by their ids. Call delete(ids)"},
}

for _name, _method in list(vars(Documents).items()):
    # `search` also takes arguments of `Index.search`, and checks names itself.
    if inspect.isfunction(_method) and not _name.startswith("_") and _name != "search":
        setattr(Documents, _name, checked(_method, "stratann.documents", _ELSEWHERE.get(_name, {})))

# The arguments of a search, with those that it passes on to `Index.search`.
_OF_SEARCH = [
    name
    for call in (Documents.search, Index.search)
    for name in inspect.signature(call).parameters
    if name not in ("self", "queries", "options", *_OF_TUPLE)
]


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
    for document in listed(documents, "documents", "put({})", lambda _: "Document(id, content, metadata, vector)"):
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
    unread = [document.id for document in by_id.values() if document.vector is UNREAD]
    if unread:
        raise UnreadVectorError(unread)
    return list(by_id.values())


def _check_columns(there: Iterable[str], rows: List[Dict[str, Any]]) -> None:
    """Raises ValueError if the existing columns and the columns of `rows` together are too many for
    an index.
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


def _id(value: Any) -> str:
    """The text of a single id in a list of ids, for messages."""
    if isinstance(value, (bytes, bytearray)):
        value = value.decode("utf-8", "replace")
    return repr("id" if value is None else str(value))


def _vectors_of(given: List[Document]) -> List[Optional[NDArray[Any]]]:
    remedy = "Pass a Document for each vector"
    return [None if one.vector is None else single(one.vector, f"the vector of {one.id!r}", "a document", remedy) for one in given]


def _dimension_of(given: List[Document], vectors: List[Optional[NDArray[Any]]]) -> Optional[int]:
    found: Optional[int] = None
    for document, vector in zip(given, vectors):
        if vector is None:
            continue
        if found is not None and len(vector) != found:
            raise ValueError(f"the vector of {document.id!r} has {len(vector)} dimensions; one before it has {found}. Pass vectors of one dimension")
        found = len(vector)
    return found


def _matrix(given: List[Optional[NDArray[Any]]], dimension: int) -> NDArray[numpy.float32]:
    # The vector of a document without one may have any values, since no search returns it.
    vectors = numpy.ones((len(given), dimension), numpy.float32)
    for row, vector in zip(vectors, given):
        if vector is not None:
            row[:] = vector
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


def _is_document(payload: Any) -> bool:
    return isinstance(payload, dict) and "id" in payload


def _document(held: Any, vector: Any) -> Optional[Document]:
    if not _is_document(held):
        return None
    return Document(held["id"], values.decode(held.get("content")), values.decode(held.get("metadata") or {}), vector)
