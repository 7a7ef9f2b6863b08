"""A store of documents: an index stores each document's vector, text and metadata under the
document's id. The adapters in `integrations/` are built on this package.

    documents = stratann.documents.Documents("notes.idx", metric="cosine")
    documents.put([stratann.documents.Document("a", "A cat sleeps.", {"year": 2024}, vector)])
    [(found, distance)] = documents.search(query, k=1, filter="year >= 2020")

An id is any str. Metadata is a dict whose keys filters can use. Content is any JSON value.
"""

from .columns import Columns
from .document import UNREAD, Document
from .several import listed
from .store import Documents, DuplicateError, IdCollisionError, UnreadVectorError

__all__ = ["UNREAD", "Columns", "Document", "Documents", "DuplicateError", "IdCollisionError", "UnreadVectorError", "listed"]
