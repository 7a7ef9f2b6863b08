"""Searches shards that are open in actors. A search asks all shards and merges their results.

```text
search ── queries, once ──> actor of shards 0, 3 ── Index.search each, merged ──┐
          into the      ├──> actor of shards 1, 4 ── ..                         ├──> merged
          object store  └──> actor of shards 2, 5 ── ..                         ┘
```

Every shard returns its own k nearest vectors, and the search returns the k nearest of them. Without
one of the shards, the results would be wrong. So a search that cannot ask all shards fails.
"""

from __future__ import annotations

import operator
import pathlib
import time
from typing import Any, Iterable, Literal, Optional, Sequence, Union, overload

import numpy
import ray
from numpy.typing import NDArray

import stratann

from .._stratann import MOST_PADDED
from ..merging import nearest
from .placement import WORKER_BYTES, Actors, Resources
from .source import Path
from .staging import facts

_Ids = NDArray[numpy.uint64]
_Distances = NDArray[numpy.float32]


class ShardedIndex:
    """A folder of shards, open in the actors of a Ray cluster.

    Parameters
    ----------
    folder : str or os.PathLike
        A folder that `build_shards` has built, or any folder of indexes with the same dimension,
        metric and dtype. All nodes must see the same files under this path.
    actors : int, optional
        The number of actors that share the shards. None is one actor for each shard.
    memory : int, optional
        The memory of each actor for its shards, in bytes. The shards of an actor get equal parts of
        it, as `memory` of `stratann.open`. Ray also reserves the memory of a worker without an
        index (`placement.WORKER_BYTES`).
    resources : Resources
        The resources of each actor. With 4 CPUs, an actor searches its shards one after the other,
        each with 4 threads.
    restarts : int
        The maximum number of times that Ray restarts an actor that died. -1 is no limit. A running
        search asks a restarted actor again.
    timeout : float
        The time limit of a search in seconds, including the restart of actors that died. `search`
        can override it.
    opening : float
        The time limit for opening the shards in seconds, including the time in which Ray finds or
        starts nodes.
    io, cache, navigation, place
        As in `stratann.open`. For example with place="topology=ssd:/mnt/nvme", each node has copies
        on its own disk.

    A `ShardedIndex` may be passed to other tasks and actors of the cluster, which then search with
    its actors. The actors end with `close`, with the end of the `with` block, or with the program
    that opened the index.

    Raises
    ------
    FileNotFoundError, ValueError
        The folder does not exist, shards are missing in it, or its indexes differ in dimension,
        metric or dtype.
    DeadlineError
        Actors did not start in time.
    """

    def __init__(
        self,
        folder: Path,
        *,
        actors: Optional[int] = None,
        memory: Optional[int] = None,
        resources: Resources = Resources(),
        restarts: int = -1,
        timeout: float = 30.0,
        opening: float = 300.0,
        io: str = "auto",
        cache: Union[int, str, None] = None,
        navigation: Optional[bool] = None,
        place: Union[dict[str, str], str, None] = None,
    ) -> None:
        self.path = pathlib.Path(folder).absolute()
        self._timeout = timeout
        names, state = _shards(self.path)
        count = len(names) if actors is None else actors
        if not 1 <= count <= len(names):
            raise ValueError(f"actors is {count}; each has at least one of the {len(names)} shards. Pass 1 to {len(names)}")
        options = {"io": io, "cache": cache, "navigation": navigation, "place": place}
        bound = None if memory is None else memory + WORKER_BYTES
        self._actors = Actors(_Shards, resources, bound=bound, restarts=restarts)
        try:
            for actor in range(count):
                own = names[actor::count]
                self._actors.start(" and ".join(own), self.path, own, state, memory, resources.threads, options)
            described = [shard for of_actor in self._actors.ask("describe", timeout=opening).values() for shard in of_actor]
            self._space = _of_one_space(described)
        except BaseException:
            self._actors.end()
            raise
        self.shards: tuple[str, ...] = tuple(names)
        """The names of the shards."""
        self._vectors: int = sum(shard["vectors"] for shard in described)

    @property
    def dim(self) -> int:
        """The dimension of the vectors."""
        return int(self._space["dim"])

    @property
    def metric(self) -> str:
        """The metric of the vectors: "l2", "ip" or "cosine"."""
        return str(self._space["metric"])

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """The dtype of the vectors, and of queries."""
        return numpy.dtype(str(self._space["dtype"]))

    def __len__(self) -> int:
        """The number of vectors of all shards, as counted when the index was opened."""
        return self._vectors

    def __repr__(self) -> str:
        actors = len(self._actors.handles())
        return f"ShardedIndex({str(self.path)!r}: {len(self)} vectors in {len(self.shards)} shards, {actors} actors)"

    @overload
    def search(
        self,
        queries: NDArray[Any],
        k: int = 10,
        *,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        beam: Optional[int] = None,
        strategy: Optional[str] = None,
        navigation: Optional[bool] = None,
        whole_page: Optional[bool] = None,
        exact: bool = True,
        stop_early: bool = False,
        threads: Optional[int] = None,
        in_flight: Optional[int] = None,
        timeout: Optional[float] = None,
        return_stats: Literal[False] = False,
    ) -> tuple[_Ids, _Distances]: ...
    @overload
    def search(
        self,
        queries: NDArray[Any],
        k: int = 10,
        *,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        beam: Optional[int] = None,
        strategy: Optional[str] = None,
        navigation: Optional[bool] = None,
        whole_page: Optional[bool] = None,
        exact: bool = True,
        stop_early: bool = False,
        threads: Optional[int] = None,
        in_flight: Optional[int] = None,
        timeout: Optional[float] = None,
        return_stats: Literal[True],
    ) -> tuple[_Ids, _Distances, dict[str, Any]]: ...
    def search(
        self,
        queries: NDArray[Any],
        k: int = 10,
        *,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        beam: Optional[int] = None,
        strategy: Optional[str] = None,
        navigation: Optional[bool] = None,
        whole_page: Optional[bool] = None,
        exact: bool = True,
        stop_early: bool = False,
        threads: Optional[int] = None,
        in_flight: Optional[int] = None,
        timeout: Optional[float] = None,
        return_stats: bool = False,
    ) -> Any:
        """Finds the `k` nearest vectors of all shards, for one query, (d,), or several, (nq, d).

        Parameters
        ----------
        queries, k, list_size, probes, beam, strategy, navigation, whole_page, exact, stop_early,
        in_flight
            As in `stratann.Index.search`, for each shard. With several shards, distances are always
            exact, because the search compares distances of different shards.
        threads : int, optional
            The threads of each actor. None is its number of CPUs.
        timeout : float, optional
            The number of seconds after which the search raises `DeadlineError`. None takes the
            `timeout` of the index.
        return_stats : bool
            Whether to return `stats` as well.

        Returns
        -------
        ids : numpy.ndarray
            uint64, (nq, k), or (k,) for one query; nearest first. At equal distances, the smaller
            id comes first. An id that several shards have is one result. If all shards together
            have fewer than k vectors, the rest of each row is 2^64 - 1.
        distances : numpy.ndarray
            float32, of the same shape. The distance of a missing result is infinite.
        stats : dict
            Only with `return_stats`. "queries" and "seconds" describe the call. "per_query" and
            "cpu_us" are sums of these keys of `stratann.Index.search` over the shards; "cpu_us" is
            the CPU time of the searching threads. "shards" has the stats of each shard that has
            vectors.

        Raises
        ------
        ValueError, TypeError
            As in `stratann.Index.search`.
        DeadlineError, ActorsError
            Actors did not answer in time, or died and will not be restarted.
        stratann.StratannError
            A shard failed with this error.
        """
        begun = time.monotonic()
        if not self._actors.handles():
            raise ValueError("the index is closed. Open it again")
        k = operator.index(k)
        most = max(len(self), MOST_PADDED)
        if not 1 <= k <= most:
            raise ValueError(f"k is {k}; a search returns 1 to {most} results. Pass a number in this range")
        options = {
            "list_size": list_size,
            "probes": probes,
            "beam": beam,
            "strategy": strategy,
            "navigation": navigation,
            "whole_page": whole_page,
            "exact": exact or len(self.shards) > 1,
            "stop_early": stop_early,
            "in_flight": in_flight,
        }
        timeout = self._timeout if timeout is None else timeout
        single = getattr(queries, "ndim", None) == 1
        asked = ray.put(queries)
        given = {name: value for name, value in options.items() if value is not None}
        found = self._actors.ask("search", asked, k, threads, given, timeout=timeout)
        shape = (k,) if single else (-1, k)
        ids, distances = (part.reshape(shape) for part in nearest([answer[:2] for answer in found.values()], k))
        if not return_stats:
            return ids, distances
        shards = {name: stats for _, _, of_actor in found.values() for name, stats in of_actor.items()}
        in_order = {name: shards[name] for name in self.shards if name in shards}
        queries_asked = 1 if single else len(ids)
        return ids, distances, {"queries": queries_asked, "seconds": time.monotonic() - begun, **_summed(in_order, queries_asked)}

    def stats(self, timeout: Optional[float] = None) -> dict[str, Any]:
        """Facts about the shards: "vectors" is the number in all shards, and "shards" has the
        `stratann.Index.stats` of each shard.
        """
        of_actors = self._actors.ask("stats", timeout=self._timeout if timeout is None else timeout).values()
        shards = {name: stats for of_actor in of_actors for name, stats in of_actor.items()}
        shards = {name: shards[name] for name in self.shards}
        return {"vectors": sum(stats["vectors"] for stats in shards.values()), "shards": shards}

    def close(self) -> None:
        """Ends the actors. A second call does nothing."""
        self._actors.end()

    def __enter__(self) -> ShardedIndex:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Shards:
    """An actor with some shards open. A restarted actor opens its shards again."""

    def __init__(
        self,
        folder: pathlib.Path,
        names: Sequence[str],
        state: Optional[str],
        memory: Optional[int],
        threads: int,
        options: dict[str, Any],
    ) -> None:
        now = (facts(folder) or {}).get("state")
        if now != state:
            raise stratann.OutdatedError(
                f"{folder}: the folder was replaced since it was opened. Close the ShardedIndex and open it again"
            )
        each = None if memory is None else memory // len(names)
        self._indexes = {name: stratann.open(folder / name, memory=each, **options) for name in names}
        self._threads = threads

    def describe(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "vectors": len(index), "space": {"dim": index.dim, "metric": index.metric, "dtype": index.dtype.name}}
            for name, index in self._indexes.items()
        ]

    def search(
        self, queries: NDArray[Any], k: int, threads: Optional[int], options: dict[str, Any]
    ) -> tuple[_Ids, _Distances, dict[str, dict[str, Any]]]:
        found, stats = [], {}
        rows = queries[numpy.newaxis] if getattr(queries, "ndim", None) == 1 else queries
        for name, index in self._indexes.items():
            # A shard with fewer than k vectors returns all of them.
            own = min(k, len(index))
            if own:
                ids, distances, said = index.search(rows, own, threads=threads or self._threads, return_stats=True, **options)
                found.append((ids, distances))
                del said["latencies_us"]
                stats[name] = said
        if not found:
            none = numpy.empty((len(rows), 0))
            found.append((none.astype(numpy.uint64), none.astype(numpy.float32)))
        return (*nearest(found, k), stats)

    def stats(self) -> dict[str, dict[str, Any]]:
        return {name: index.stats() for name, index in self._indexes.items()}


