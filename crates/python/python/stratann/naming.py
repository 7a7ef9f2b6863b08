"""Checks names of arguments, and paths. A call with an unknown name raises an error that suggests
the right one.

- `stratann.build`, `stratann.open` and other functions get this check here.
- The methods of `Index`, and of other classes, get this check (`checked`) where their class is
  defined. A search checks its names itself, in Rust.
- The methods of `stratann.documents.Documents` get this check in their module. `Documents` and its
  `search` take most arguments as `**options`, so they call `refuse_others` themselves.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any, Callable, Iterable, Mapping, TypeVar, cast

from . import _stratann
from ._stratann import meant

_Call = TypeVar("_Call", bound=Callable[..., Any])
_IN_RUST = ("search", "search_async")


def refuse_others(call: str, given: Iterable[str], names: Iterable[str]) -> None:
    """Raises TypeError if a call was given an argument that it does not have, and suggests the most
    similar name.
    """
    names = list(names)
    for name in given:
        if name not in names:
            near = meant(name, names)
            suggestion = "" if near is None else f' (did you mean "{near}"?)'
            raise TypeError(f'{call}() has no argument "{name}"{suggestion}')


def _check_path(path: Any) -> None:
    """Raises TypeError for an object in place of a path, such as an open index."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        remedy = "Pass its path, index.path" if isinstance(path, _stratann.Index) else "Pass a str or a pathlib.Path"
        raise TypeError(f"path is of type {type(path).__name__}; it is no path. {remedy}")


def checked(call: _Call, module: str = "stratann", elsewhere: Mapping[str, str] = {}) -> _Call:
    """The function or method of `module` with a check of the names of its arguments.

    `elsewhere` has arguments that a sibling of the method has instead, with a reason and a remedy
    that name the sibling.
    """
    parameters = list(inspect.signature(call).parameters)
    names = [name for name in parameters if name != "self"]
    place = parameters.index("path") if "path" in parameters else None

    @functools.wraps(call)
    def with_names(*arguments: Any, **named: Any) -> Any:
        for name in named:
            there = None if name in names else elsewhere.get(meant(name, [*names, *elsewhere]) or "")
            if there is not None:
                raise TypeError(f'{call.__qualname__}() has no argument "{name}"; {there}')
        if named:
            refuse_others(call.__qualname__, named, names)
        if place is not None and (place < len(arguments) or "path" in named):
            _check_path(arguments[place] if place < len(arguments) else named["path"])
        return call(*arguments, **named)

    # `pickle` looks for the function, or for the class of the method, in this module.
    with_names.__module__ = module
    return cast(_Call, with_names)


def _check_methods(kind: type) -> None:
    """Adds the check of names to the public methods of a class."""
    for name, method in list(vars(kind).items()):
        # Methods that are called for each query check names in Rust.
        if not name.startswith("_") and inspect.ismethoddescriptor(method) and name not in _IN_RUST:
            setattr(kind, name, checked(method))


for _kind in (_stratann.Index, _stratann.Catalog, _stratann.Client):
    _check_methods(_kind)

build = checked(_stratann.build)
calibrate = checked(_stratann.calibrate)
connect = checked(_stratann.connect)
create = checked(_stratann.create)
open = checked(_stratann.open, elsewhere={"progress": "opening shows no progress, and Ctrl-C ends it. Leave it out"})
plan = checked(_stratann.plan)
repair = checked(_stratann.repair)
train = checked(_stratann.train)
truth = checked(_stratann.truth)
verify = checked(_stratann.verify)
