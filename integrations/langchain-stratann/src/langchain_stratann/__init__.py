"""StratANN for LangChain: `StratannVectorStore`, a vector store in a folder on disk."""

from .vectorstores import StratannVectorStore

__all__ = ["StratannVectorStore"]
