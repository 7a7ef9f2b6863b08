"""Encodes metadata as JSON, including values of types that JSON lacks. Decoding returns the same
values.

    2024-02-29 12:00 UTC ──> {"$datetime": "2024-02-29T12:00:00+00:00"} ──> the same datetime

A value of JSON's own types stays unchanged. A dict with a key that is no str, or that looks like an
encoded value, becomes {"$dict": [[key, value], ..]}.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import math
import uuid
from typing import Any, Callable, Dict, Mapping

import numpy


def encode(value: Any, what: str) -> Any:
    """A value as JSON types. Raises TypeError, with `what` as the name of the value, if it cannot
    be encoded.
    """
    if isinstance(value, numpy.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value if type(value) in (type(None), bool, int, str) else _plain(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, Mapping):
        return _encode_dict(value, what)
    if isinstance(value, list):
        return [encode(one, f"{what}[{at}]") for at, one in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": [encode(one, f"{what}[{at}]") for at, one in enumerate(value)]}
    if isinstance(value, (set, frozenset)):
        return {"$set": [encode(one, what) for one in sorted(value, key=repr)]}
    if isinstance(value, numpy.ndarray):
        return encode(value.tolist(), what)
    if isinstance(value, datetime.datetime):
        return {"$datetime": value.isoformat()}
    if isinstance(value, datetime.date):
        return {"$date": value.isoformat()}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, uuid.UUID):
        return {"$uuid": str(value)}
    if isinstance(value, decimal.Decimal):
        return {"$decimal": str(value)}
    raise TypeError(
        f"{what} is {value!r}, of type {type(value).__name__}. Pass a JSON value, or a datetime, a date, bytes, a UUID, a Decimal or a set"
    )


def decode(value: Any) -> Any:
    """The value from which `encode` made `value`."""
    if isinstance(value, list):
        return [decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (name, held), = value.items()
        if name in _DECODERS:
            return _DECODERS[name](held)
    return {name: decode(one) for name, one in value.items()}


def _plain(value: Any) -> Any:
    """A value of a subclass, such as an enum, as the JSON type that it derives from."""
    for kind in (bool, int, str):
        if isinstance(value, kind):
            return kind.__str__(value) if kind is str else kind(value)
    return value


def _encode_dict(value: Mapping[Any, Any], what: str) -> Dict[str, Any]:
    if all(isinstance(name, str) for name in value) and not any(name in _DECODERS for name in value):
        return {name: encode(one, f"{what}[{name!r}]") for name, one in value.items()}
    return {"$dict": [[encode(name, what), encode(one, f"{what}[{name!r}]")] for name, one in value.items()]}


_DECODERS: Dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$tuple": lambda held: tuple(decode(one) for one in held),
    "$set": lambda held: {decode(one) for one in held},
    "$datetime": datetime.datetime.fromisoformat,
    "$date": datetime.date.fromisoformat,
    "$bytes": base64.b64decode,
    "$uuid": uuid.UUID,
    "$decimal": decimal.Decimal,
    "$dict": lambda held: {decode(name): decode(one) for name, one in held},
}
