"""StratANN for MTEB: `StratannSearchIndex`, a search index of encoders on disk
(`IndexEncoderSearchProtocol`).
"""

from .search_index import StratannSearchIndex

__all__ = ["StratannSearchIndex"]
