"""Translates LlamaIndex's metadata filters to StratANN's.

The index evaluates all operators except TEXT_MATCH and TEXT_MATCH_INSENSITIVE, which search for a
text in a text. Python evaluates these two operators (`Wanted.check`) on the documents that match
all other conditions, nearest first. Filters may be nested. A missing value matches only NE, NIN and
IS_EMPTY.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import stratann
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from stratann.documents import Columns, Document

_TEXTS = (FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE)


class Wanted(NamedTuple):
    """The filter for the index, and the check in Python of the documents that the index finds. Each
    is None if it is not needed.
    """

    filter: stratann.Filter | None
    check: Callable[[Document], bool] | None

    def and_also(self, filter: stratann.Filter) -> Wanted:
        """This condition for only the nodes that match `filter` too."""
        return self._replace(filter=filter if self.filter is None else self.filter & filter)


def translate(given: MetadataFilters | None, columns: Columns) -> Wanted:
    """The filter for the index, and the check in Python. Raises ValueError or TypeError for a
    filter that neither can evaluate.
    """
    if given is None or not given.filters:
        return Wanted(None, None)
    filter = _asked(given, columns)
    return Wanted(None if filter == columns.EVERYTHING else filter, _Check(given) if _has_texts(given) else None)


def has_nothing(given: MetadataFilters) -> bool:
    """Whether this filter, or a nested one, has no conditions."""
    return not given.filters or any(isinstance(part, MetadataFilters) and has_nothing(part) for part in given.filters)


def _has_texts(given: MetadataFilter | MetadataFilters) -> bool:
    if isinstance(given, MetadataFilters):
        return any(map(_has_texts, given.filters))
    return given.operator in _TEXTS


def _asked(given: MetadataFilter | MetadataFilters, columns: Columns) -> stratann.Filter:
    """The part of a filter that the index can evaluate. This part matches all documents that the
    whole filter matches, and may match more. TEXT_MATCH and TEXT_MATCH_INSENSITIVE become `exists`,
    and are left out inside a NOT.
    """
    if isinstance(given, MetadataFilter):
        return columns.exists(given.key) if given.operator in _TEXTS else _OPERATORS[given.operator](columns, given.key, given.value)
    condition = given.condition or FilterCondition.AND
    if condition == FilterCondition.NOT and _has_texts(given):
        # The translation of conditions on texts refuses keys that filters must not use.
        parts = [(columns.negated(functools.partial(_asked, part, columns)), _has_texts(part)) for part in given.filters]
        return _joined(FilterCondition.AND, [part for part, is_text in parts if not is_text], columns)
    if condition == FilterCondition.NOT:
        return columns.negated(lambda: _joined(condition, [_asked(part, columns) for part in given.filters], columns))
    return _joined(condition, [_asked(part, columns) for part in given.filters], columns)


def _joined(condition: FilterCondition, parts: list[stratann.Filter], columns: Columns) -> stratann.Filter:
    found = columns.EVERYTHING
    for at, part in enumerate(parts):
        found = part if at == 0 else (found & part if condition == FilterCondition.AND else found | part)
    return found


class _Check:
    """Checks in Python whether a document matches."""

    def __init__(self, given: MetadataFilters) -> None:
        self._given = given
        _check_texts(given)

    def __call__(self, document: Document) -> bool:
        return self._matches(self._given, document.metadata)

    def _matches(self, given: MetadataFilter | MetadataFilters, metadata: Mapping[str, Any]) -> bool:
        if isinstance(given, MetadataFilters):
            parts = (self._matches(part, metadata) for part in given.filters)
            condition = given.condition or FilterCondition.AND
            if condition == FilterCondition.AND:
                return all(parts)
            return any(parts) == (condition == FilterCondition.OR)
        return _matches(given.operator, metadata.get(given.key), given.value)


def _check_texts(given: MetadataFilter | MetadataFilters) -> None:
    if isinstance(given, MetadataFilters):
        for part in given.filters:
            _check_texts(part)
    elif given.operator in _TEXTS and not isinstance(given.value, str):
        raise TypeError(f"a filter {given.operator.value} of {given.key!r} has the value {given.value!r}; the operator is for texts. Pass a str")


def _matches(operator: FilterOperator, value: Any, wanted: Any) -> bool:
    """Whether a value matches, by the rules of the index. Only filters with TEXT_MATCH or
    TEXT_MATCH_INSENSITIVE need this function.
    """
    if operator == FilterOperator.TEXT_MATCH:
        return isinstance(value, str) and wanted in value
    if operator == FilterOperator.TEXT_MATCH_INSENSITIVE:
        return isinstance(value, str) and wanted.lower() in value.lower()
    if operator == FilterOperator.IS_EMPTY:
        return value is None or value == "" or value == []
    if operator in (FilterOperator.NE, FilterOperator.NIN):
        return not _matches(FilterOperator.EQ if operator == FilterOperator.NE else FilterOperator.IN, value, wanted)
    if operator == FilterOperator.EQ:
        return _alike(value, wanted)
    if operator == FilterOperator.IN:
        return any(_alike(value, one) for one in wanted)
    if operator in _ORDERS:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and _ORDERS[operator](value, wanted)
    held = value if isinstance(value, list) else []
    if operator == FilterOperator.CONTAINS:
        return wanted in held
    return (any if operator == FilterOperator.ANY else all)(one in held for one in wanted)


def _alike(value: Any, wanted: Any) -> bool:
    return bool(value == wanted and isinstance(value, bool) == isinstance(wanted, bool))


_ORDERS: dict[FilterOperator, Callable[[Any, Any], bool]] = {
    FilterOperator.GT: lambda value, wanted: value > wanted,
    FilterOperator.GTE: lambda value, wanted: value >= wanted,
    FilterOperator.LT: lambda value, wanted: value < wanted,
    FilterOperator.LTE: lambda value, wanted: value <= wanted,
}


def _several(key: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"a filter compares {key!r} with {value!r}; the operator is for several values. Pass a list")
    return value


_OPERATORS: dict[FilterOperator, Callable[[Columns, str, Any], stratann.Filter]] = {
    FilterOperator.EQ: lambda columns, key, value: columns.equal(key, value),
    FilterOperator.NE: lambda columns, key, value: columns.negated(lambda: columns.equal(key, value)),
    FilterOperator.GT: lambda columns, key, value: columns.order(key, ">", value),
    FilterOperator.GTE: lambda columns, key, value: columns.order(key, ">=", value),
    FilterOperator.LT: lambda columns, key, value: columns.order(key, "<", value),
    FilterOperator.LTE: lambda columns, key, value: columns.order(key, "<=", value),
    FilterOperator.IN: lambda columns, key, value: columns.is_in(key, _several(key, value)),
    FilterOperator.NIN: lambda columns, key, value: columns.negated(lambda: columns.is_in(key, _several(key, value))),
    FilterOperator.CONTAINS: lambda columns, key, value: columns.contains(key, [value], every=True),
    FilterOperator.ANY: lambda columns, key, value: columns.contains(key, _several(key, value), every=False),
    FilterOperator.ALL: lambda columns, key, value: columns.contains(key, _several(key, value), every=True),
    FilterOperator.IS_EMPTY: lambda columns, key, value: columns.empty(key),
}
