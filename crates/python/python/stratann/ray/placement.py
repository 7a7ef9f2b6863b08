"""Where tasks and actors go, and how a group of actors is asked.

Whatever StratANN runs on a Ray cluster is a task or an actor with `Resources`. `Actors` is a group of these, each with a name
by which errors tell of it: it starts them, asks all of them by a deadline, and ends them; Ray starts one anew that died. The
shards of an index are such a group (`search.py`), and the servers of each role of DistVS (`cluster.py`).
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Mapping, Optional, Sequence

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError, RayTaskError

from .. import StratannError

WORKER_BYTES = 256 << 20
"""What a worker takes with Python, Ray, Arrow and NumPy, beside what an index is given: 196 to 204 MB at its peak (Ray 2.60)."""

AGAIN = 0.25
"""Seconds until an actor is asked again that could not be."""

NAMED = 8
"""How many of a group a message names."""


class ActorsError(StratannError):
    """Actors that did not answer; `names` says which, of shards their names."""

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.names)


class DeadlineError(ActorsError, TimeoutError):
    """Actors that did not answer in time: they work still, are being started anew, or wait for resources that no node has."""


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a task or an actor takes of its node.

    Parameters
    ----------
    cpus : float
        Cores. The engine runs on as many threads, and on one at least.
    memory : int, optional
        Bytes that Ray sets aside on the node. None is what the work's own bound comes to, with its worker, or nothing where it
        has no bound. Ray only counts with it; what keeps the work within its bound is the engine.
    custom : mapping of str to float
        Resources that the cluster's nodes were started with under these names, {"ssd": 1} for example.
    strategy : str or ray.util.scheduling_strategies object
        As Ray's `scheduling_strategy`: "SPREAD" puts actors on different nodes as far as it can, "DEFAULT" packs them.
    """

    cpus: float = 1
    memory: Optional[int] = None
    custom: Mapping[str, float] = dataclasses.field(default_factory=dict)
    strategy: Any = "SPREAD"

    def __post_init__(self) -> None:
        if not self.cpus >= 0:
            raise ValueError(f"cpus is {self.cpus}: it must be 0 or more")
        if self.memory is not None and self.memory <= 0:
            raise ValueError(f"memory is {self.memory}: it must be a number of bytes above 0, or None")

    @property
    def threads(self) -> int:
        """How many threads the engine may have."""
        return max(1, int(self.cpus))

    def options(self, bound: Optional[int]) -> dict[str, Any]:
        """As Ray's `options` of a task or an actor whose process has so many bytes at the most, if that is known."""
        memory = bound if self.memory is None else self.memory
        options: dict[str, Any] = {"num_cpus": self.cpus, "scheduling_strategy": self.strategy, "resources": dict(self.custom)}
        if memory is not None:
            options["memory"] = memory
        return options

    def __str__(self) -> str:
        parts = [f"{self.cpus:g} CPUs"]
        if self.memory is not None:
            parts.append(f"{self.memory} bytes of memory")
        parts += [f"{amount:g} of {name!r}" for name, amount in self.custom.items()]
        return ", ".join(parts)


class Actors:
    """A group of actors of one class, each with a name.

    One that dies is started anew by Ray, up to `restarts` times (-1: without end), on another node if its own is gone. Whatever
    it is asked meanwhile is asked again until it answers or the deadline has come, so that methods must not change anything.
    One whose `__init__` raises is dead for good.
    """

    def __init__(
        self, kind: type, resources: Resources, *, bound: Optional[int], restarts: int, max_concurrency: int = 1
    ) -> None:
        self._class: Any = ray.remote(kind)
        # Ray's own retries of a call are a number of times, all of which may be over before a node is known to be lost.
        self._options = {"max_restarts": restarts, "max_task_retries": 0, **resources.options(bound)}
        if max_concurrency > 1:
            self._options["max_concurrency"] = max_concurrency
        self._resources = resources
        self._actors: dict[str, Any] = {}

    def start(self, name: str, /, *arguments: Any, **options: Any) -> None:
        """Has Ray start one more, with Ray's `options` of this one; what its `__init__` raises is told by the first `ask`."""
        self._actors[name] = self._class.options(**self._options, **options).remote(*arguments)

    def ask(self, method: str, *arguments: Any, timeout: float) -> dict[str, Any]:
        """What a method of each actor returns, by name. Arguments that are an `ObjectRef` travel once.

        Raises what a method raised, `DeadlineError` where some did not answer within `timeout` seconds, and `ActorsError` where
        one is dead for good. There are no partial answers.
        """
        deadline = time.monotonic() + timeout
        calls: dict[Any, str] = {}
        answers: dict[str, Any] = {}
        due = list(self._actors)
        try:
            while len(answers) < len(self._actors):
                for name in due:
                    calls[getattr(self._actors[name], method).remote(*arguments)] = name
                due = []
                left = deadline - time.monotonic()
                # What is there is taken, however late it is; where nothing is, somebody may have to be asked again.
                done, _ = ray.wait(list(calls), num_returns=1, timeout=max(0.0, left))
                if not done:
                    raise self._late(list(calls.values()), method, timeout)
                name = calls.pop(done[0])
                try:
                    answers[name] = ray.get(done[0], timeout=max(1.0, left))
                except GetTimeoutError:
                    raise self._late([name, *calls.values()], method, timeout) from None
                except ActorUnavailableError:
                    if time.monotonic() + AGAIN > deadline:
                        raise self._late([name, *calls.values()], method, timeout) from None
                    time.sleep(AGAIN)
                    due = [name]
                except RayError as error:
                    raise _raised(error, name) from None
        finally:
            # What nobody waits for any more is not begun. What is at work goes on to its end.
            for call in calls:
                ray.cancel(call)
        return {name: answers[name] for name in self._actors}

    def end(self) -> None:
        """Ends them; those that are dead already are no error. A second call does nothing."""
        for actor in self._actors.values():
            ray.kill(actor, no_restart=True)
        self._actors = {}

    def handles(self) -> dict[str, Any]:
        """Ray's handles, by name."""
        return dict(self._actors)

    def _late(self, names: Sequence[str], method: str, timeout: float) -> DeadlineError:
        return DeadlineError(
            f"no answer of {_listed(names)} to {method!r} within {timeout:g} s: they work still, are being started anew, or no node has "
            f"what each asks for ({self._resources}); `ray status` says what is pending. Give it a longer timeout, or more nodes",
            names,
        )


def _raised(error: RayError, name: str) -> Exception:
    """What a method raised, as if it had been called here; of a death what Ray knows of it."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception) and not isinstance(error.cause, RayError):
        return error.cause
    if isinstance(error, RayActorError):
        return ActorsError(
            f"{name} has died for good, and with it the group: close it and open it again. Ray says: {error}", [name]
        )
    return ActorsError(f"{name} could not be asked: {error}", [name])


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"
