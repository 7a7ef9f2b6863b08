"""StratANN for Haystack: `StratannDocumentStore`, a document store in a folder on disk, and
`StratannEmbeddingRetriever`.
"""

from .document_store import StratannDocumentStore
from .retriever import StratannEmbeddingRetriever

__all__ = ["StratannDocumentStore", "StratannEmbeddingRetriever"]
