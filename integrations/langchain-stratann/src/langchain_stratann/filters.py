"""Translates filters of metadata that are dicts, in the form of `stratann.conditions`. A list
without an operator means "$in".

    {"year": 2024, "tags": {"$contains": "sea"}}               all conditions
    {"$or": [{"year": {"$gte": 2020}}, {"kind": ["a", "b"]}]}  at least one of the conditions
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import stratann
from stratann.conditions import filter_of
from stratann.documents import Columns

Filter = stratann.Filter | str | Mapping[str, Any] | None
"""A filter of StratANN as a text, an object or a dict, or None for no filter."""


def translate(given: Filter, columns: Columns) -> stratann.Filter | str | None:
    """The filter of StratANN. Raises ValueError or TypeError for a dict that the index cannot
    evaluate.
    """
    if given is None or isinstance(given, (str, stratann.Filter)):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(f"filter is {given!r}. Pass a dict, a text such as \"year >= 2020\", or a stratann.Filter")
    return filter_of(given, columns.compared(moments=False), columns.negated, lists=True) if given else None
