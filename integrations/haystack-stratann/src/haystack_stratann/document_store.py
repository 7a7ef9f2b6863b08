"""A document store in a folder on disk.

    store = StratannDocumentStore("notes.idx", memory="256MiB")
    store.write_documents([Document(content="A cat sleeps.", meta={"year": 2024}, embedding=[...])])
    recent = {"field": "meta.year", "operator": ">=", "value": 2020}
    StratannEmbeddingRetriever(store, top_k=3).run(query_embedding, filters=recent)
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any

from haystack import Document, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from stratann.documents import Document as Stored
from stratann.documents import UNREAD, Documents, DuplicateError

from .filters import translate

_KEPT = ("content", "blob", "sparse_embedding")
_EXISTING = {
    DuplicatePolicy.NONE: "refuse",
    DuplicatePolicy.FAIL: "refuse",
    DuplicatePolicy.SKIP: "skip",
    DuplicatePolicy.OVERWRITE: "replace",
}
_SCALED: dict[str, Callable[[float], float]] = {
    "cosine": lambda score: (score + 1) / 2,
    "ip": lambda score: 1 / (1 + math.exp(-score / 100)),
    "l2": lambda score: 1 / (1 - score),
}


class StratannDocumentStore:
    """Documents in the folder of a StratANN index, which may be larger than memory. The first
    document creates the folder.

    A document may have no embedding. Filters find such a document, but searches do not. Sparse
    embeddings are stored, but not searched. When `write_documents` returns, all documents are
    durable. After a crash, the store has a document completely or not at all.

    :param path: The folder. Any number of threads and processes may read. One process at a time
    makes changes, from its first change to `close`.
    :param metric: "cosine", "ip" or "l2". If the folder has an index, its metric must be the same.
    :param embedding_dim: The dimension of the embeddings. None takes the dimension of the first
    embedding.
    :param memory: The maximum memory of searches, in bytes or as a text ("64MiB"). None is no cap.
    :param filterable: The keys of meta that filters may use, at most 1024. None means all keys.
    :param options: Arguments of `stratann.build`, such as `{"preset": "spann"}`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        metric: str = "cosine",
        embedding_dim: int | None = None,
        memory: int | str | None = None,
        filterable: list[str] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.path = str(path)
        self.metric = metric
        self.embedding_dim = embedding_dim
        self.memory = memory
        self.filterable = filterable
        self.options = options
        self._documents = Documents(
            self.path, metric=metric, dimension=embedding_dim, memory=memory, filterable=filterable, moments=True, **(options or {})
        )

    @property
    def documents(self) -> Documents:
        """The underlying `stratann.documents.Documents`."""
        return self._documents

    def to_dict(self) -> dict[str, Any]:
        """The arguments of the store, as a dict."""
        return default_to_dict(
            self,
            path=self.path,
            metric=self.metric,
            embedding_dim=self.embedding_dim,
            memory=self.memory,
            filterable=self.filterable,
            options=self.options,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> StratannDocumentStore:
        """Makes the store that `to_dict` described."""
        made: StratannDocumentStore = default_from_dict(cls, data)
        return made

    def close(self) -> None:
        """Makes all changes durable and releases the lock, so that another process can make
        changes. The store stays open for searches.
        """
        self._documents.close()

    # Haystack's protocol.

    def count_documents(self) -> int:
        """The number of documents."""
        return len(self._documents)

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """All documents, or the documents that match a filter, in no particular order."""
        wanted = translate(filters, self._documents.columns())
        return [_document(found) for found in self._documents.scan(wanted, vectors=True)]

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Writes documents, and returns their number. If an id exists already and the policy is
        FAIL or is not given, the call raises DuplicateDocumentError and writes nothing.
        """
        if not isinstance(documents, list) or not all(isinstance(document, Document) for document in documents):
            raise ValueError(f"documents is {documents!r}; the store writes lists of documents. Pass a list of haystack.Document")
        try:
            written = self._documents.put(map(_stored, documents), existing=_EXISTING[policy])
        except DuplicateError as error:
            raise DuplicateDocumentError(str(error)) from error
        return len(documents) if policy == DuplicatePolicy.OVERWRITE else len(written)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Deletes documents by their ids. Ids that do not exist are ignored."""
        self._documents.delete(document_ids)

    # Further methods that other stores have.

    def delete_all_documents(self) -> None:
        """Deletes all documents."""
        self._documents.clear()

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Deletes the documents that match a filter, and returns their number. An empty filter is
        refused; to delete all documents, use `delete_all_documents`.
        """
        if not filters:
            raise FilterError(f"delete_by_filter has the empty filter {filters!r}, which matches all documents. To delete all, call delete_all_documents")
        return self._documents.delete_matching(translate(filters, self._documents.columns(deleting=True)))

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Sets keys of the meta of the documents that match a filter, and returns the number of
        these documents.
        """
        wanted = translate(filters, self._documents.columns())
        return self._documents.update(wanted, lambda found: dataclasses.replace(found, metadata={**found.metadata, **meta}))

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """The number of documents that match a filter."""
        return self._documents.count(translate(filters, self._documents.columns()))

    def count_unique_metadata_by_filter(self, filters: dict[str, Any], metadata_fields: list[str]) -> dict[str, int]:
        """The number of different values of each key in the documents that match a filter. Reads
        all matching documents.
        """
        found: dict[str, set[Any]] = {_key(field): set() for field in metadata_fields}
        for document in self._documents.scan(translate(filters, self._documents.columns())):
            for key in found.keys() & document.metadata.keys():
                found[key].add(_distinct(document.metadata[key]))
        return {key: len(values) for key, values in found.items()}

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """The keys of meta that filters can use, and the types of their values: "string", "number",
        "boolean", ... Several types are separated by commas.
        """
        if not len(self._documents):
            return {}
        columns = self._documents.columns()
        return {key: {"type": ", ".join(columns.kinds(key))} for key in columns.keys() if columns.kinds(key)}

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """The smallest and the largest number under a key. If the key has no numbers, the first and
        the last text in sorted order. If it has no texts either, None and None. Reads all documents
        that have the key.
        """
        values = [value for value in self._values(metadata_field, None) if not isinstance(value, bool)]
        numbers = [value for value in values if isinstance(value, (int, float))]
        comparable: list[Any] = numbers or [value for value in values if isinstance(value, str)]
        return {"min": min(comparable, default=None), "max": max(comparable, default=None)}

    def get_metadata_field_unique_values(
        self, metadata_field: str, search_term: str | None = None, from_: int = 0, size: int = 10, filters: dict[str, Any] | None = None
    ) -> tuple[list[Any], int]:
        """The different values of a key that contain `search_term`, in upper or lower case, sorted
        as texts. Returns `size` values from position `from_` on (the first position is 0), and the
        number of all different values that contain `search_term`.
        """
        found = {_distinct(value): value for value in self._values(metadata_field, filters)}
        kept = [value for value in found.values() if search_term is None or search_term.lower() in str(value).lower()]
        kept.sort(key=lambda value: (str(value), type(value).__name__))
        return kept[from_ : from_ + size], len(kept)

    def _values(self, field: str, filters: dict[str, Any] | None) -> list[Any]:
        """All values of a key in the matching documents. Each item of a list is a value."""
        key, columns = _key(field), self._documents.columns()
        wanted, there = translate(filters, columns), columns.exists(key)
        values: list[Any] = []
        for document in self._documents.scan(there if wanted is None else wanted & there):
            value = document.metadata.get(key)
            values.extend(value if isinstance(value, list) else [value])
        return values

    # Searches, for the retriever.

    def embedding_retrieval(
        self,
        query_embedding: list[float],
        *,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        scale_score: bool = False,
        return_embedding: bool = False,
        search: dict[str, Any] | None = None,
    ) -> list[Document]:
        """The nearest documents with their scores. A score is the cosine, the inner product, or
        minus the squared distance. With `scale_score`, scores are scaled to 0 to 1.

        `search` has arguments of `stratann.Index.search`: recall, list_size, ...
        """
        if not top_k:
            return []
        wanted = translate(filters, self._documents.columns())
        found = self._documents.search(query_embedding, top_k, filter=wanted, vectors=return_embedding, **(search or {}))
        documents = []
        for stored, distance in found:
            score = 1 - distance if self.metric == "cosine" else -distance
            documents.append(_document(stored, _SCALED[self.metric](score) if scale_score else score))
        return documents

    # Asynchronous methods. They run in threads, so that reads of the index do not block the event
    # loop.

    async def count_documents_async(self) -> int:
        """As `count_documents`."""
        return await asyncio.to_thread(self.count_documents)

    async def filter_documents_async(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """As `filter_documents`."""
        return await asyncio.to_thread(self.filter_documents, filters)

    async def write_documents_async(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """As `write_documents`."""
        return await asyncio.to_thread(self.write_documents, documents, policy)

    async def delete_documents_async(self, document_ids: list[str]) -> None:
        """As `delete_documents`."""
        await asyncio.to_thread(self.delete_documents, document_ids)

    async def delete_all_documents_async(self) -> None:
        """As `delete_all_documents`."""
        await asyncio.to_thread(self.delete_all_documents)

    async def delete_by_filter_async(self, filters: dict[str, Any]) -> int:
        """As `delete_by_filter`."""
        return await asyncio.to_thread(self.delete_by_filter, filters)

    async def update_by_filter_async(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """As `update_by_filter`."""
        return await asyncio.to_thread(self.update_by_filter, filters, meta)

    async def count_documents_by_filter_async(self, filters: dict[str, Any]) -> int:
        """As `count_documents_by_filter`."""
        return await asyncio.to_thread(self.count_documents_by_filter, filters)

    async def count_unique_metadata_by_filter_async(self, filters: dict[str, Any], metadata_fields: list[str]) -> dict[str, int]:
        """As `count_unique_metadata_by_filter`."""
        return await asyncio.to_thread(self.count_unique_metadata_by_filter, filters, metadata_fields)

    async def get_metadata_fields_info_async(self) -> dict[str, dict[str, str]]:
        """As `get_metadata_fields_info`."""
        return await asyncio.to_thread(self.get_metadata_fields_info)

    async def get_metadata_field_min_max_async(self, metadata_field: str) -> dict[str, Any]:
        """As `get_metadata_field_min_max`."""
        return await asyncio.to_thread(self.get_metadata_field_min_max, metadata_field)

    async def get_metadata_field_unique_values_async(
        self, metadata_field: str, search_term: str | None = None, from_: int = 0, size: int = 10, filters: dict[str, Any] | None = None
    ) -> tuple[list[Any], int]:
        """As `get_metadata_field_unique_values`."""
        return await asyncio.to_thread(self.get_metadata_field_unique_values, metadata_field, search_term, from_, size, filters)

    async def embedding_retrieval_async(self, query_embedding: list[float], **options: Any) -> list[Document]:
        """As `embedding_retrieval`."""
        return await asyncio.to_thread(lambda: self.embedding_retrieval(query_embedding, **options))


def _stored(document: Document) -> Stored:
    kept = document.to_dict(flatten=False)
    return Stored(document.id, {name: kept[name] for name in _KEPT if kept.get(name) is not None}, document.meta, document.embedding)


def _document(found: Stored, score: float | None = None) -> Document:
    made: Document = Document.from_dict({"id": found.id, "meta": dict(found.metadata), **(found.content or {})})
    return dataclasses.replace(made, score=score, embedding=None if found.vector is None or found.vector is UNREAD else found.vector.tolist())


def _key(field: str) -> str:
    return field.removeprefix("meta.")


def _distinct(value: Any) -> Any:
    """A hashable key that is different for different values. 1, 1.0, True and "1" are four values.
    """
    return type(value).__name__, repr(value)
