"""Documents by their ids: text and metadata beside vectors in an index, as the adapters of `integrations/` keep them.

    documents = stratann.documents.Documents("notes.idx", metric="cosine")
    documents.put([stratann.documents.Document("a", "A cat sleeps.", {"year": 2024}, vector)])
    [(found, distance)] = documents.search(query, k=1, filter="year >= 2020")

Ids are any str; metadata is a dict, which filters ask by its keys; content is anything that JSON can say.
"""

from .columns import Columns
from .several import listed
from .store import Document, Documents, DuplicateError, IdCollisionError

__all__ = ["Columns", "Document", "Documents", "DuplicateError", "IdCollisionError", "listed"]
