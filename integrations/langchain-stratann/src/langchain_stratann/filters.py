"""Translates filters of metadata, given as dicts, to StratANN's filters.

    {"year": 2024, "tags": {"$contains": "sea"}}               all conditions
    {"$or": [{"year": {"$gte": 2020}}, {"kind": ["a", "b"]}]}  at least one of the conditions

A list, as for "kind", matches documents whose value is one of the list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import stratann
from stratann.documents import Columns

Filter = stratann.Filter | str | Mapping[str, Any] | None
"""A filter of StratANN, as a text or an object; or a dict; or None for no filter."""


def translate(given: Filter, columns: Columns) -> stratann.Filter | str | None:
    """The filter of StratANN. Raises ValueError or TypeError for a dict that the index cannot
    evaluate.
    """
    if given is None or isinstance(given, (str, stratann.Filter)):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(f"filter is {given!r}. Pass a dict, a text such as \"year >= 2020\", or a stratann.Filter")
    return _all(given, columns) if given else None


def _all(given: Mapping[str, Any], columns: Columns) -> stratann.Filter:
    if not isinstance(given, Mapping):
        raise TypeError(f"a filter has {given!r} in place of a dict. Pass {{key: value}}")
    found = None
    for key, wanted in given.items():
        if not isinstance(key, str):
            raise TypeError(f"a filter has the key {key!r}; a key of metadata is a text. Pass a str")
        one = _combined(key, wanted, columns) if key.startswith("$") else _of_key(key, wanted, columns)
        found = one if found is None else found & one
    if found is None:
        raise ValueError("a filter has an empty dict. Name a key of the metadata, or leave the dict out")
    return found


def _combined(word: str, wanted: Any, columns: Columns) -> stratann.Filter:
    if word == "$not" and isinstance(wanted, Mapping):
        return columns.negated(lambda: _all(wanted, columns))
    if word not in ("$and", "$or") or not isinstance(wanted, (list, tuple)) or not wanted:
        raise ValueError(f'a filter has {word!r}: {wanted!r}. Pass "$and" or "$or" with a list of dicts, or "$not" with a dict')
    parts = [_all(one, columns) for one in wanted]
    found = parts[0]
    for part in parts[1:]:
        found = found & part if word == "$and" else found | part
    return found


def _of_key(key: str, wanted: Any, columns: Columns) -> stratann.Filter:
    if isinstance(wanted, (list, tuple)):
        return columns.is_in(key, wanted)
    if not isinstance(wanted, Mapping):
        return columns.equal(key, wanted)
    found = None
    for operator, value in wanted.items():
        if operator not in _OPERATORS:
            raise ValueError(f"a filter of {key!r} has {operator!r}. Pass one of {', '.join(_OPERATORS)}")
        one = _OPERATORS[operator](columns, key, value)
        found = one if found is None else found & one
    if found is None:
        raise ValueError(f"a filter of {key!r} is an empty dict. Pass a value, or a dict with {', '.join(_OPERATORS)}")
    return found


def _between(columns: Columns, key: str, value: Any) -> stratann.Filter:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError(f'a filter of {key!r} has "$between": {value!r}. Pass a list of the smallest and the largest value, as in {{"$between": [2020, 2022]}}')
    low, high = value
    return columns.order(key, ">=", low) & columns.order(key, "<=", high)


_OPERATORS: dict[str, Callable[[Columns, str, Any], stratann.Filter]] = {
    "$eq": lambda columns, key, value: columns.equal(key, value),
    "$ne": lambda columns, key, value: columns.negated(lambda: columns.equal(key, value)),
    "$lt": lambda columns, key, value: columns.order(key, "<", value),
    "$lte": lambda columns, key, value: columns.order(key, "<=", value),
    "$gt": lambda columns, key, value: columns.order(key, ">", value),
    "$gte": lambda columns, key, value: columns.order(key, ">=", value),
    "$between": _between,
    "$in": lambda columns, key, value: columns.is_in(key, value),
    "$nin": lambda columns, key, value: columns.negated(lambda: columns.is_in(key, value)),
    "$contains": lambda columns, key, value: columns.contains(key, [value], every=True),
    "$contains_any": lambda columns, key, value: columns.contains(key, value, every=False),
    "$contains_all": lambda columns, key, value: columns.contains(key, value, every=True),
    "$exists": lambda columns, key, value: columns.exists(key) if value else columns.missing(key),
}
