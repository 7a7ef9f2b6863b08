"""The roles of DistVS as actors: one memory server, one storage server, and compute servers, which clients ask.

    search ──> compute server ──┬──> memory server     lists and high codes of the index, in memory
    upsert ──> compute server ──┴──> storage server    exact vectors of the index; changes

Vectors and answers go between these by connections of their own (`stratann.MemoryServer` and its like), never through Ray: Ray puts
the actors on nodes, starts those anew that die, and says where they are.

**Where a server listens.** At the address of its node, with a secret that is drawn for each cluster. Its port is drawn once, or given: an
actor that is started anew on the same node has the same, so that whoever was connected connects again by itself. On another node the address
is another one: compute servers look every second where memory and storage are, and begin anew with what they find, at their own old
address; a `Cluster` looks where compute servers are when none of those that it knows answers.
"""

from __future__ import annotations

import concurrent.futures
import logging
import math
import os
import pathlib
import random
import secrets
import threading
import time
from typing import Any, Callable, Mapping, Optional, TypeVar, Union

import numpy
import ray
from numpy.typing import NDArray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError

import stratann

from .. import conversion
from .placement import Actors, ActorsError, Resources

NAMESPACE = "stratann"
"""Ray's namespace of clusters with a name."""

LOOKS = 1.0
"""Seconds between two looks of a compute server where the others are."""

LOOK = 2.0
"""Seconds that a look may take; who has not said by then where it is, is taken to be where it was."""

ATTEMPT = 3.0
"""Seconds that a query has at first, before it is asked again of servers that were looked up anew; twice as many each time."""

TRIES, PAUSE = 20, 0.25
"""How often, and after how many seconds, an actor tries again to have what the process before it may still hold: its port, the index."""

PORTS = range(20_000, 30_000)
"""Among these ports are drawn: below those that Linux gives to outgoing connections."""

STOP = 10.0
"""Seconds that servers have to end, before their processes are ended."""

_T = TypeVar("_T")
_Ids = NDArray[numpy.uint64]
_Distances = NDArray[numpy.float32]
_Path = Union[str, "os.PathLike[str]"]


