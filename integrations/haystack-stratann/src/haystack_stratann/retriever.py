"""A component of pipelines that finds documents by their embeddings."""

from __future__ import annotations

from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.types import FilterPolicy, apply_filter_policy

from .document_store import StratannDocumentStore


@component
class StratannEmbeddingRetriever:
    """Finds the documents of a `StratannDocumentStore` that are nearest to an embedding.

    :param document_store: The store.
    :param filters: The default filters. `filter_policy` decides how filters of `run` combine with
    them.
    :param top_k: The number of documents to return.
    :param scale_score: Whether scores are from 0 to 1, instead of the cosine, the inner product or
    minus the squared distance.
    :param return_embedding: Whether documents are returned with their embeddings.
    :param filter_policy: Whether filters of `run` replace the default filters, or a document must
    match both.
    :param search: Arguments of `stratann.Index.search`, such as `{"recall": 0.95}`.
    """

    def __init__(
        self,
        document_store: StratannDocumentStore,
        *,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        scale_score: bool = False,
        return_embedding: bool = False,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
        search: dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(document_store, StratannDocumentStore):
            raise TypeError(f"document_store is of type {type(document_store).__name__}; the retriever searches only a StratannDocumentStore. Pass one")
        if top_k <= 0:
            raise ValueError(f"top_k is {top_k}; a search returns at least one document. Pass 1 or more")
        self.document_store = document_store
        self.filters = filters
        self.top_k = top_k
        self.scale_score = scale_score
        self.return_embedding = return_embedding
        self.filter_policy = FilterPolicy.from_str(filter_policy) if isinstance(filter_policy, str) else filter_policy
        self.search = search

    def to_dict(self) -> dict[str, Any]:
        """The arguments of the component, as a dict."""
        return default_to_dict(
            self,
            document_store=self.document_store.to_dict(),
            filters=self.filters,
            top_k=self.top_k,
            scale_score=self.scale_score,
            return_embedding=self.return_embedding,
            filter_policy=self.filter_policy.value,
            search=self.search,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> StratannEmbeddingRetriever:
        """Makes the component that `to_dict` described."""
        given = dict(data["init_parameters"])
        if isinstance(given["document_store"], dict):
            given["document_store"] = StratannDocumentStore.from_dict(given["document_store"])
        made: StratannEmbeddingRetriever = default_from_dict(cls, {**data, "init_parameters": given})
        return made

    @component.output_types(documents=list[Document])
    def run(self, query_embedding: list[float], filters: dict[str, Any] | None = None, top_k: int | None = None) -> dict[str, list[Document]]:
        """The nearest documents, nearest first."""
        return {"documents": self.document_store.embedding_retrieval(query_embedding, **self._options(filters, top_k))}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query_embedding: list[float], filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """As `run`, awaited."""
        return {"documents": await self.document_store.embedding_retrieval_async(query_embedding, **self._options(filters, top_k))}

    def _options(self, filters: dict[str, Any] | None, top_k: int | None) -> dict[str, Any]:
        return {
            "filters": apply_filter_policy(self.filter_policy, self.filters, filters),
            "top_k": self.top_k if top_k is None else top_k,
            "scale_score": self.scale_score,
            "return_embedding": self.return_embedding,
            "search": self.search,
        }
