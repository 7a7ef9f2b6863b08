"""StratANN for LlamaIndex: `StratannVectorStore`, a vector store in a folder on disk."""

from .vector_store import StratannVectorStore

__all__ = ["StratannVectorStore"]
