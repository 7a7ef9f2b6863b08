"""Arguments by name: a call that is given a name it does not have says which one is meant.

    stratann.build, .open, ...      checked here, and given to users in place of what they wrap
    methods of Index and others     checked in place, in the class; a search reads its names by itself, in Rust
    stratann.documents.Documents    asks `refuse_others`, as it hands most of its names on
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Iterable, TypeVar, cast

from . import _stratann
from ._stratann import meant

_Call = TypeVar("_Call", bound=Callable[..., Any])
_IN_RUST = ("search", "search_async")


def refuse_others(call: str, given: Iterable[str], names: Iterable[str]) -> None:
    """Raises TypeError where a call is given a name that is none of its own, and says which one is meant."""
    names = list(names)
    for name in given:
        if name not in names:
            near = meant(name, names)
            suggestion = "" if near is None else f' (did you mean "{near}"?)'
            raise TypeError(f'{call}() has no argument "{name}"{suggestion}')


def checked(call: _Call) -> _Call:
    """The same function or method of `stratann`, which looks at the names of its arguments first."""
    names = [name for name in inspect.signature(call).parameters if name != "self"]

    @functools.wraps(call)
    def with_names(*arguments: Any, **named: Any) -> Any:
        if named:
            refuse_others(call.__qualname__, named, names)
        return call(*arguments, **named)

    # Where `pickle` finds it.
    with_names.__module__ = "stratann"
    return cast(_Call, with_names)


def _check_methods(kind: type) -> None:
    """Has the public methods of a class look at the names of their arguments first."""
    for name, method in list(vars(kind).items()):
        # Of those that are called for each query, Rust looks at the names.
        if not name.startswith("_") and inspect.ismethoddescriptor(method) and name not in _IN_RUST:
            setattr(kind, name, checked(method))


for _kind in (_stratann.Index, _stratann.Catalog, _stratann.Client):
    _check_methods(_kind)

build = checked(_stratann.build)
calibrate = checked(_stratann.calibrate)
connect = checked(_stratann.connect)
create = checked(_stratann.create)
open = checked(_stratann.open)
plan = checked(_stratann.plan)
repair = checked(_stratann.repair)
train = checked(_stratann.train)
truth = checked(_stratann.truth)
verify = checked(_stratann.verify)
