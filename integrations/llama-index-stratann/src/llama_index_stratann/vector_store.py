"""A vector store in a folder on disk.

    store = StratannVectorStore(path="notes.idx", memory="256MiB")
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex.from_documents(documents, storage_context=context)
    index = VectorStoreIndex.from_vector_store(store)      # in a later program
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import stratann
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
from stratann.documents import Document, Documents

from .filters import Wanted, has_nothing, translate

# Filters find the nodes of a document by these keys of metadata, as in other stores.
_OF_DOCUMENT = ("ref_doc_id", "doc_id", "document_id")
_CANDIDATES = 4


class StratannVectorStore(BasePydanticVectorStore):
    """Nodes in the folder of a StratANN index, which may be larger than memory. The first node
    creates the folder.

    If the id of a node exists already, the new node replaces the old node. When `add` returns, all
    nodes are durable. After a crash, the store has a node completely or not at all. Similarities
    are the cosine, the inner product, or 1 / (1 + squared distance).
    """

    stores_text: bool = True
    flat_metadata: bool = False
    path: str = Field(description="The folder. One process at a time makes changes, from its first change to `close`. Any number of processes may search.")
    metric: str = Field(default="cosine", description='"cosine", "ip" or "l2". An existing index must have the same metric.')
    memory: int | str | None = Field(default=None, description='The maximum memory of searches, in bytes or as "64MiB".')
    filterable: list[str] | None = Field(default=None, description="The keys of metadata that filters may use, at most 1024. None means all keys.")
    options: dict[str, Any] = Field(default_factory=dict, description="Arguments of `stratann.build`, such as `preset`.")

    _documents: Documents = PrivateAttr()

    def __init__(self, path: str, **kwargs: Any) -> None:
        super().__init__(path=str(path), **kwargs)  # type: ignore[call-arg]
        filterable = None if self.filterable is None else [*self.filterable, *_OF_DOCUMENT]
        self._documents = Documents(self.path, metric=self.metric, memory=self.memory, filterable=filterable, **self.options)

    @classmethod
    def class_name(cls) -> str:
        """LlamaIndex's name of the class."""
        return "StratannVectorStore"

    @property
    def client(self) -> stratann.Index | None:
        """The current index; None before the first node."""
        return self._documents.index()

    def close(self) -> None:
        """Makes all changes durable and releases the lock, so that another process can make
        changes. The store stays open for searches.
        """
        self._documents.close()

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Adds nodes with embeddings, and returns their ids. If an id exists already, the new node
        replaces the old node.
        """
        self._documents.put(map(_stored, nodes))
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Deletes the nodes of a document."""
        self._documents.delete_matching(self._documents.columns().equal(_OF_DOCUMENT[0], ref_doc_id))

    def delete_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any) -> None:
        """Deletes the nodes with these ids, or the nodes that match filters. With ids and filters,
        deletes the nodes that match both. Without ids and filters, deletes nothing; `clear` deletes
        all nodes.
        """
        if node_ids is None and filters is None:
            return
        if filters is None:
            self._documents.delete(node_ids or [])
            return
        if has_nothing(filters):
            raise ValueError("delete_nodes has a filter without conditions, which matches all nodes. To delete all, call clear(); to delete by ids alone, pass filters=None")
        wanted = self._wanted(filters, node_ids, deleting=True)
        if wanted.check is None:
            self._documents.delete_matching(wanted.filter)
        else:
            self._documents.delete([found.id for found in self._documents.scan(wanted.filter) if wanted.check(found)])

    def clear(self) -> None:
        """Deletes all nodes."""
        self._documents.clear()

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """The nodes with these ids, or the nodes that match filters, with their embeddings. With
        ids and filters, the nodes that match both. Without ids and filters, all nodes.
        """
        if node_ids is not None and filters is None:
            return [_node(found) for found in self._documents.get(node_ids, vectors=True) if found is not None]
        wanted = self._wanted(filters, node_ids)
        found = self._documents.scan(wanted.filter, vectors=True)
        return [_node(one) for one in found if wanted.check is None or wanted.check(one)]

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The nodes nearest to an embedding. The mode is DEFAULT, or MMR for nodes that are near to
        the embedding and unlike each other.

        `kwargs` are arguments of `stratann.Index.search` (recall, list_size, ...), and with MMR
        also `mmr_threshold` and `mmr_prefetch_k`.
        """
        if query.query_embedding is None:
            raise ValueError("a query has no embedding, and StratANN searches by embeddings. To find nodes by filters alone, call `get_nodes`")
        # LlamaIndex's retrievers pass an empty list of ids to mean all nodes.
        wanted = self._wanted(query.filters, query.node_ids or None)
        if query.doc_ids:
            wanted = wanted.and_also(self._documents.columns().is_in(_OF_DOCUMENT[0], query.doc_ids))
        if query.mode == VectorStoreQueryMode.MMR:
            return self._unlike(query, wanted, **kwargs)
        if query.mode != VectorStoreQueryMode.DEFAULT:
            raise ValueError(f"the mode of a query is {query.mode.value}; StratANN has {VectorStoreQueryMode.DEFAULT.value} and {VectorStoreQueryMode.MMR.value}. Pass one of these")
        found = self._documents.search(query.query_embedding, query.similarity_top_k, filter=wanted.filter, check=wanted.check, **kwargs)
        return self._result([(one, self._similarity(distance)) for one, distance in found])

    def _unlike(
        self, query: VectorStoreQuery, wanted: Wanted, mmr_threshold: float | None = None, mmr_prefetch_k: int | None = None, **kwargs: Any
    ) -> VectorStoreQueryResult:
        embedding = query.query_embedding or []
        k = mmr_prefetch_k or query.similarity_top_k * _CANDIDATES
        found = [one for one, _ in self._documents.search(embedding, k, filter=wanted.filter, check=wanted.check, vectors=True, **kwargs)]
        threshold = query.mmr_threshold if mmr_threshold is None else mmr_threshold
        similarities, chosen = get_top_k_mmr_embeddings(
            embedding,
            [one.vector.tolist() for one in found],
            similarity_top_k=query.similarity_top_k,
            embedding_ids=list(range(len(found))),
            mmr_threshold=threshold,
        )
        return self._result([(found[at], similarity) for at, similarity in zip(chosen, similarities)])

    def _wanted(self, filters: MetadataFilters | None, node_ids: list[str] | None, *, deleting: bool = False) -> Wanted:
        columns = self._documents.columns(deleting=deleting)
        wanted = translate(filters, columns)
        return wanted if node_ids is None else wanted.and_also(columns.is_in(columns.ID, node_ids))

    def _similarity(self, distance: float) -> float:
        if self.metric == "l2":
            return 1 / (1 + distance)
        return 1 - distance if self.metric == "cosine" else -distance

    @staticmethod
    def _result(found: list[tuple[Document, float]]) -> VectorStoreQueryResult:
        return VectorStoreQueryResult(
            nodes=[_node(one) for one, _ in found], similarities=[similarity for _, similarity in found], ids=[one.id for one, _ in found]
        )

    def persist(self, persist_path: str = "", fs: Any = None) -> None:
        """Makes changes durable. The nodes are in the folder already, so `persist_path` is not
        used.
        """
        self._documents.flush()

    # Asynchronous methods. They run in threads, so that reads of the index do not block the event
    # loop.

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """As `add`."""
        return await asyncio.to_thread(self.add, nodes, **kwargs)

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """As `delete`."""
        await asyncio.to_thread(self.delete, ref_doc_id, **delete_kwargs)

    async def adelete_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any) -> None:
        """As `delete_nodes`."""
        await asyncio.to_thread(self.delete_nodes, node_ids, filters, **delete_kwargs)

    async def aclear(self) -> None:
        """As `clear`."""
        await asyncio.to_thread(self.clear)

    async def aget_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """As `get_nodes`."""
        return await asyncio.to_thread(self.get_nodes, node_ids, filters)

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """As `query`."""
        return await asyncio.to_thread(self.query, query, **kwargs)


def _stored(node: BaseNode) -> Document:
    """A node as a document. Its metadata is for filters, and everything else is the document's
    content.
    """
    held = node_to_metadata_dict(node, remove_text=False)
    content = json.loads(held["_node_content"])
    content["metadata"] = {key: value for key, value in content["metadata"].items() if key in _OF_DOCUMENT}
    metadata = {key: value for key, value in node.metadata.items() if key not in _OF_DOCUMENT}
    metadata.update({key: node.ref_doc_id for key in _OF_DOCUMENT if node.ref_doc_id is not None})
    return Document(node.node_id, {"node": content, "type": held["_node_type"]}, metadata, node.get_embedding())


def _node(found: Document) -> BaseNode:
    content = found.content["node"]
    node = metadata_dict_to_node({"_node_content": json.dumps(content), "_node_type": found.content["type"]})
    node.metadata = {**{key: value for key, value in found.metadata.items() if key not in _OF_DOCUMENT}, **content["metadata"]}
    node.embedding = None if found.vector is None else found.vector.tolist()
    return node
