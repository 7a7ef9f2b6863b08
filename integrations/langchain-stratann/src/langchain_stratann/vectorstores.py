"""A vector store in a folder on disk.

    store = StratannVectorStore(embedding, "notes.idx")
    store.add_documents([Document("A cat sleeps.", metadata={"year": 2024})])
    store.similarity_search("Where is the cat?", k=2, filter={"year": {"$gte": 2020}})
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import run_in_executor
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance
from stratann.documents import Document as Stored
from stratann.documents import Documents, listed

from .filters import Filter, translate


class StratannVectorStore(VectorStore):
    """Documents in the folder of a StratANN index, which may be larger than memory. The first
    document creates the folder. A later program can open the folder again.

    If the id of a document exists already, the new document replaces the old document. When
    `add_documents` returns, all documents are durable. After a crash, the store has a document
    completely or not at all.

    Args:
        embedding: The model of embeddings.
        path: The folder. Any number of threads and processes may search. One process at a time
        makes changes, from its first change to `close`.
        metric: "cosine", "ip" or "l2". If the folder has an index, its metric must be the same.
        memory: The maximum memory of searches, in bytes or as a text ("64MiB"). None is no cap.
        filterable: The keys of metadata that filters may use, at most 1024. None means all keys.
        options: Arguments of `stratann.build`, such as `preset`.

    Scores are distances: "cosine" is 1 - cos, "ip" minus the inner product, "l2" the squared
    distance. Smaller is nearer. `similarity_search_with_relevance_scores` returns other scores:
    larger is nearer, and 1 is the best. For "cosine", this score is the cosine, or 0 if the cosine
    is negative. For "ip", this score is the inner product. For "l2", vectors must have
    length 1, and this score is 1 - sqrt(distance / 2), or 0 if this number is negative.
    """

    def __init__(
        self,
        embedding: Embeddings,
        path: str | os.PathLike[str],
        *,
        metric: str = "cosine",
        memory: int | str | None = None,
        filterable: Iterable[str] | None = None,
        **options: Any,
    ) -> None:
        self._embedding = embedding
        self._metric = metric
        self._documents = Documents(path, metric=metric, memory=memory, filterable=filterable, **options)

    @property
    def embeddings(self) -> Embeddings:
        """The model of embeddings."""
        return self._embedding

    @property
    def documents(self) -> Documents:
        """The underlying `stratann.documents.Documents`, which can count, scan, and delete by a
        filter.
        """
        return self._documents

    def close(self) -> None:
        """Makes all changes durable and releases the lock, so that another process can make
        changes. The store stays open for searches.
        """
        self._documents.close()

    # Changes.

    def add_texts(
        self, texts: Iterable[str], metadatas: list[dict[str, Any]] | None = None, *, ids: Sequence[str | None] | None = None, **kwargs: Any
    ) -> list[str]:
        """Embeds and adds texts, and returns their ids. If an id exists already, the new text
        replaces the old text. Texts without an id get UUIDs.
        """
        texts = listed(texts, "texts", "add_texts({})")
        named = _named(texts, metadatas, ids)
        return self._put(texts, named, self._embedding.embed_documents(texts) if texts else [])

    async def aadd_texts(
        self, texts: Iterable[str], metadatas: list[dict[str, Any]] | None = None, *, ids: Sequence[str | None] | None = None, **kwargs: Any
    ) -> list[str]:
        """As `add_texts`. Awaits the model's `aembed_documents`, and writes to the store in a
        thread.
        """
        texts = listed(texts, "texts", "add_texts({})")
        named = _named(texts, metadatas, ids)
        vectors = await self._embedding.aembed_documents(texts) if texts else []
        return await run_in_executor(None, self._put, texts, named, vectors)

    def add_embeddings(
        self, text_embeddings: Iterable[tuple[str, list[float]]], metadatas: list[dict[str, Any]] | None = None, *, ids: Sequence[str | None] | None = None
    ) -> list[str]:
        """Adds texts with given embeddings, as `add_texts` does."""
        pairs = list(text_embeddings)
        texts = [text for text, _ in pairs]
        return self._put(texts, _named(texts, metadatas, ids), [vector for _, vector in pairs])

    def _put(self, texts: list[str], named: list[tuple[str, dict[str, Any]]], vectors: list[list[float]]) -> list[str]:
        if len(vectors) != len(texts):
            raise ValueError(f"the model returned {len(vectors)} embeddings of {len(texts)} texts; each text needs one. Repair the model")
        self._documents.put(Stored(id, text, metadata, vector) for text, (id, metadata), vector in zip(texts, named, vectors))
        return [id for id, _ in named]

    def delete(self, ids: list[str] | None = None, *, filter: Filter = None, **kwargs: Any) -> bool:
        """Deletes the documents with these ids, or the documents that match a filter. Without ids
        and filter, deletes all documents. Ids that do not exist are ignored.
        """
        if ids is not None and filter is not None:
            raise ValueError("delete takes ids or a filter. Pass one of them")
        if isinstance(filter, (Mapping, str)) and not filter:
            raise ValueError(f"delete has the empty filter {filter!r}, which matches all documents. To delete all, call delete() without a filter")
        if ids is not None:
            self._documents.delete(ids)
        elif filter is None:
            self._documents.clear()
        else:
            self._documents.delete_matching(translate(filter, self._documents.columns(deleting=True)))
        return True

    # Searches.

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents with these ids, in the order of the ids. Ids that do not exist are ignored.
        """
        return [_document(found) for found in self._documents.get(ids) if found is not None]

    def similarity_search(self, query: str, k: int = 4, *, filter: Filter = None, **kwargs: Any) -> list[Document]:
        """The k documents nearest to a text. `kwargs` are arguments of `stratann.Index.search`:
        recall, list_size, ...
        """
        return self.similarity_search_by_vector(self._embedding.embed_query(query), k, filter=filter, **kwargs)

    async def asimilarity_search(self, query: str, k: int = 4, *, filter: Filter = None, **kwargs: Any) -> list[Document]:
        """As `similarity_search`. Awaits the model's `aembed_query`, and searches in a thread."""
        return await self.asimilarity_search_by_vector(await self._embedding.aembed_query(query), k, filter=filter, **kwargs)

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, *, filter: Filter = None, **kwargs: Any) -> list[Document]:
        """The k documents nearest to a vector."""
        return [document for document, _ in self.similarity_search_with_score_by_vector(embedding, k, filter=filter, **kwargs)]

    async def asimilarity_search_by_vector(self, embedding: list[float], k: int = 4, *, filter: Filter = None, **kwargs: Any) -> list[Document]:
        """As `similarity_search_by_vector`, in a thread."""
        return await run_in_executor(None, self.similarity_search_by_vector, embedding, k, filter=filter, **kwargs)

    def similarity_search_with_score(self, query: str, k: int = 4, *, filter: Filter = None, **kwargs: Any) -> list[tuple[Document, float]]:
        """The k documents nearest to a text, and their distances."""
        return self.similarity_search_with_score_by_vector(self._embedding.embed_query(query), k, filter=filter, **kwargs)

    async def asimilarity_search_with_score(self, query: str, k: int = 4, *, filter: Filter = None, **kwargs: Any) -> list[tuple[Document, float]]:
        """As `similarity_search_with_score`. Awaits the model's `aembed_query`, and searches in a
        thread.
        """
        vector = await self._embedding.aembed_query(query)
        return await run_in_executor(None, self.similarity_search_with_score_by_vector, vector, k, filter=filter, **kwargs)

    def similarity_search_with_score_by_vector(
        self, embedding: list[float], k: int = 4, *, filter: Filter = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The k documents nearest to a vector, and their distances."""
        return [(_document(found), distance) for found, distance in self._search(embedding, k, filter, **kwargs)]

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, *, filter: Filter = None, **kwargs: Any
    ) -> list[Document]:
        """Chooses k of the `fetch_k` documents nearest to a text, so that these k are near to the
        text and unlike each other. With a `lambda_mult` of 1, only nearness to the text counts;
        with 0, only unlikeness.
        """
        return self.max_marginal_relevance_search_by_vector(self._embedding.embed_query(query), k, fetch_k, lambda_mult, filter=filter, **kwargs)

    async def amax_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, *, filter: Filter = None, **kwargs: Any
    ) -> list[Document]:
        """As `max_marginal_relevance_search`. Awaits the model's `aembed_query`, and searches in a
        thread.
        """
        vector = await self._embedding.aembed_query(query)
        return await run_in_executor(None, self.max_marginal_relevance_search_by_vector, vector, k, fetch_k, lambda_mult, filter=filter, **kwargs)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, *, filter: Filter = None, **kwargs: Any
    ) -> list[Document]:
        """As `max_marginal_relevance_search`, for a vector."""
        found = [document for document, _ in self._search(embedding, fetch_k, filter, vectors=True, **kwargs)]
        query = numpy.array(embedding, numpy.float32)
        chosen = maximal_marginal_relevance(query, [document.vector for document in found], lambda_mult=lambda_mult, k=k)
        return [_document(found[at]) for at in chosen]

    def _search(self, vector: list[float], k: int, filter: Filter, **kwargs: Any) -> list[tuple[Stored, float]]:
        wanted = translate(filter, self._documents.columns())
        return self._documents.search(vector, k, filter=wanted, **kwargs)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return {"cosine": lambda distance: max(0.0, 1 - distance), "ip": lambda distance: -distance, "l2": _of_squared}[self._metric]

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        path: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> StratannVectorStore:
        """Opens or creates the store in the folder `path`, and adds these texts.
        """
        if path is None:
            raise TypeError("a StratannVectorStore needs a folder on disk. Pass path=")
        store = cls(embedding, path, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store


    @classmethod
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        path: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> StratannVectorStore:
        """As `from_texts`. Awaits the model's `aembed_documents`."""
        store = cls.from_texts([], embedding, path=path, **kwargs)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store


def _of_squared(distance: float) -> float:
    return max(0.0, 1 - math.sqrt(max(0.0, distance) / 2))


def _named(texts: list[str], metadatas: list[dict[str, Any]] | None, ids: Sequence[str | None] | None) -> list[tuple[str, dict[str, Any]]]:
    """The id and the metadata of each text."""
    for what, given in (("metadatas", metadatas), ("ids", ids)):
        if given is None:
            continue
        listed(given, what, f"{what}={{}}")
        if len(given) != len(texts):
            raise ValueError(f"there are {len(given)} {what} for {len(texts)} texts. Pass one for each text")
    ids = [None] * len(texts) if ids is None else ids
    metadatas = [{}] * len(texts) if metadatas is None else metadatas
    return [(id or str(uuid.uuid4()), metadata or {}) for id, metadata in zip(ids, metadatas)]


def _document(found: Stored) -> Document:
    return Document(id=found.id, page_content=found.content, metadata=dict(found.metadata))
