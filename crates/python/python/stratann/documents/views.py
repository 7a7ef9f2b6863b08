"""The ids and documents of a store, as views of a dict. A view has no copy of the documents: it
shows the documents that the store has now.
"""

from __future__ import annotations

from collections.abc import ItemsView, ValuesView
from typing import TYPE_CHECKING, Any, Iterator, Tuple

if TYPE_CHECKING:
    from .store import Document


class Items(ItemsView):  # type: ignore[type-arg]
    """Pairs of an id and its document. A scan reads many documents at once, and a lookup of each id
    would read one.
    """

    _mapping: Any

    def __iter__(self) -> "Iterator[Tuple[str, Document]]":
        return ((document.id, document) for document in self._mapping.scan())


class Values(ValuesView):  # type: ignore[type-arg]
    """All documents."""

    _mapping: Any

    def __iter__(self) -> "Iterator[Document]":
        return iter(self._mapping.scan())
