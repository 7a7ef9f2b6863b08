"""Places tasks and actors on nodes, and calls groups of actors.

All work of StratANN on a Ray cluster is a task or an actor with `Resources`. `Actors` is a group of
actors, each with a name for error messages. A group starts its actors, calls all of them with a
deadline, and ends them. Ray restarts an actor that died. The actors of a `ShardedIndex` are such a
group (`search.py`), and so are the servers of each role of DistVS (`cluster.py`).
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Mapping, Optional, Sequence

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError, RayTaskError

from .. import StratannError

WORKER_BYTES = 256 << 20
"""The memory of a worker with Python, Ray, Arrow and NumPy, without an index: 196 to 204 MB at its
peak (Ray 2.60).
"""

AGAIN = 0.25
"""The pause before a group calls an unavailable actor again, in seconds."""

NAMED = 8
"""A message names at most this many members of a group of actors."""


class ActorsError(StratannError):
    """Actors did not answer. `names` has their names, or the names of their shards in a
    `ShardedIndex`.
    """

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.names)


class DeadlineError(ActorsError, TimeoutError):
    """Actors did not answer in time. They are still working, are being restarted, or wait for
    resources that no node has.
    """


@dataclasses.dataclass(frozen=True)
class Resources:
    """The resources of a task or an actor on its node.

    Parameters
    ----------
    cpus : float
        The number of cores. The engine uses the same number of threads, and at least one.
    memory : int, optional
        The memory that Ray reserves on the node, in bytes. None is the memory cap of the work plus
        the memory of a worker without an index; without a cap, Ray reserves no memory. Ray only
        counts this memory; the engine enforces the cap.
    custom : mapping of str to float
        Custom resources with which nodes of the cluster were started, for example {"ssd": 1}.
    strategy : str or ray.util.scheduling_strategies object
        Ray's `scheduling_strategy`: "SPREAD" puts actors on different nodes if possible, "DEFAULT"
        packs them.
    """

    cpus: float = 1
    memory: Optional[int] = None
    custom: Mapping[str, float] = dataclasses.field(default_factory=dict)
    strategy: Any = "SPREAD"

    def __post_init__(self) -> None:
        if not self.cpus >= 0:
            raise ValueError(f"cpus is {self.cpus}; it is a number of processors. Pass 0 or more")
        if self.memory is not None and self.memory <= 0:
            raise ValueError(f"memory is {self.memory}; it is no size. Pass a number of bytes above 0, or None")

    @property
    def threads(self) -> int:
        """The number of threads of the engine."""
        return max(1, int(self.cpus))

    def options(self, bound: Optional[int]) -> dict[str, Any]:
        """Ray's `options` for a task or an actor. `bound` is the maximum memory of its process in
        bytes, if known.
        """
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

    Ray restarts an actor that dies, up to `restarts` times (-1: without limit), on another node if
    the node of the actor is lost. The group repeats a call during the restart until the actor
    answers or the deadline has passed. So a method must be safe to call twice. An actor whose
    `__init__` raises an exception is not restarted.
    """

    def __init__(
        self, kind: type, resources: Resources, *, bound: Optional[int], restarts: int, max_concurrency: int = 1
    ) -> None:
        self._class: Any = ray.remote(kind)
        # No retries by Ray: it limits their number, and all of them may fail before Ray knows that
        # a node is lost.
        self._options = {"max_restarts": restarts, "max_task_retries": 0, **resources.options(bound)}
        if max_concurrency > 1:
            self._options["max_concurrency"] = max_concurrency
        self._resources = resources
        self._actors: dict[str, Any] = {}

    def start(self, name: str, /, *arguments: Any, **options: Any) -> None:
        """Makes Ray start one more actor, with these `options` of Ray. If its `__init__` raises an
        exception, the first `ask` raises it.
        """
        self._actors[name] = self._class.options(**self._options, **options).remote(*arguments)

    def ask(self, method: str, *arguments: Any, timeout: float) -> dict[str, Any]:
        """Calls a method of each actor, and returns the results by the names of the actors. An
        argument that is an `ObjectRef` is sent to each node once.

        Raises an exception of the method unchanged. Raises `DeadlineError` if an actor did not
        answer within `timeout` seconds, and `ActorsError` if an actor died and is not restarted.
        There are no partial results.
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
                # Results that have arrived are used, even after the deadline.
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
            # Calls that are no longer needed are cancelled before they begin. A running call
            # continues to its end.
            for call in calls:
                ray.cancel(call)
        return {name: answers[name] for name in self._actors}

    def end(self) -> None:
        """Ends the actors, including dead ones. A second call does nothing."""
        for actor in self._actors.values():
            ray.kill(actor, no_restart=True)
        self._actors = {}

    def handles(self) -> dict[str, Any]:
        """Ray's handles, by name."""
        return dict(self._actors)

    def _late(self, names: Sequence[str], method: str, timeout: float) -> DeadlineError:
        return DeadlineError(
            f"no answer of {_listed(names)} to {method!r} within {timeout:g} s; they are still working, are being restarted, or no node has "
            f"the resources of each ({self._resources}). `ray status` lists pending actors. Pass a longer timeout, or add nodes",
            names,
        )


def _raised(error: RayError, name: str) -> Exception:
    """The exception that the actor's method raised, unchanged. For a dead actor, an error with
    Ray's reason.
    """
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception) and not isinstance(error.cause, RayError):
        return error.cause
    if isinstance(error, RayActorError):
        return ActorsError(
            f"{name} has died for good, so its group cannot be used. Close it and open it again. Ray says: {error}", [name]
        )
    return ActorsError(f"{name} could not be asked: {error}", [name])


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"
