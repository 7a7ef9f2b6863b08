"""Converts attributes and payloads from a user's form to the engine's, and back.

    attributes   a dict of columns; a list of dicts; a table of pandas, polars or pyarrow; a
                 structured array of numpy
    payload      a JSON value for each vector

A value is a bool, an int of 64 bits, a float, a str, a datetime or date, or a list of str or of
int. None, NaN, NaT and an empty list mean that a vector has no value. In a column with floats,
whole numbers become floats; a whole number that no float equals exactly is an error. pandas stores
a column of integers with missing values as floats. So an existing column of integers accepts an
array or Series of whole floats. A datetime without a time zone counts as UTC, and every returned
datetime is in UTC.

The Rust part of the package calls these functions. They return each column as a type and a list.
"""

from __future__ import annotations

import collections.abc
import datetime
import json
import math
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

import numpy

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)
_LARGEST = 2**63 - 1

Column = Tuple[str, List[Any], Optional[List[bool]]]
"""The name of a type, a list with a value of this type or None for each row, and a list with a bool
for each row: whether the row names the column. This second list is None if all rows name the
column. An update does not change the column in rows that do not name it.
"""


def table(
    attributes: Any, payload: Any, rows: int, single: bool, types: Optional[Mapping[str, str]] = None
) -> Tuple[Dict[str, Column], Optional[List[Optional[str]]]]:
    """The columns and the payload of `rows` vectors. For a single vector, `attributes` may be a
    dict of its values, and `payload` is the payload itself, not a list.

    `types` are the types of the columns that the index has.
    """
    if single:
        attributes = [attributes] if isinstance(attributes, collections.abc.Mapping) else attributes
        payload = None if payload is None else [payload]
    columns = {} if attributes is None else _columns(attributes, rows, types or {})
    return columns, None if payload is None else _payload(payload, rows)


def value(given: Any) -> Tuple[str, Any]:
    """A value that a filter compares with a column: the name of its type, and the value in the form
    that the Rust part reads.
    """
    try:
        kind, made = _value(given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"the value {given!r} of a filter {error}") from None
    if kind is None:
        raise TypeError(f"a filter cannot compare with {given!r}, which is no value. Use column.missing() or column.exists()")
    return kind, made


def text(given: Any, what: str) -> str:
    """A text from a user. Raises ValueError if UTF-8 cannot encode it."""
    if not isinstance(given, str):
        raise TypeError(f"{what} is {given!r}; it is no text. Pass a str")
    try:
        return _unicode(given)
    except ValueError as error:
        raise ValueError(f"{what} {error}") from None


def several(given: Any, asked: str) -> List[Any]:
    """The values of an argument that takes several values. A single text is an error, because
    Python would iterate over its characters.
    """
    if isinstance(given, (str, bytes, bytearray)):
        raise TypeError(f"{asked}({given!r}) would ask for each character. Pass a list, {asked}([{given!r}])")
    if not hasattr(given, "__iter__"):
        raise TypeError(f"{asked}({given!r}); it asks for several values. Pass a list of values, {asked}([{given!r}])")
    return list(given)


def time(microseconds: int) -> Any:
    """A timestamp as a datetime, or as a numpy.datetime64 if its year is beyond the range of
    datetime.
    """
    try:
        return _EPOCH + datetime.timedelta(microseconds=microseconds)
    except OverflowError:
        return numpy.datetime64(microseconds, "us")


def _columns(attributes: Any, rows: int, types: Mapping[str, str]) -> Dict[str, Column]:
    if isinstance(attributes, collections.abc.Mapping):
        named = [(name, attributes[name]) for name in attributes]
    elif isinstance(attributes, (list, tuple)):
        return _of_rows(attributes, rows)
    elif isinstance(attributes, numpy.ndarray) and attributes.dtype.names is not None:
        named = [(name, attributes[name]) for name in attributes.dtype.names]
    elif hasattr(attributes, "column_names"):
        named = [(name, attributes[name]) for name in attributes.column_names]
    elif hasattr(attributes, "columns") and hasattr(attributes, "__getitem__"):
        named = [(name, attributes[name]) for name in attributes.columns]
    else:
        raise TypeError(
            f"attributes is of type {type(attributes).__name__}. Pass a dict of columns, a list of dicts, or a table of pandas, polars or pyarrow"
        )
    made: Dict[str, Column] = {}
    for name, column in named:
        _check_name(name)
        values = _listed(column, f"attributes[{name!r}]")
        if len(values) != rows:
            raise ValueError(f"attributes[{name!r}] has {len(values)} values; it must have {rows}. Pass one for each vector, or None for a vector without a value")
        if types.get(name) == "integer" and getattr(getattr(column, "dtype", None), "kind", None) == "f":
            values = _whole_where_all_are(values, column.dtype)
        made[name] = (*_column(name, values), None)
    return made


