"""A document, and the mark of a vector that was not read."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any, Dict, Final, Mapping

import numpy

REMEDY = "Read documents with their vectors: get(ids, vectors=True), scan(vectors=True) or search(.., vectors=True)"


class Unread:
    """The type of `UNREAD`."""

    def __repr__(self) -> str:
        return "UNREAD"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        # A copy, even of another process, is the same object.
        return "UNREAD"

    def __getattr__(self, name: str) -> Any:
        """Called for a name that the class does not have, such as a method of arrays."""
        raise AttributeError(f"the vector of a document was not read, so it has no {name!r}. {REMEDY}")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"the vector of a document was not read. {REMEDY}")


UNREAD: Final = Unread()
"""The vector of a document that was read without its vector."""


@dataclasses.dataclass(frozen=True)
class Document:
    """A document: its id (a UUID is converted to a str), its content, its metadata, and its vector,
    (d,). None as metadata is an empty dict.

    None as vector is a document without a vector. If a document was read without its vector, the
    vector is `UNREAD`, which `put` refuses (`UnreadVectorError`). Documents are equal if all their
    parts are equal. Vectors are compared as float32, the numbers that a store keeps.
    """

    id: str
    content: Any = None
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    vector: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.id, uuid.UUID):
            object.__setattr__(self, "id", str(self.id))
        elif isinstance(self.id, str):
            # A text of numpy or a member of an enumeration becomes its plain text.
            object.__setattr__(self, "id", str.__str__(self.id))
        if not isinstance(self.metadata, Mapping):
            object.__setattr__(self, "metadata", {} if self.metadata is None else self._dict(self.metadata))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Document):
            return NotImplemented
        same = (self.id, self.content, self.metadata) == (other.id, other.content, other.metadata)
        return same and _are_equal(self.vector, other.vector)

    def _dict(self, metadata: Any) -> Dict[Any, Any]:
        try:
            return dict(metadata)
        except (TypeError, ValueError):
            raise TypeError(f"the metadata of {self.id!r} is {metadata!r}; metadata is a dict of values by key. Pass a dict, or None") from None


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two vectors of documents are equal."""
    if one is other:
        return True
    if any(vector is None or vector is UNREAD for vector in (one, other)):
        return False
    try:
        return numpy.array_equal(numpy.asarray(one, numpy.float32), numpy.asarray(other, numpy.float32))
    except (TypeError, ValueError):
        # One of them is no vector.
        return False
