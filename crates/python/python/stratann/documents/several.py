"""Arguments with several values: ids, texts, keys, documents. A single text is refused, since
Python would use each of its characters as a value.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional

_LONG = 60
"""The maximum length of a value that a message shows in full, in characters."""


def listed(given: Any, argument: str, call: str, one: Optional[Callable[[Any], str]] = None) -> List[Any]:
    """The values of an argument, as a list. Raises TypeError for a single text, and for an object
    without values.

    The message shows with `call` how to pass a list: "delete({})" becomes `delete(['12'])`. `one`
    returns the text of the single value in that list, in a form that the call accepts. Without
    `one`, this text is the `repr` of the value.
    """
    if getattr(given, "ndim", None) == 0 and hasattr(given, "item"):
        # A scalar of numpy has the method, and an array of one has no values to iterate over.
        given = given.item()
    if hasattr(given, "__iter__") and not isinstance(given, (str, bytes, bytearray)):
        return list(given)
    shown, inside = repr(given), repr(given) if one is None else one(given)
    if len(shown) > _LONG:
        shown = f"of type {type(given).__name__}"
    remedy = "Pass a list, " + call.format(f"[{inside if len(inside) <= _LONG else '..'}]")
    if isinstance(given, (str, bytes, bytearray)):
        raise TypeError(f"{argument} is {shown}; each of its characters would count as one of {argument}. {remedy}")
    raise TypeError(f"{argument} is {shown}; it has no values of its own. {remedy}")
