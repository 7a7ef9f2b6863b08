"""Arguments by name: a call that is given a name it does not have says which one is meant."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, TypeVar, cast

from . import _stratann
from ._stratann import meant

_Call = TypeVar("_Call", bound=Callable[..., Any])


def checked(call: _Call) -> _Call:
    """The same function of `stratann`, which looks at the names of its arguments first."""
    names = list(inspect.signature(call).parameters)

    @functools.wraps(call)
    def with_names(*arguments: Any, **named: Any) -> Any:
        for name in named:
            if name not in names:
                near = meant(name, names)
                suggestion = "" if near is None else f' (did you mean "{near}"?)'
                raise TypeError(f'{call.__name__}() has no argument "{name}"{suggestion}')
        return call(*arguments, **named)

    # Where `pickle` finds it.
    with_names.__module__ = "stratann"
    return cast(_Call, with_names)


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