def _whole_where_all_are(values: List[Any], dtype: Any) -> List[Any]:
    """Converts the floats of an array to integers, if each is missing or a whole number below a
    bound. Otherwise returns `values` unchanged. Above the bound, one float stands for several
    integers.
    """
    bound = 2.0 ** (numpy.finfo(getattr(dtype, "numpy_dtype", dtype)).nmant + 1)
    if not all(_is_missing(one) or (abs(one) < bound and float(one).is_integer()) for one in values):
        return values
    return [None if _is_missing(one) else int(one) for one in values]


def _of_rows(attributes: Iterable[Any], rows: int) -> Dict[str, Column]:
    given = list(attributes)
    if len(given) != rows:
        raise ValueError(f"attributes has {len(given)} rows; it must have {rows}. Pass one row for each vector")
    columns: Dict[str, List[Any]] = {}
    named: Dict[str, List[bool]] = {}
    for row, one in enumerate(given):
        if one is None:
            continue
        if not isinstance(one, collections.abc.Mapping):
            raise TypeError(f"attributes: row {row} is {_shortened(one)}; a row has names and values. Pass a dict, or None")
        for name in one:
            if name not in columns:
                _check_name(name)
                columns[name], named[name] = [None] * rows, [False] * rows
            columns[name][row], named[name][row] = one[name], True
    return {name: (*_column(name, values), named[name]) for name, values in columns.items()}


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"attributes has a column named {name!r}; a name is a text. Pass a str")
    text(name, "the name of a column of attributes")


def _listed(column: Any, what: str) -> List[Any]:
    """The values of a column, as Python's own types instead of types of numpy, pandas or another
    package.
    """
    if isinstance(column, (str, bytes)) or not hasattr(column, "__iter__"):
        raise TypeError(f"{what} is {_shortened(column)}. Pass a list with a value for each vector")
    if isinstance(column, numpy.ndarray):
        # For times, tolist() would return nanoseconds as plain integers.
        return list(column) if column.ndim != 1 or column.dtype.kind == "M" else list(column.tolist())
    for listed in ("to_pylist", "to_list"):
        if hasattr(column, listed):
            return list(getattr(column, listed)())
    return list(column)


def _column(name: str, values: List[Any]) -> Tuple[str, List[Any]]:
    kind, kind_of = None, 0
    made: List[Any] = []
    for row, given in enumerate(values):
        try:
            found, one = _value(given)
        except (TypeError, ValueError) as error:
            raise type(error)(f"attributes[{name!r}]: row {row} {error}") from None
        made.append(one)
        if found is None or found == kind:
            continue
        if kind is None or {kind, found} == {"integer", "float"}:
            kind, kind_of = ("float" if kind is not None else found), row
            continue
        raise TypeError(
            f"attributes[{name!r}]: row {row} is {_shortened(given)}, of type {found}, and row {kind_of} is of type {kind}; a column has one type. Pass values of one type"
        )
    if kind == "float":
        made = [None if one is None else _as_float(name, row, one) if isinstance(one, int) else float(one) for row, one in enumerate(made)]
    return kind or "none", made


def _as_float(name: str, row: int, given: int) -> float:
    """A whole number as a float, for a column that also has floats. Above 2^53 and below -2^53,
    most whole numbers have no exact float, and are an error.
    """
    made = float(given)
    if made != given:
        raise ValueError(
            f"attributes[{name!r}]: row {row} is {given}, which no float equals exactly, and the column has floats in other rows. Pass only whole "
            f"numbers for a column of integers, or round this number, float({given})"
        )
    return made


