"""Translates Haystack's filters to StratANN's. A filter that the index cannot evaluate is refused.

    {"field": "meta.year", "operator": ">=", "value": 2020}    a comparison
    {"operator": "AND", "conditions": [.., ..]}                AND, OR, or NOT

NOT matches a document if at least one of its conditions does not match the document.

The operators > >= < <= compare texts in ISO 8601 as times. For ==, such a text equals another text
with the same time. A text without a zone is in UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import stratann
from haystack.errors import FilterError
from stratann.documents import Columns


def translate(given: dict[str, Any] | None, columns: Columns) -> stratann.Filter | None:
    """The filter of StratANN; None for no filter. Raises FilterError for a filter that the index
    cannot evaluate.
    """
    if not given:
        return None
    try:
        return _condition(given, columns)
    except (TypeError, ValueError) as error:
        raise FilterError(str(error)) from error


def _condition(given: Any, columns: Columns) -> stratann.Filter:
    if not isinstance(given, dict):
        raise FilterError(f"a condition is {given!r}; it has no operator. Pass a dict")
    if "field" in given:
        return _comparison(given, columns)
    operator, conditions = _taken(given, "operator"), _taken(given, "conditions")
    if operator not in ("AND", "OR", "NOT") or not isinstance(conditions, list) or not conditions:
        raise FilterError(f"a filter has the operator {operator!r} and the conditions {conditions!r}. Pass AND, OR or NOT, and a list of dicts")
    if operator == "NOT":
        return columns.negated(lambda: _joined("AND", conditions, columns))
    return _joined(operator, conditions, columns)


def _joined(operator: str, conditions: list[Any], columns: Columns) -> stratann.Filter:
    found = _condition(conditions[0], columns)
    for one in conditions[1:]:
        part = _condition(one, columns)
        found = found | part if operator == "OR" else found & part
    return found


def _comparison(given: dict[str, Any], columns: Columns) -> stratann.Filter:
    field, operator, value = (_taken(given, name) for name in ("field", "operator", "value"))
    if not isinstance(field, str):
        raise FilterError(f"a filter has the field {field!r}; a name is a text. Pass a str")
    if operator not in _OPERATORS:
        raise FilterError(f"a filter of {field!r} has the operator {operator!r}; there is no such operator. Use one of {', '.join(_OPERATORS)}")
    if field == "id":
        return _OPERATORS[operator](columns, columns.ID, value)
    if field in ("content", "blob", "embedding", "score", "sparse_embedding"):
        raise FilterError(f"a filter asks for {field!r}; StratANN filters by the id and by meta. Use one of these fields")
    return _OPERATORS[operator](columns, field.removeprefix("meta."), value)


def _taken(given: dict[str, Any], name: str) -> Any:
    if name not in given:
        raise FilterError(f"{name!r} is missing in the filter {given!r}")
    return given[name]


def _equal(columns: Columns, key: str, value: Any) -> stratann.Filter:
    moment = columns.moment(value)
    if moment is None:
        return columns.equal(key, value)
    found = columns.order(key, ">=", moment, moments=True) & columns.order(key, "<=", moment, moments=True)
    # Documents may have only times, or only texts, under the key.
    kind = "string" if isinstance(value, str) else "time"
    return found | columns.equal(key, value) if kind in columns.kinds(key) else found


def _in(columns: Columns, key: str, value: Any) -> stratann.Filter:
    if not isinstance(value, list):
        raise FilterError(f"a filter asks whether {key!r} is in {value!r}. Pass a list")
    return columns.is_in(key, value)


def _order(operator: str) -> Callable[[Columns, str, Any], stratann.Filter]:
    def compare(columns: Columns, key: str, value: Any) -> stratann.Filter:
        if value is None:
            return columns.NOTHING
        return columns.order(key, operator, value, moments=True)

    return compare


_OPERATORS: dict[str, Callable[[Columns, str, Any], stratann.Filter]] = {
    "==": _equal,
    "!=": lambda columns, key, value: columns.negated(lambda: _equal(columns, key, value)),
    ">": _order(">"),
    ">=": _order(">="),
    "<": _order("<"),
    "<=": _order("<="),
    "in": _in,
    "not in": lambda columns, key, value: columns.negated(lambda: _in(columns, key, value)),
}
