"""A search over shards that are open in actors: all are asked, and what they find is merged.

    search ── queries, once into the object store ──> actor of shards 0, 3 ── Index.search each, merged ──┐
                                                 ├──> actor of shards 1, 4 ── ..                          ├──> merged
                                                 └──> actor of shards 2, 5 ── ..                          ┘

Every shard is asked for its own k nearest, of which the k nearest of all are. An answer of all shards but one would be a wrong
one, so that a search ends with all of them or with an error.
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
        What `build_shards` has built, or any folder of indexes of one space. All nodes see the same files there.
    actors : int, optional
        How many, over which shards are dealt out; None is one for each shard.
    memory : int, optional
        Bytes that each actor may spend on its shards, of which each has an equal part, as `memory` of `stratann.open`. Ray is
        asked for that and for what a worker takes besides (`placement.WORKER_BYTES`).
    resources : Resources
        Of each actor: with 4 CPUs it searches on 4 threads, one shard after the other.
    restarts : int
        How often Ray starts an actor anew that died; -1 is without end. A search that goes on meanwhile asks it again.
    timeout : float
        Seconds in which a search has to be answered, and its actors started anew where they died; `search` may say otherwise.
    opening : float
        The same of opening, in which Ray finds or starts the nodes.
    io, cache, navigation, place
        As those of `stratann.open`. With place="topology=ssd:/mnt/nvme", say, each node has copies on a disk of its own.

    May be handed to other tasks and actors of the cluster, who search with the same actors. These end with `close`, with the
    block, or with the program that opened it.

    Raises
    ------
    FileNotFoundError, ValueError
        No folder, shards that are missing from it, or indexes that are not of one space.
    DeadlineError
        Actors that did not start in time.
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
            raise ValueError(f"actors is {count}: it must be from 1 to {len(names)}, the number of shards")
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
        """Their names."""
        self._vectors: int = sum(shard["vectors"] for shard in described)

    @property
    def dim(self) -> int:
        """The dimension of its vectors."""
        return int(self._space["dim"])

    @property
    def metric(self) -> str:
        """Of its vectors: "l2", "ip" or "cosine"."""
        return str(self._space["metric"])

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """The dtype of its vectors, and of queries."""
        return numpy.dtype(str(self._space["dtype"]))

    def __len__(self) -> int:
        """How many vectors all shards had when they were opened."""
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
        """The `k` nearest of all shards, for one query, (d,), or several, (nq, d).

        Parameters
        ----------
        queries, k, list_size, probes, beam, strategy, navigation, whole_page, exact, stop_early, in_flight
            As those of `stratann.Index.search`, for each shard. With several shards distances are always exact, since they are
            compared between them.
        threads : int, optional
            Of each actor; None is the CPUs that it was given.
        timeout : float, optional
            Seconds until it is a `DeadlineError`; None is what the index was opened with.
        return_stats : bool
            Whether to return a dict as well.

        Returns
        -------
        ids : numpy.ndarray
            uint64, (nq, k), or (k,) for one query; nearest first. On equal distance the smaller id comes first, and an id that
            several shards have is one answer. Where all shards together have fewer than k that live, the rest is 2^64 - 1.
        distances : numpy.ndarray
            float32, of the same shape; infinite where there is no answer.
        stats : dict
            Only with `return_stats`: "queries", "seconds" (of the call), "per_query" and "cpu_us" (sums over the shards of what
            `stratann.Index.search` has under these names; the CPU is that of the searching threads), and "shards", those of
            each shard that has vectors.

        Raises
        ------
        ValueError, TypeError
            As those of `stratann.Index.search`.
        DeadlineError, ActorsError
            Actors that did not answer in time, or are dead for good.
        stratann.StratannError
            What a shard failed with.
        """
        begun = time.monotonic()
        if not self._actors.handles():
            raise ValueError("the index is closed")
        k = operator.index(k)
        most = max(len(self), MOST_PADDED)
        if not 1 <= k <= most:
            raise ValueError(f"k is {k}: it must be from 1 to {most}")
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
        """Facts about the shards: "vectors" of all, and under "shards" what `stratann.Index.stats` says of each."""
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
    """An actor: some shards, open. Started anew, it opens them anew."""

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
                f"{folder}: it was replaced since it was opened: close the ShardedIndex and open it again"
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
            # A shard has what it has; all others may have more.
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
    """The names of the shards in a folder, and the state of the catalog if it has one."""
    there = stratann.Catalog(folder).names()
    said = facts(folder)
    if said is None:
        if not there:
            raise ValueError(f"{folder}: there are no indexes in it: build them with build_shards")
        return there, None
    names: list[str] = said["shards"]
    missing = [name for name in names if name not in there]
    if missing:
        raise FileNotFoundError(
            f"{folder / missing[0]}: a shard is missing, of {len(missing)} in all: copy the folder as a whole, or build it again"
        )
    return names, said["state"]


def _of_one_space(described: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What vectors all shards have; they must have the same."""
    first, *others = described
    for other in others:
        if other["space"] != first["space"]:
            raise ValueError(
                f"{other['name']} has vectors of {other['space']} and {first['name']} of {first['space']}: they cannot be searched as one"
            )
    return dict(first["space"])


def _summed(shards: dict[str, dict[str, Any]], queries: int) -> dict[str, Any]:
    """What all shards took together, a query. One whose vectors are all deleted was not asked."""
    per_query: dict[str, float] = {}
    for stats in shards.values():
        for name, value in stats["per_query"].items():
            per_query[name] = per_query.get(name, 0.0) + value
    cpu_us = sum(stats["cpu_seconds"] for stats in shards.values()) * 1e6 / max(queries, 1)
    return {"per_query": per_query, "cpu_us": cpu_us, "shards": shards}