def _value(given: Any) -> Tuple[Optional[str], Any]:
    """The name of a value's type, and the value in the form that the Rust part reads. (None, None)
    means no value.
    """
    if _is_missing(given):
        return None, None
    if isinstance(given, numpy.datetime64):
        micros = given.astype("datetime64[us]")
        # If the time does not fit into 64 bits, NumPy overflows without an error.
        if micros.astype("datetime64[Y]") != given.astype("datetime64[Y]"):
            raise ValueError(f"is {given}; times are microseconds since 1970 in 64 bits, which hold the years -290307 to 294247. Pass another time")
        return "timestamp", int(micros.astype(numpy.int64))
    if isinstance(given, (numpy.generic, numpy.ndarray)):
        given = given.tolist()
    if isinstance(given, bool):
        return "boolean", given
    if isinstance(given, int):
        return "integer", _whole(given)
    if isinstance(given, float):
        return "float", given
    if isinstance(given, str):
        return "string", _unicode(str(given))
    if isinstance(given, datetime.datetime):
        aware = given if given.tzinfo is not None else given.replace(tzinfo=datetime.timezone.utc)
        return "timestamp", int((aware - _EPOCH) // _MICROSECOND)
    if isinstance(given, datetime.date):
        midnight = datetime.datetime(given.year, given.month, given.day, tzinfo=datetime.timezone.utc)
        return "timestamp", (midnight - _EPOCH) // _MICROSECOND
    if isinstance(given, (list, tuple, set, frozenset)):
        return _items([one.item() if isinstance(one, numpy.generic) else one for one in given])
    raise TypeError(
        f"is {_shortened(given)}. Pass a bool, an int, a float, a str, a datetime, a list of str or of int, or None; values of other types can go into the payload"
    )


def _is_missing(given: Any) -> bool:
    if given is None or type(given).__name__ in ("NAType", "NaTType", "MaskedConstant"):
        return True
    if isinstance(given, numpy.datetime64):
        return bool(numpy.isnat(given))
    return isinstance(given, (float, numpy.floating)) and math.isnan(given)


def _items(items: List[Any]) -> Tuple[Optional[str], Any]:
    if not items:
        return None, None
    if all(isinstance(one, str) for one in items):
        return "strings", [_unicode(one) for one in items]
    if all(isinstance(one, int) and not isinstance(one, bool) for one in items):
        return "integers", [_whole(one) for one in items]
    remedy = "Pass one of these"
    if len(items) > 1 and all(isinstance(one, float) for one in items):
        remedy = "If these are vectors, leave the column out of attributes and pass it as vectors"
    raise TypeError(f"is {_shortened(items)}; a list has only str or only int. {remedy}")


def _unicode(given: str) -> str:
    """Returns the text if UTF-8 can encode it. A Python text may have halves of characters
    (surrogates), which UTF-8 cannot encode.
    """
    try:
        if not given.isascii():
            given.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"is {_shortened(given)}, with the half of a character (a surrogate) at {error.start}, which UTF-8 cannot encode. Decode the text again, "
            'or pass text.encode("utf-8", "replace").decode()'
        ) from None
    return given


def _shortened(given: Any) -> str:
    """A value for an error, in at most about 100 characters."""
    if isinstance(given, str):
        return repr(given) if len(given) <= 80 else f"{given[:80]!r}.. ({len(given)} characters)"
    if isinstance(given, (list, tuple)) and len(given) > 4:
        return f"{list(given[:4])!r}.. ({len(given)} items)"[:200]
    shown = repr(given)
    return shown if len(shown) <= 200 else f"{shown[:200]}.."


def _whole(given: int) -> int:
    if not -_LARGEST - 1 <= given <= _LARGEST:
        raise ValueError(f"is {given}; whole numbers have 64 bits. Pass -2^63 to 2^63 - 1, or a float")
    return given


def _payload(payload: Any, rows: int) -> List[Optional[str]]:
    if isinstance(payload, collections.abc.Mapping):
        raise TypeError("payload is a dict. Pass a list, with a JSON value or None for each vector")
    given = _listed(payload, "payload")
    if len(given) != rows:
        raise ValueError(f"payload has {len(given)} values; it must have {rows}. Pass one for each vector, or None for a vector without a value")
    made: List[Optional[str]] = []
    for row, one in enumerate(given):
        if _is_missing(one):
            made.append(None)
            continue
        try:
            said = json.dumps(one, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise type(error)(f"payload: row {row} cannot be written as JSON; {error}. Pass a JSON value") from None
        made.append(text(said, f"payload: row {row}"))
    return made
