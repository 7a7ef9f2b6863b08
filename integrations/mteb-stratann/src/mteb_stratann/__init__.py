"""StratANN for MTEB: `StratannSearchIndex`, a search index of encoders (`IndexEncoderSearchProtocol`) on disk."""

from .search_index import StratannSearchIndex

__all__ = ["StratannSearchIndex"]
