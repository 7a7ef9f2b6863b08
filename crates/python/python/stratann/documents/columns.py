"""The columns that hold the metadata of documents, and comparisons by the keys of metadata.

A column has one type, but a key of metadata may have values of several kinds. Values of the first
kind go into a column with the name of the key. Each further kind of values gets a column of its
own:

```text
metadata            column                        type
{"year": 2024}      year                          float: whole numbers up to 2^53 and floats
{"year": "unknown"} _stratann_string:year         string
{"year": 2**60}     _stratann_integer:year        integer, never in the column `year`
{"year": {...}}     none: "opaque:year" is an item of the list _stratann_keys
{"tags": []}        none: "empty:tags" is an item of that list
{"note": ...}       none if `filterable` lacks the key: "note" is an item of the list
                    _stratann_hidden
```

So a filter text such as "year >= 2020" finds all documents only if the values of the key are of one
kind. Otherwise `check_text` warns, or refuses a deletion with a negation. A filter of `Columns`
covers all kinds of values of a key.
"""

from __future__ import annotations

import datetime
import math
import os
import sys
import warnings
from typing import Any, Callable, ClassVar, Dict, Iterable, List, Mapping, Optional, Tuple

import numpy

from .._stratann import Filter, column, meant
from ..attributes import several

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

RESERVED = "_stratann_"
"""The prefix of column names that do not belong to a key of metadata."""
ID = "_stratann_id"
"""The column of the documents' ids."""
BARE = "_stratann_bare"
"""The column that is true for documents without a vector."""
LATE = "_stratann_late"
"""The column that is true for documents that were added after the build of a small index."""
KEYS = "_stratann_keys"
"""The column with a list of the keys of a document that have a value, but no column for it."""
HIDDEN = "_stratann_hidden"
"""The column with a list of the keys that were not filterable when `put` wrote the document."""

_MOST_NAME = 128
_MOST_STRING = 32 << 10
_MOST_ITEMS = 4096
_EXACT = 1 << 53
_LARGEST = (1 << 63) - 1

_TYPES = {
    "string": "string",
    "number": "float",
    "integer": "integer",
    "boolean": "boolean",
    "time": "timestamp",
    "strings": "list of strings",
    "integers": "list of integers",
}
NOTHING, EVERYTHING = Filter("false"), Filter("true")


def kind_of(value: Any) -> Tuple[Optional[str], Any]:
    """The kind of column for a value, and the value in the form of this column. (None, None) if no
    column can hold the value.
    """
    if isinstance(value, (numpy.generic, numpy.ndarray)):
        value = value.tolist()
    if isinstance(value, bool):
        return "boolean", value
    if isinstance(value, int):
        if -_EXACT <= value <= _EXACT:
            return "number", float(value)
        return ("integer", int(value)) if -_LARGEST <= value <= _LARGEST else (None, None)
    if isinstance(value, float):
        return (None, None) if math.isnan(value) else ("number", float(value))
    if isinstance(value, str):
        return ("string", str.__str__(value)) if _is_short(value) else (None, None)
    if isinstance(value, (datetime.datetime, datetime.date)):
        return "time", value
    if isinstance(value, (list, tuple, set, frozenset)) and 0 < len(value) <= _MOST_ITEMS:
        if all(isinstance(one, str) and _is_short(one) for one in value):
            return "strings", list(value)
        if all(isinstance(one, int) and not isinstance(one, bool) and -_LARGEST <= one <= _LARGEST for one in value):
            return "integers", list(value)
    return None, None


def moment_of(value: Any) -> Optional[datetime.datetime]:
    """The time in a text in ISO 8601, in UTC unless it has another zone. None for other texts."""
    if isinstance(value, datetime.datetime):
        return value
    if not isinstance(value, str) or len(value) < 10 or value[4:5] != "-":
        return None
    try:
        # Python before 3.11 does not accept the Z.
        return datetime.datetime.fromisoformat(value[:-1] + "+00:00" if value.endswith(("Z", "z")) else value)
    except ValueError:
        return None


def _is_short(text: str) -> bool:
    return len(text) <= _MOST_STRING // 4 or len(text.encode("utf-8", "replace")) <= _MOST_STRING


def _can_name(key: str) -> bool:
    longest = len(f"{RESERVED}integers:{key}".encode("utf-8", "replace"))
    return bool(key) and longest <= _MOST_NAME and key.isprintable()


