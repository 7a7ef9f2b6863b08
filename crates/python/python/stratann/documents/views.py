"""The ids and documents of a store, as views of a dict. A view has no copy of the documents: it
shows the documents that the store has now.
"""

from __future__ import annotations

import uuid
from collections.abc import ItemsView, ValuesView
from typing import Any, Iterator, Tuple

from .document import UNREAD, Document


def _has(documents: Any, id: object, document: object) -> bool:
    """Whether the store has exactly this document under this id."""
    if not isinstance(id, (str, uuid.UUID)) or not isinstance(document, Document):
        return False
    (found,) = documents.get([id], vectors=document.vector is not UNREAD)
    return bool(found == document)


class Items(ItemsView):  # type: ignore[type-arg]
    """Pairs of an id and its document. A scan reads many documents at once, and a lookup of each id
    would read one.
    """

    _mapping: Any

    def __iter__(self) -> "Iterator[Tuple[str, Document]]":
        return ((document.id, document) for document in self._mapping.scan())

    def __contains__(self, item: object) -> bool:
        # As in a dict, a value of another form is no pair, and no error.
        return isinstance(item, tuple) and len(item) == 2 and _has(self._mapping, *item)


class Values(ValuesView):  # type: ignore[type-arg]
    """All documents."""

    _mapping: Any

    def __iter__(self) -> "Iterator[Document]":
        return iter(self._mapping.scan())

    def __contains__(self, value: object) -> bool:
        return isinstance(value, Document) and _has(self._mapping, value.id, value)