class Cluster:
    """An index, served by actors of a Ray cluster: a memory server, a storage server, and compute servers.

    Parameters
    ----------
    index : str or os.PathLike
        An index of the preset "distvs", where the nodes of memory and storage see the same files. Compute servers need no file.
    servers : int
        How many compute servers.
    changes : bool
        Whether it takes `upsert` and `delete`. Nobody else may have the index open for changes then.
    memory, storage, compute : Resources
        Of the actor of each role, and of each compute server. Compute servers search, and storage ranks, on as many threads as they have CPUs. `memory` of these is what Ray
        sets aside: of the memory server no less than its `memory_bytes` (`stats()`), twice that with `changes`.
    options : mapping, optional
        Of compute servers, as those of `stratann.ComputeServer`: {"list_size": 120, "beam": 8}, for example.
    name : str, optional
        By which other programs of the Ray cluster find it (`Cluster.find`).
    detached : bool
        Whether it goes on when this program ends, until somebody calls `close`. Then it needs a name.
    restarts : int
        How often Ray starts each actor anew that died; -1 is without end.
    port : int, optional
        The first of the ports on which servers listen: memory there, storage one behind, then compute servers. None draws them. A port that somebody else has is passed over
        for any that is free.
    timeout : float
        Seconds that a query may take, a restart of the servers included; `search` and others may say otherwise.
    opening : float
        Seconds that starting may take: finding or starting nodes, and reading the index.

    May be handed to other tasks and actors, who search with the same servers. It ends with `close`, with the block, or, unless it is detached, with the program that started it.

    Raises
    ------
    DeadlineError
        Actors that did not start in time: no node has what they ask for, or the index takes longer to read.
    FileNotFoundError, ValueError, InUseError
        What opening the index raised on its node.
    """

    def __init__(
        self,
        index: _Path,
        *,
        servers: int = 1,
        changes: bool = False,
        memory: Resources = Resources(),
        storage: Resources = Resources(),
        compute: Resources = Resources(),
        options: Optional[Mapping[str, Any]] = None,
        name: Optional[str] = None,
        detached: bool = False,
        restarts: int = -1,
        port: Optional[int] = None,
        timeout: float = 10.0,
        opening: float = 300.0,
    ) -> None:
        if servers < 1:
            raise ValueError(f"servers is {servers}: it must be 1 or more")
        if detached and name is None:
            raise ValueError("detached needs a name, by which it can be found and closed")
        path = pathlib.Path(index).absolute()
        secret = secrets.token_hex(32)
        facts = {
            "path": path,
            "servers": servers,
            "changes": changes,
            "secret": secret,
            "timeout": timeout,
            # Actors know each other by name: a handle among the arguments of an actor would be an object of this program, without which it cannot be started anew.
            "name": secrets.token_hex(8) if name is None else name,
        }
        count = servers + 2
        ports = random.sample(PORTS, count) if port is None else list(range(port, port + count))
        given = {"threads": compute.threads, **(options or {})}
        self._begin(facts)
        try:
            group = self._group(_Storage, storage, restarts)
            self._start(group, "storage", detached, path, changes, storage.threads, ports[1], secret)
            group = self._group(_Memory, memory, restarts)
            self._start(group, "memory", detached, path, ports[0], facts)
            for number in range(servers):
                if number == 0:
                    group = self._group(_Compute, compute, restarts)
                self._start(group, f"compute-{number}", detached, facts["name"], ports[2 + number], secret, given)
            deadline = time.monotonic() + opening
            for group in self._groups:
                said = group.ask("address", timeout=max(0.1, deadline - time.monotonic()))
                self._addresses.update({role: address for role, address in said.items() if role.startswith("compute")})
        except BaseException:
            for group in self._groups:
                group.end()
            raise

    def _begin(self, facts: dict[str, Any]) -> None:
        self._facts = facts
        self._groups: list[Actors] = []
        self._handles: dict[str, Any] = {}
        self._addresses: dict[str, str] = {}
        self._lock = threading.Lock()
        # By the number of the server that each asks first; how long a query may take is said with it.
        self._clients: dict[int, stratann.Client] = {}
        self._pool: Optional[concurrent.futures.ThreadPoolExecutor] = None

    def _group(self, kind: type, resources: Resources, restarts: int) -> Actors:
        # Health waits for others; meanwhile it can be asked where it is.
        group = Actors(kind, resources, bound=None, restarts=restarts, max_concurrency=4)
        self._groups.append(group)
        return group

    def _start(self, group: Actors, role: str, detached: bool, *arguments: Any) -> None:
        options = {"name": _actor(self._facts["name"], role), "namespace": NAMESPACE}
        if detached:
            options["lifetime"] = "detached"
        group.start(role, *arguments, **options)
        self._handles[role] = group.handles()[role]

    @classmethod
    def find(cls, name: str, timeout: float = 30.0) -> Cluster:
        """The cluster that was started with this name, by any program of the Ray cluster. Raises `ValueError` where there is none."""
        try:
            memory = ray.get_actor(_actor(name, "memory"), namespace=NAMESPACE)
        except ValueError:
            raise ValueError(f"there is no cluster {name!r}: start it with name={name!r}, or look with `ray list actors`") from None
        deadline = time.monotonic() + timeout
        facts = _told(memory, "facts", deadline, f"the memory server of {name!r}")
        roles = ["memory", "storage", *(f"compute-{number}" for number in range(facts["servers"]))]
        handles = {role: ray.get_actor(_actor(name, role), namespace=NAMESPACE) for role in roles}
        return _found(facts, handles)

    @property
    def secret(self) -> str:
        """What clients have to know: `stratann.connect(cluster.addresses(), secret=cluster.secret)`."""
        return str(self._facts["secret"])

    @property
    def path(self) -> pathlib.Path:
        """The index."""
        return pathlib.Path(self._facts["path"])

    def addresses(self) -> list[str]:
        """Where the compute servers are, by their numbers. One that is being started anew is where it was."""
        self._open()
        self._look()
        return self._known()

    def connect(self, timeout: float = 10.0) -> stratann.Client:
        """A client of the compute servers, where they are now. It does not follow them to other addresses; this object does."""
        return stratann.connect(self.addresses(), secret=self.secret, timeout=timeout)

    def search(
        self,
        queries: Any,
        k: int = 10,
        *,
        list_size: Optional[int] = None,
        beam: Optional[int] = None,
        in_flight: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> tuple[_Ids, _Distances]:
        """The `k` nearest vectors of each query, as those of `stratann.Client.search`.

        The queries are divided among the compute servers. What one of them does not answer is asked of others, looked up anew, until `timeout` is over.

        Parameters
        ----------
        queries, k, list_size, beam, in_flight
            As those of `stratann.Client.search`; `in_flight` is of each server.
        timeout : float, optional
            Seconds that the queries of a server may take where servers fail; None is what the cluster was started with.

        Raises
        ------
        ServerTimeoutError, ServerError
            There was no answer in time: the message says who was waited for.
        """
        self._open()

        def ask(rows: NDArray[Any], number: int) -> tuple[_Ids, _Distances]:
            def search(client: stratann.Client, left: float) -> tuple[_Ids, _Distances]:
                return client.search(rows, k, list_size=list_size, beam=beam, in_flight=in_flight, timeout=left)

            return self._asked(search, number, timeout)

        servers = self._facts["servers"]
        rows = conversion.vectors(queries, "queries", None)
        if rows.ndim != 2 or servers == 1 or len(rows) < 2 * servers:
            return ask(rows, random.randrange(servers))
        parts = numpy.array_split(rows, servers)
        with self._lock:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(4 * servers, "stratann-ray")
            pool = self._pool
        found = list(pool.map(ask, parts, range(servers)))
        return numpy.concatenate([ids for ids, _ in found]), numpy.concatenate([distances for _, distances in found])

    def upsert(self, vectors: NDArray[Any], ids: Any, *, timeout: Optional[float] = None) -> None:
        """Puts vectors into the index, in place of those that have their ids: as `stratann.Client.upsert`, until it is made or `timeout` is over. Needs `changes=True`."""
        self._changes("upsert")
        self._changed(lambda client, left: client.upsert(vectors, ids, timeout=left), timeout)

    def delete(self, ids: Any, *, timeout: Optional[float] = None) -> int:
        """Deletes ids, and returns how many of them there were: as `stratann.Client.delete`. Needs `changes=True`.

        Where servers were lost meanwhile and it was asked again, what the first attempt had deleted is not counted.
        """
        self._changes("delete")
        return self._changed(lambda client, left: client.delete(ids, timeout=left), timeout)

    def health(self, timeout: float = 10.0) -> dict[str, dict[str, Any]]:
        """Of each server what its `health` says, by role: "memory", "storage", "compute-0" and so on. One that does not say within `timeout` is not well."""
        return self._of_all("health", timeout, lambda trouble: {"well": False, "trouble": trouble, "lines": []})

    def stats(self, timeout: float = 10.0) -> dict[str, dict[str, Any]]:
        """Of each server what its `stats` says, by role; {} of one that does not answer."""
        return self._of_all("stats", timeout, lambda _: {})

    def close(self) -> None:
        """Ends the servers: storage gives the index back. A second call does nothing."""
        with self._lock:
            handles, self._handles, self._clients = self._handles, {}, {}
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)
        if handles:
            # Compute servers first, who need the others.
            stops = [handle.stop.remote() for _, handle in sorted(handles.items())]
            ray.wait(stops, num_returns=len(stops), timeout=STOP)
            for handle in handles.values():
                ray.kill(handle, no_restart=True)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _found, (self._facts, self._handles)

    def __repr__(self) -> str:
        state = "" if self._handles else ", closed"
        return f"stratann.ray.Cluster({str(self.path)!r}, {self._facts['servers']} compute servers{state})"

    def _open(self) -> None:
        if not self._handles:
            raise ValueError("the cluster is closed")

    def _changes(self, what: str) -> None:
        self._open()
        if not self._facts["changes"]:
            raise ValueError(f"{what}: the cluster was started for reading: start it with changes=True")

    def _of_all(self, method: str, timeout: float, missing: Callable[[str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
        self._open()
        calls = {role: getattr(handle, method).remote() for role, handle in self._handles.items()}
        ready, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=timeout)
        said: dict[str, dict[str, Any]] = {}
        for role, call in calls.items():
            if call not in ready:
                said[role] = missing(f"the {role} server has not answered within {timeout:g} s")
                continue
            try:
                said[role] = ray.get(call)
            except RayError as error:
                said[role] = missing(f"the {role} server cannot be asked, and may be being started anew: {error}")
        return said

    def _look(self) -> None:
        """Asks the compute servers where they are."""
        calls = {handle.address.remote(): role for role, handle in self._handles.items() if role.startswith("compute")}
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=LOOK)
        for call in ready:
            try:
                self._addresses[calls[call]] = ray.get(call)
            except RayError:
                continue  # It is being started anew: until it says otherwise, it is where it was.

    def _known(self) -> list[str]:
        """Addresses of compute servers, by their numbers."""
        known = sorted(self._addresses.items(), key=lambda known: int(known[0].rsplit("-", 1)[1]))
        return [address for _, address in known]

    def _client(self, number: int, patience: float) -> stratann.Client:
        """A client that asks the compute server of this number first, connected within `patience`. Where several threads make one each, the first is kept."""
        with self._lock:
            known = self._clients.get(number)
        if known is not None:
            return known
        if not self._addresses:
            self._look()
        addresses = self._known()
        if not addresses:
            raise stratann.ServerError("no compute server has said yet where it is: they are being started, `ray status` says what is pending")
        first = number % len(addresses)
        client = stratann.connect(addresses[first:] + addresses[:first], secret=self.secret, timeout=patience)
        with self._lock:
            return self._clients.setdefault(number, client) if self._handles else client

    def _changed(self, ask: Callable[[stratann.Client, float], _T], timeout: Optional[float]) -> _T:
        """As `_asked`, of a change. One client has all the time: it asks for it again by itself, and what it asked for comes behind no later change of its own. Another one would not know of it."""
        timeout = self._facts["timeout"] if timeout is None else timeout
        return self._asked(ask, 0, timeout, timeout)

    def _asked(self, ask: Callable[[stratann.Client, float], _T], number: int, timeout: Optional[float], attempt: float = ATTEMPT) -> _T:
        """What a client says, of those servers that answer by the deadline. A change that may be made yet is not asked for by another client, and the next one comes from this client."""
        timeout = self._facts["timeout"] if timeout is None else timeout
        deadline, attempt = time.monotonic() + timeout, min(attempt, timeout)
        while True:
            try:
                return ask(self._client(number, attempt), attempt)
            except stratann.ServerError as error:
                if getattr(error, "yet", False):
                    raise
                with self._lock:
                    self._clients.pop(number, None)
                if time.monotonic() + PAUSE > deadline:
                    raise
                time.sleep(PAUSE)
                self._open()
                self._look()
                attempt = max(PAUSE, min(2 * attempt, deadline - time.monotonic()))


def _actor(name: str, role: str) -> str:
    """Ray's name of an actor."""
    return f"stratann:{name}:{role}"


def _found(facts: dict[str, Any], handles: dict[str, Any]) -> Cluster:
    """A cluster that somebody else has started."""
    cluster = Cluster.__new__(Cluster)
    cluster._begin(facts)
    cluster._handles = dict(handles)
    return cluster


def _told(handle: Any, method: str, deadline: float, who: str) -> Any:
    """What an actor says by a deadline, which may be started anew meanwhile."""
    while True:
        left = None if math.isinf(deadline) else max(0.1, deadline - time.monotonic())
        try:
            return ray.get(getattr(handle, method).remote(), timeout=left)
        except (ActorUnavailableError, GetTimeoutError) as error:
            if time.monotonic() + PAUSE > deadline:
                raise ActorsError(f"{who} does not answer: {error}") from None
            time.sleep(PAUSE)


class _Role:
    """An actor with a server in it."""

    _server: Any = None
    _trouble: Optional[Exception] = None

    def _serve(self, start: Callable[[str], Any], port: int) -> None:
        """Starts the server. What keeps it from starting the first time is told by `address`, as what it is: what `__init__` raises is but a text. A process that was
        started anew ends, and Ray tries again."""
        try:
            self._server = _served(start, port)
        except Exception as error:
            if ray.get_runtime_context().was_current_actor_reconstructed:
                logging.getLogger("stratann").error("%s", error)
                time.sleep(LOOKS)
                os._exit(1)
            self._trouble = error

    def _running(self) -> Any:
        """The server. What kept it from starting is raised."""
        if self._trouble is not None:
            raise self._trouble
        if self._server is None:
            raise stratann.ServerError("the server of this actor is not started yet: ask again in a moment")
        return self._server

    def address(self) -> str:
        """Where it listens."""
        return str(self._running().address)

    def health(self) -> dict[str, Any]:
        """As that of the server."""
        return dict(self._running().health())

    def stats(self) -> dict[str, Any]:
        """As that of the server."""
        return dict(self._running().stats())

    def stop(self) -> None:
        """Ends the server."""
        if self._server is not None:
            self._server.close()


class _Memory(_Role):
    """The memory server, which also knows what the cluster is."""

    def __init__(self, path: pathlib.Path, port: int, facts: dict[str, Any]) -> None:
        self._facts = facts
        secret, follow = facts["secret"], facts["changes"]
        self._serve(lambda listen: stratann.MemoryServer(path, listen=listen, follow=follow, secret=secret), port)

    def facts(self) -> dict[str, Any]:
        """What it was started with."""
        return self._facts


class _Storage(_Role):
    """The storage server."""

    def __init__(self, path: pathlib.Path, changes: bool, threads: int, port: int, secret: str) -> None:
        def start(listen: str) -> stratann.StorageServer:
            return stratann.StorageServer(path, listen=listen, changes=changes, threads=threads, secret=secret)

        self._serve(start, port)


class _Compute(_Role):
    """A compute server, and a thread that looks where memory and storage are."""

    def __init__(self, name: str, port: int, secret: str, options: dict[str, Any]) -> None:
        self._peers = [ray.get_actor(_actor(name, role), namespace=NAMESPACE) for role in ("memory", "storage")]
        self._secret, self._options = secret, options
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        # As long as it takes them; who waits for this one has a deadline of its own.
        self._known = [_told(peer, "address", math.inf, "a server") for peer in self._peers]
        self._serve(self._started, port)
        if self._server is not None:
            threading.Thread(target=self._follow, name="stratann-peers", daemon=True).start()

    def stop(self) -> None:
        """Ends the server."""
        self._stopped.set()
        with self._lock:
            super().stop()

    def health(self) -> dict[str, Any]:
        """As that of the server, which another one may be taking the place of."""
        with self._lock:
            return super().health()

    def stats(self) -> dict[str, Any]:
        """As that of the server."""
        with self._lock:
            return super().stats()

    def _started(self, listen: str) -> stratann.ComputeServer:
        memory, storage = self._known
        return stratann.ComputeServer(memory, storage, listen=listen, secret=self._secret, **self._options)

    def _follow(self) -> None:
        while not self._stopped.wait(LOOKS):
            known = list(self._known)
            for at, peer in enumerate(self._peers):
                try:
                    known[at] = ray.get(peer.address.remote(), timeout=LOOK)
                except RayError:
                    continue  # It is being started anew, and is asked again.
            if known == self._known:
                continue
            with self._lock:
                if self._stopped.is_set():
                    return
                # Clients connect again, and ask again what was in flight.
                self._known = known
                listen = self._server.address
                self._server.close()
                try:
                    self._server = _served(self._started, int(listen.rsplit(":", 1)[1]))
                except Exception as error:
                    # Without a server this process is of no use: Ray starts another one.
                    logging.getLogger("stratann").error("%s", error)
                    os._exit(1)


def _served(start: Callable[[str], _T], port: int) -> _T:
    """A server at the address of this node, at this port, or at any that is free where somebody else has it."""
    util: Any = ray.util
    host = str(util.get_node_ip_address())
    host = f"[{host}]" if ":" in host else host
    for attempt in range(TRIES):
        try:
            return start(f"{host}:{port}")
        except (stratann.InUseError, stratann.ServerError) as error:
            # The process before this one may not be gone yet.
            if attempt + 1 == TRIES and isinstance(error, stratann.InUseError):
                raise
            time.sleep(PAUSE)
    return start(f"{host}:0")