def _warn(text: str) -> None:
    """Warns at the line that called this package, so that each such line gets a warning."""
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)


class Columns:
    """The columns of an index of documents. They convert comparisons by keys of metadata to
    filters, and metadata to attributes.
    """

    ID: ClassVar[str] = ID
    """The document's id, as a key."""
    NOTHING: ClassVar[Filter] = NOTHING
    """Matches no document."""
    EVERYTHING: ClassVar[Filter] = EVERYTHING
    """Matches every document."""

    def __init__(
        self,
        schema: Mapping[str, str],
        *,
        filterable: Optional[Iterable[str]] = None,
        count: Optional[Callable[[Filter], int]] = None,
        deleting: bool = False,
        suggesting: bool = False,
    ) -> None:
        """The columns of a schema. A filter is refused in these cases:

        - Its key is not in `filterable`.
        - Its key has no column, and `count` finds documents that were put with this key when the
          key was not filterable. With `deleting`, keys with a column are refused too in this case.
        - With `deleting`, the filter negates a key that no document has. If the key is misspelt,
          the deletion would delete every document.
        - With `deleting`, the filter negates a condition on values of a key under which documents
          have values without a column. The negation would match these documents, whatever they
          contain.

        With `suggesting`, a key that no document has causes a warning if the documents have a
        similar key. The key is then probably misspelt.
        """
        self.schema: Dict[str, str] = dict(schema)
        self._filterable = None if filterable is None else frozenset(filterable)
        self._count = count
        self._deleting = deleting
        self._suggesting = suggesting
        self._negative = False

    def attributes(self, metadata: Mapping[Any, Any], filterable: Optional[Iterable[str]], moments: bool) -> Dict[str, Any]:
        """The attributes for metadata, by column. New columns are added to the schema. With
        `moments`, a text that is a time also gets a value in a column of times.
        """
        row: Dict[str, Any] = {}
        others: List[str] = []
        hidden: List[str] = []
        for key, value in metadata.items():
            if isinstance(key, str) and key.startswith(RESERVED):
                raise ValueError(f"the key {key!r} of metadata begins with {RESERVED!r}; such names are reserved for StratANN. Rename the key")
            if value is None or not isinstance(key, str):
                continue
            if filterable is not None and key not in filterable:
                if _can_name(key) and len(hidden) < _MOST_ITEMS:
                    hidden.append(key)
                continue
            kind, held = kind_of(value) if _can_name(key) else (None, None)
            if kind is None:
                if _is_short(key):
                    others.append(_other("empty" if isinstance(value, (list, tuple, set, frozenset)) and not value else "opaque", key))
                continue
            row[self._place(kind, key)] = held
            moment = moment_of(value) if moments and kind == "string" else None
            if moment is not None:
                row[self._place("moment", key)] = moment
        if others:
            row[KEYS] = others
            self.schema.setdefault(KEYS, _TYPES["strings"])
        if hidden:
            row[HIDDEN] = hidden
            self.schema.setdefault(HIDDEN, _TYPES["strings"])
        return row

    def _place(self, kind: str, key: str) -> str:
        """The column of a key for values of this kind. If the column is new, it is added to the
        schema.
        """
        wanted = _TYPES.get(kind, _TYPES["time"])
        if kind not in ("integer", "moment") and self.schema.get(key, wanted) == wanted:
            name = key
        else:
            name = _apart(kind, key)
        self.schema[name] = wanted
        return name

    def _find(self, kind: str, key: str) -> Optional[str]:
        wanted = _TYPES.get(kind, _TYPES["time"])
        for name in (_apart(kind, key),) if kind in ("integer", "moment") else (key, _apart(kind, key)):
            if self.schema.get(name) == wanted:
                return name
        return None

    def kinds(self, key: str) -> List[str]:
        """The kinds of values for which the key has a column."""
        return [kind for kind in _TYPES if self._find(kind, key) is not None]

    def keys(self) -> List[str]:
        """The keys of metadata that have a column."""
        found = set()
        for name in self.schema:
            if not name.startswith(RESERVED):
                found.add(name)
            elif ":" in name:
                found.add(name.split(":", 1)[1])
        return sorted(found)

    def check_text(self, text: str) -> None:
        """Warns if a filter text names a key with values of several kinds, since the text compares
        only the values in the column of that name. Raises ValueError if the text is for a deletion
        and has a negation, which also matches the values of other types.
        """
        asked = Filter(text)
        if self._deleting and asked.negates:
            for key in asked.columns:
                self._refuse_opaque(key)
        others = {name.split(":", 1)[-1] for name in asked.columns if name.startswith(RESERVED)}
        for key in asked.columns:
            kinds = self.kinds(key)
            # A text that names another column of the key is meant for columns.
            if len(kinds) < 2 or key in others:
                continue
            types = ", ".join(dict.fromkeys(_TYPES[kind] for kind in kinds))
            said = (
                f"a filter text names the key {key!r}, which has values of several types ({types}); a text compares the values of one type only. "
                f'Pass a dict, such as {{{key!r}: {{"$gte": 5}}}}, which compares all'
            )
            if self._deleting and asked.negates:
                raise ValueError(said)
            _warn(said)

    def negated(self, ask: Callable[[], Filter]) -> Filter:
        """The negation of the filter that `ask` makes with these columns. Use this method instead
        of `~`, so that a deletion can check the keys that a filter negates.
        """
        self._negative = not self._negative
        try:
            return ~ask()
        finally:
            self._negative = not self._negative

    def _admit(self, key: str, compares: bool = True) -> None:
        """Raises ValueError for a key that filters cannot use. `compares`: whether the filter
        compares values of this key.
        """
        if key == ID:
            return
        if self._filterable is not None and key not in self._filterable:
            raise ValueError(
                f"a filter asks for the key {key!r}, which is not filterable. Add it to filterable= ({', '.join(map(repr, sorted(self._filterable)))}) "
                "and put the documents again"
            )
        known = bool(self.kinds(key))
        if HIDDEN in self.schema and (self._deleting or not known) and self._counted(column(HIDDEN).contains(key)):
            raise ValueError(
                f"a filter asks for the key {key!r}; some documents with this key were put when it was not filterable. "
                "Add the key to filterable=, and put these documents again"
            )
        if self._deleting and self._negative and compares:
            self._refuse_opaque(key)
        if known or self._count is None or self._has_others(key):
            return
        if self._deleting and self._negative:
            raise ValueError(
                f"the filter of a deletion or an update excludes values of the key {key!r}; filters find this key in no document, so this condition matches "
                f"every document. Check whether the key is misspelt, or missing in filterable=. The documents have {', '.join(map(repr, self.keys())) or 'no keys'}"
            )
        near = meant(key, self.keys()) if self._suggesting and self._filterable is None else None
        if near is not None:
            _warn(f"a filter asks for the key {key!r}, which no document has (did you mean {near!r}?)")

    def _refuse_opaque(self, key: str) -> None:
        """Raises ValueError if documents have values under this key for which there is no column."""
        if KEYS in self.schema and self._counted(column(KEYS).contains(_other("opaque", key))):
            raise ValueError(
                f"the filter of a deletion or an update excludes values of the key {key!r}; some documents have values under this key that filters cannot "
                "compare, such as dicts and lists of floats or of several types. The filter would match these documents. Give ids in place of the filter, "
                "or change these values"
            )

    def _has_others(self, key: str) -> bool:
        """Whether a document has, under the key, a value for which there is no column."""
        others = [_other("opaque", key), _other("empty", key)]
        return KEYS in self.schema and bool(self._counted(column(KEYS).contains_any(others)))

    def _counted(self, filter: Filter) -> int:
        return 0 if self._count is None else self._count(filter)

    def compared(self, moments: bool) -> Callable[[str, str, Any], Filter]:
        """A function that makes the filter for a key, an operator of `stratann.conditions` and a
        value.
        """
        ways: Dict[str, Callable[[str, Any], Filter]] = {
            "$eq": self.equal,
            "$ne": lambda key, value: self.negated(lambda: self.equal(key, value)),
            "$lt": lambda key, value: self.order(key, "<", value, moments),
            "$lte": lambda key, value: self.order(key, "<=", value, moments),
            "$gt": lambda key, value: self.order(key, ">", value, moments),
            "$gte": lambda key, value: self.order(key, ">=", value, moments),
            "$in": self.is_in,
            "$nin": lambda key, value: self.negated(lambda: self.is_in(key, value)),
            "$between": lambda key, ends: self.order(key, ">=", ends[0], moments) & self.order(key, "<=", ends[1], moments),
            "$contains": lambda key, value: self.contains(key, [value], every=True),
            "$contains_any": lambda key, values: self.contains(key, values, every=False),
            "$contains_all": lambda key, values: self.contains(key, values, every=True),
            "$exists": lambda key, value: self.exists(key) if value else self.missing(key),
        }
        return lambda key, operator, value: ways[operator](key, value)

    @staticmethod
    def moment(value: Any) -> Optional[datetime.datetime]:
        """The time in a datetime or in a text in ISO 8601. None for other values."""
        return moment_of(value)

    def equal(self, key: str, value: Any) -> Filter:
        """Matches documents whose value equals `value` (a bool, number, text or time), or is a list
        that contains `value`. A whole number equals a float of the same value. None matches
        documents without a value. Raises ValueError if the documents have only values of other
        types under the key.
        """
        if value is None:
            return self.missing(key)
        self._admit(key)
        kind, held = kind_of(value)
        if kind in (None, "strings", "integers"):
            raise TypeError(f"{key!r} == {value!r}; no filter finds such a value. Pass a bool, a number, a text of at most {_MOST_STRING} bytes or a time")
        name, listed = self._find(kind, key), self._item(key, value)
        found = NOTHING if name is None else column(name) == held
        if listed is not None:
            found = either(found, column(listed[0]).contains(listed[1]))
        return self._nothing(key, value, kind) if found == NOTHING else found

    def _item(self, key: str, value: Any) -> Optional[Tuple[str, Any]]:
        """The column with the lists of the key, and `value` as an item of such a list. None if no
        list has such an item.
        """
        kind, held = kind_of(value)
        if kind == "string":
            name = self._find("strings", key)
        elif kind == "integer" or kind == "number" and held.is_integer():
            name, held = self._find("integers", key), int(held)
        else:
            return None
        return None if name is None else (name, held)

    def _nothing(self, key: str, value: Any, *fitting: Optional[str]) -> Filter:
        """The filter for a value that no document has under the key. Raises ValueError if the
        documents have only values of kinds that are not in `fitting` under the key, since the value
        is then of the wrong type. Raises it also if a deletion negates this filter, since the
        negation matches every document.
        """
        kinds = self.kinds(key)
        # The kinds `number` and `integer` are both numbers, in separate columns.
        fits = {*fitting, "number", "integer"} if {"number", "integer"} & set(fitting) else set(fitting)
        if kinds and (fits.isdisjoint(kinds) or self._deleting and self._negative):
            types = ", ".join(dict.fromkeys(_TYPES[kind] for kind in kinds))
            raise ValueError(f"a filter compares the key {key!r} with {value!r}; its values in the documents have another type ({types}). Pass a value of that type")
        return NOTHING

    def is_in(self, key: str, values: Iterable[Any]) -> Filter:
        """Matches documents whose value is one of `values`, or a list with one of them. `values`
        may be of several kinds. If None is one of them, documents without a value match too.
        """
        self._admit(key)
        found = NOTHING
        by_name: Dict[str, List[Any]] = {}
        items: Dict[str, List[Any]] = {}
        for value in several(values, f"{key!r}: is_in"):
            if value is None:
                found = either(found, self.missing(key))
                continue
            kind, held = kind_of(value)
            if kind in (None, "strings", "integers"):
                raise TypeError(f"{key!r} in [.., {value!r}, ..]; no filter finds such a value. Pass bools, numbers, texts of at most {_MOST_STRING} bytes or times")
            name, listed = self._find(kind, key), self._item(key, value)
            if name is not None:
                by_name.setdefault(name, []).append(held)
            if listed is not None:
                items.setdefault(listed[0], []).append(listed[1])
            if name is None and listed is None:
                self._nothing(key, value, kind)
        for name, held in by_name.items():
            found = either(found, column(name).is_in(held))
        for name, held in items.items():
            found = either(found, column(name).contains_any(held))
        return found

    def order(self, key: str, operator: str, value: Any, moments: bool = False) -> Filter:
        """Matches documents whose value is "<", "<=", ">" or ">=" `value`, a number or a time. With
        `moments`, texts in ISO 8601 are compared as times, in `value` and in documents.
        """
        self._admit(key)
        moment = moment_of(value) if moments else None
        if moment is not None:
            names = [self._find("moment", key), self._find("time", key)]
            found = _any(_ordered(name, operator, moment) for name in names if name is not None)
            return self._nothing(key, value, "time", "string") if found == NOTHING else found
        kind, held = kind_of(value)
        if kind == "time":
            names = [self._find("time", key), self._find("moment", key) if moments else None]
            found = _any(_ordered(name, operator, held) for name in names if name is not None)
            return self._nothing(key, value, "time", *["string"] * moments) if found == NOTHING else found
        if kind not in ("number", "integer"):
            raise TypeError(f"{key!r} {operator} {value!r}; only numbers and times have an order. Pass a number or a time")
        numbers, integers = self._find("number", key), self._find("integer", key)
        if numbers is None and integers is None:
            return self._nothing(key, value, "number")
        found = NOTHING if numbers is None else _ordered(numbers, operator, held)
        return found if integers is None else either(found, _whole(integers, operator, value))

    def contains(self, key: str, values: Iterable[Any], every: bool) -> Filter:
        """Matches documents whose value is a list with one of `values`, or with all of them if
        `every` is True. `values` are texts and whole numbers.
        """
        self._admit(key)
        found: Optional[Filter] = None
        for value in several(values, f"{key!r}: {'contains_all' if every else 'contains_any'}"):
            kinds = {"string": "strings", "number": "integers", "integer": "integers"}
            kind = kinds.get(kind_of(value)[0] or "")
            whole = not isinstance(value, float) or value.is_integer()
            name = self._find(kind, key) if kind is not None and whole else None
            if kind is None:
                raise TypeError(f"{key!r} contains {value!r}; lists in filters have texts or whole numbers. Pass one of these")
            one = self._nothing(key, value, kind) if name is None else column(name).contains(int(value) if kind == "integers" else str.__str__(value))
            found = one if found is None else (found & one if every else found | one)
        return (EVERYTHING if every else NOTHING) if found is None else found

    def exists(self, key: str) -> Filter:
        """Matches documents with a value for the key."""
        self._admit(key, compares=False)
        found = _any(column(name).exists() for name in map(lambda kind: self._find(kind, key), _TYPES) if name is not None)
        if KEYS in self.schema:
            found = either(found, column(KEYS).contains_any([_other("opaque", key), _other("empty", key)]))
        return found

    def missing(self, key: str) -> Filter:
        """Matches documents without a value for the key, or with None."""
        return self.negated(lambda: self.exists(key))

    def empty(self, key: str) -> Filter:
        """Matches documents without a value for the key, or with an empty text or list."""
        found, name = self.missing(key), self._find("string", key)
        if name is not None:
            found = either(found, column(name) == "")
        return either(found, column(KEYS).contains(_other("empty", key))) if KEYS in self.schema else found


