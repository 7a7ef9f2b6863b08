"""Filters that are written as dicts, as in MongoDB and in other vector databases.

    {"lang": "en", "year": {"$gte": 2020}}  ──>  lang == 'en' and year >= 2020

```text
$eq $ne $lt $lte $gt $gte   comparisons; a value without an operator means $eq
$between                    from the first to the second of two values
$in $nin                    one of several values; none of them
$contains                   a list with the value
$contains_any $contains_all a list with one of several values; with all of them
$exists                     True: any value; False: no value
$and $or                    of a list of dicts
$not                        of a dict of conditions, or of the operators of one key
```

None stands for no value, as in `a == null`. `$ne` and `$nin` match vectors without a value, as `!=`
and `not in` do.
"""

from __future__ import annotations

import collections.abc
from typing import Any, Callable, Dict, Iterable, List, Mapping

from ._stratann import Column, Filter, column, meant
from .attributes import several

_COMPARED: Dict[str, Callable[[Column, Any], Filter]] = {
    "$eq": lambda asked, value: asked == value,
    "$ne": lambda asked, value: asked != value,
    "$lt": lambda asked, value: asked < value,
    "$lte": lambda asked, value: asked <= value,
    "$gt": lambda asked, value: asked > value,
    "$gte": lambda asked, value: asked >= value,
    "$between": lambda asked, value: asked.between(*value),
    "$in": lambda asked, value: asked.is_in(value),
    "$nin": lambda asked, value: asked.not_in(value),
    "$contains": lambda asked, value: asked.contains(value),
    "$contains_any": lambda asked, value: asked.contains_any(value),
    "$contains_all": lambda asked, value: asked.contains_all(value),
    "$exists": lambda asked, value: asked.exists() if value else asked.missing(),
}
_OPERATORS = [*_COMPARED, "$not"]
_SEVERAL = ("$in", "$nin", "$contains_any", "$contains_all")
_CONNECTED = ["$and", "$or", "$not"]

Compare = Callable[[str, str, Any], Filter]
"""Makes the filter for a key, an operator of `_COMPARED` and a value."""
Negate = Callable[[Callable[[], Filter]], Filter]
"""Negates the filter that a function makes."""


def filter_of(
    given: Mapping[Any, Any],
    compare: Compare = lambda key, operator, value: _COMPARED[operator](column(key), value),
    negate: Negate = lambda ask: ~ask(),
    lists: bool = False,
) -> Filter:
    """The filter for a dict of conditions, which must all match. With `lists`, a list without an
    operator means `$in`.
    """
    return _Conditions(compare, negate, lists).all_of(given, "filter")


class _Conditions:
    def __init__(self, compare: Compare, negate: Negate, lists: bool) -> None:
        self._compare = compare
        self._negate = negate
        self._lists = lists

    def all_of(self, given: Any, place: str) -> Filter:
        if not isinstance(given, collections.abc.Mapping):
            raise TypeError(f'{place} is {given!r}; it has no conditions. Pass a dict of conditions, such as {{"year": {{"$gte": 2020}}}}')
        return _joined([self._one(key, value, place) for key, value in given.items()], place, every=True)

    def _one(self, key: Any, value: Any, place: str) -> Filter:
        if not isinstance(key, str):
            raise TypeError(f"{place} has the key {key!r}; a key is the name of a column. Pass a str")
        if not key.startswith("$"):
            return self._of_key(key, value, place)
        inside = f"{place}[{key!r}]"
        if key == "$not":
            return self._negate(lambda: self.all_of(value, inside))
        if key not in _CONNECTED:
            if key in _COMPARED:
                raise ValueError(f'{place} has {key!r} without the name of a column. Write {{"column": {{{key!r}: {value!r}}}}}')
            raise ValueError(f"{place} has {key!r}; there is no such operator{_did_you_mean(key, _CONNECTED)}. Use one of {', '.join(_CONNECTED)} here")
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{inside} is {value!r}; {key} takes several conditions. Pass a list of dicts")
        parts = [self.all_of(one, f"{inside}[{at}]") for at, one in enumerate(value)]
        return _joined(parts, inside, every=key == "$and")

    def _of_key(self, key: str, value: Any, place: str) -> Filter:
        inside = f"{place}[{key!r}]"
        if self._lists and isinstance(value, (list, tuple)):
            return self._operator(key, "$in", value, inside)
        if isinstance(value, (list, tuple, set, frozenset)):
            raise TypeError(
                f'{inside} is {value!r}; a list can mean several things. Pass {{"$in": [..]}} for one of these values, or {{"$contains": ..}} for a list with a value'
            )
        if not isinstance(value, collections.abc.Mapping):
            return self._compare(key, "$eq", value)
        return _joined([self._operator(key, operator, one, inside) for operator, one in value.items()], inside, every=True)

    def _operator(self, key: str, operator: Any, value: Any, place: str) -> Filter:
        if operator == "$not":
            if not isinstance(value, collections.abc.Mapping):
                raise TypeError(f'{place} has $not with {value!r}; it negates operators. Pass a dict such as {{"$gte": 2020}}, or use $ne')
            return self._negate(lambda: self._of_key(key, value, place))
        if operator not in _COMPARED:
            raise ValueError(
                f"{place} has {operator!r}; there is no such operator{_did_you_mean(operator, _OPERATORS)}. Use one of {', '.join(_OPERATORS)}"
            )
        if operator in _SEVERAL:
            value = several(value, f"{place}: {operator}")
        if operator == "$between" and not (isinstance(value, (list, tuple)) and len(value) == 2 and None not in value):
            raise ValueError(f'{place} has $between with {value!r}; it takes two values. Pass a list of the smallest and the largest value, as in {{"$between": [2020, 2022]}}')
        if operator == "$exists" and not isinstance(value, bool):
            raise TypeError(f"{place} has $exists with {value!r}; it takes a bool. Pass True to find vectors with a value, or False to find vectors without one")
        if value is None and operator not in ("$eq", "$ne"):
            raise TypeError(f"{place} has {operator} with None, which is no value. Use {{\"$exists\": False}} for vectors without a value")
        return self._compare(key, operator, value)


def _joined(parts: Iterable[Filter], place: str, *, every: bool) -> Filter:
    found: List[Filter] = list(parts)
    if not found:
        raise ValueError(f"{place} is empty; it has no condition. Leave it out, or pass at least one condition")
    # A joined filter copies its parts. Joining in pairs makes fewer copies than adding one filter
    # at a time.
    while len(found) > 1:
        pairs = zip(found[::2], found[1::2])
        rest = found[len(found) - len(found) % 2 :]
        found = [one & other if every else one | other for one, other in pairs] + rest
    return found[0]


def _did_you_mean(typed: Any, names: List[str]) -> str:
    near = meant(typed, names) if isinstance(typed, str) else None
    return "" if near is None else f" (did you mean {near!r}?)"