def _shards(folder: pathlib.Path) -> tuple[list[str], Optional[str]]:
    """The names of the shards in a folder, and the "state" in shards.json, or None if the folder
    has no such file.
    """
    there = stratann.Catalog(folder).names()
    said = facts(folder)
    if said is None:
        if not there:
            raise ValueError(f"{folder}: there are no indexes in this folder. Build them with build_shards")
        return there, None
    names: list[str] = said["shards"]
    missing = [name for name in names if name not in there]
    if missing:
        raise FileNotFoundError(
            f"{folder / missing[0]}: this shard is missing, one of {len(missing)} in all. Copy the whole folder, or build it again"
        )
    return names, said["state"]


def _of_one_space(described: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The dimension, metric and dtype of all shards. Raises ValueError if they differ."""
    first, *others = described
    for other in others:
        if other["space"] != first["space"]:
            raise ValueError(
                f"{other['name']} has vectors of {other['space']} and {first['name']} has {first['space']}; they cannot be searched as one. Build both from vectors of one kind"
            )
    return dict(first["space"])


def _summed(shards: dict[str, dict[str, Any]], queries: int) -> dict[str, Any]:
    """The costs of all shards together, per query. A shard without vectors was not asked."""
    per_query: dict[str, float] = {}
    for stats in shards.values():
        for name, value in stats["per_query"].items():
            per_query[name] = per_query.get(name, 0.0) + value
    cpu_us = sum(stats["cpu_seconds"] for stats in shards.values()) * 1e6 / max(queries, 1)
    return {"per_query": per_query, "cpu_us": cpu_us, "shards": shards}