def either(first: Filter, second: Filter) -> Filter:
    """Matches documents that match one of the filters. A filter that matches no document is left
    out.
    """
    return second if first == NOTHING else (first if second == NOTHING else first | second)


def _any(filters: Iterable[Filter]) -> Filter:
    found = NOTHING
    for one in filters:
        found = either(found, one)
    return found


def _apart(kind: str, key: str) -> str:
    return f"{RESERVED}{kind}:{key}"


def _other(kind: str, key: str) -> str:
    return f"{kind}:{key}"


def _ordered(name: str, operator: str, value: Any) -> Filter:
    asked = column(name)
    ways: Dict[str, Callable[[object], Filter]] = {"<": asked.__lt__, "<=": asked.__le__, ">": asked.__gt__, ">=": asked.__ge__}
    if operator not in ways:
        raise ValueError(f"the operator is {operator!r}; there is no such operator. Use one of <, <=, > and >=")
    return ways[operator](value)


def _whole(name: str, operator: str, value: Any) -> Filter:
    """A comparison of a column of whole numbers with any number."""
    if isinstance(value, float):
        if math.isinf(value):
            return column(name).exists() if (value > 0) == (operator in ("<", "<=")) else NOTHING
        value = math.ceil(value) if operator in ("<", ">=") else math.floor(value)
    if not -_LARGEST <= value <= _LARGEST:
        return column(name).exists() if (value > 0) == (operator in ("<", "<=")) else NOTHING
    return _ordered(name, operator, value)
