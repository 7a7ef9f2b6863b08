"""Arguments that are several of a kind: ids, texts, keys, documents. One alone is refused: of a text Python would give its characters."""

from __future__ import annotations

from typing import Any, List

_LONG = 60
"""Characters of a value that a message shows in full."""


def listed(given: Any, argument: str, call: str) -> List[Any]:
    """The values of an argument, as a list. Raises TypeError for one text, and for what has no values.

    `call` is how a list is passed, which the message shows: "delete({})" becomes `delete(['12'])`.
    """
    if hasattr(given, "__iter__") and not isinstance(given, (str, bytes, bytearray)):
        return list(given)
    shown, inside = repr(given), repr(given)
    if len(shown) > _LONG:
        shown, inside = f"of type {type(given).__name__}", ".."
    remedy = "Pass a list, " + call.format(f"[{inside}]")
    if isinstance(given, (str, bytes, bytearray)):
        raise TypeError(f"{argument} is {shown}; each of its characters would count as one of {argument}. {remedy}")
    raise TypeError(f"{argument} is {shown}; there may be several. {remedy}")
