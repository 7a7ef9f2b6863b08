"""The roles of DistVS as actors: one memory server, one storage server, and compute servers, to
which clients send their queries.

    search ──> compute server ──┬──> memory server     lists and high codes of the index, in memory
    upsert ──> compute server ──┴──> storage server    exact vectors of the index; changes

The servers (`stratann.MemoryServer` and so on) send vectors and results over their own connections,
never through Ray. Ray places the actors on nodes, restarts actors that die, and reports the
addresses of their servers.

**The address of a server** is the address of its node, with a port that the user chooses, or that
is random. All servers of a cluster share a random secret. If Ray restarts an actor on the same
node, its server has the same port, and the other servers reconnect automatically. On another node,
the address changes:

- A compute server looks up the addresses of the memory server and the storage server every second.
  If one of these addresses has changed, the compute server restarts, and its own address stays the
  same.
- If no compute server answers at its last address, a `Cluster` looks up the addresses again.
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
"""Ray's namespace for clusters with a name."""

LOOKS = 1.0
"""The seconds between two look-ups of the other servers by a compute server."""

LOOK = 2.0
"""The time limit of a look-up in seconds. If a server does not answer in this time, its last
address is used.
"""

ATTEMPT = 3.0
"""The time limit of the first attempt at a query, in seconds. After each failed attempt, the
servers are looked up again, and the next attempt has twice the time limit.
"""

TRIES, PAUSE = 20, 0.25
"""An actor tries up to TRIES times, every PAUSE seconds, to start its server. The process that ran
the actor before may still use the port or the index.
"""

PORTS = range(20_000, 30_000)
"""The range of ports for servers. All are below the ports that Linux assigns to outgoing
connections.
"""

STOP = 10.0
"""The time in which servers must end, in seconds. After that, `close` kills their processes."""

_T = TypeVar("_T")
_Ids = NDArray[numpy.uint64]
_Distances = NDArray[numpy.float32]
_Path = Union[str, "os.PathLike[str]"]


class Cluster:
    """An index, served by actors of a Ray cluster: a memory server, a storage server, and compute
    servers.

    Parameters
    ----------
    index : str or os.PathLike
        The folder of an index with the preset "distvs". The nodes of the memory server and the
        storage server must see the same files under this path. Compute servers need no file.
    servers : int
        The number of compute servers.
    changes : bool
        Whether the cluster accepts `upsert` and `delete`. With True, no other process may have the
        index open for changes.
    memory, storage, compute : Resources
        The resources of the memory server, of the storage server, and of each compute server. The
        number of CPUs is the number of threads that search (compute) and re-rank (storage).
        `Resources.memory` is the memory that Ray reserves. For the memory server, pass at least the
        `memory_bytes` that `stats()` shows for it, or twice as many with `changes`.
    options : mapping, optional
        Arguments of compute servers, as in `stratann.ComputeServer`: {"list_size": 120, "beam": 8},
        for example.
    name : str, optional
        A name by which other programs of the Ray cluster find this cluster (`Cluster.find`).
    detached : bool
        Whether the cluster continues after this program ends, until a call of `close`. A detached
        cluster needs a name.
    restarts : int
        The maximum number of times that Ray restarts each actor after it died. -1 is no limit.
    port : int, optional
        The first port. The memory server listens on it, the storage server on the next port, and
        compute servers on the following ports. With None, ports are random. If another process uses
        a port, the server takes any free port.
    timeout : float
        The time limit of a query in seconds, including a restart of servers. `search` and other
        methods can override it.
    opening : float
        The time limit of the start in seconds: to find or start nodes, and to read the index.

    A `Cluster` may be passed to other tasks and actors, which then search with the same servers.
    The servers end with `close` or with the `with` block. If the cluster is not detached, they also
    end with the program that started it.

    Raises
    ------
    DeadlineError
        Actors did not start in time, because no node has their resources, or reading the index
        takes longer.
    FileNotFoundError, ValueError, InUseError
        The index could not be opened on its node.
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
            raise ValueError(f"servers is {servers}; a cluster has at least one. Pass 1 or more")
        if detached and name is None:
            raise ValueError("detached=True needs a name, so that the cluster can be found and closed. Pass name=")
        path = pathlib.Path(index).absolute()
        secret = secrets.token_hex(32)
        facts = {
            "path": path,
            "servers": servers,
            "changes": changes,
            "secret": secret,
            "timeout": timeout,
            # Actors find each other by name. If an actor had a handle as argument, Ray could not
            # restart the actor after the end of this program, which owns the handle.
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
        # Clients, by the number of the server that the client asks first. Each call passes the time
        # limit of its queries.
        self._clients: dict[int, stratann.Client] = {}
        self._pool: Optional[concurrent.futures.ThreadPoolExecutor] = None

    def _group(self, kind: type, resources: Resources, restarts: int) -> Actors:
        # While `health` waits for other servers, the actor must still answer calls of `address`.
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
        """Finds the `Cluster` that any program of the Ray cluster has started with this name.
        Raises `ValueError` if there is no such cluster.
        """
        try:
            memory = ray.get_actor(_actor(name, "memory"), namespace=NAMESPACE)
        except ValueError:
            raise ValueError(f"there is no cluster {name!r}. Start it with name={name!r}, or look for its name with `ray list actors`") from None
        deadline = time.monotonic() + timeout
        facts = _told(memory, "facts", deadline, f"the memory server of {name!r}")
        roles = ["memory", "storage", *(f"compute-{number}" for number in range(facts["servers"]))]
        handles = {role: ray.get_actor(_actor(name, role), namespace=NAMESPACE) for role in roles}
        return _found(facts, handles)

    @property
    def secret(self) -> str:
        """The secret that clients need: `stratann.connect(cluster.addresses(),
        secret=cluster.secret)`.
        """
        return str(self._facts["secret"])

    @property
    def path(self) -> pathlib.Path:
        """The folder of the index."""
        return pathlib.Path(self._facts["path"])

    def addresses(self) -> list[str]:
        """The addresses of the compute servers, in the order of their numbers. For a server that is
        being restarted, this is its last address.
        """
        self._open()
        self._look()
        return self._known()

    def connect(self, timeout: float = 10.0) -> stratann.Client:
        """Connects a client to the compute servers at their current addresses. If the address of a
        server changes, this object finds the new address, but the client does not.
        """
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
        """The `k` nearest vectors of each query, as in `stratann.Client.search`.

        The queries are divided among the compute servers. If a server does not answer, the call
        looks up the servers again and asks other servers, until `timeout` is over.

        Parameters
        ----------
        queries, k, list_size, beam, in_flight
            As in `stratann.Client.search`. `in_flight` applies to each server.
        timeout : float, optional
            The time limit for the queries of each server, in seconds, including failures of
            servers. None takes the `timeout` of the cluster.

        Raises
        ------
        ServerTimeoutError, ServerError
            A query was not answered in time. The message names the server that did not answer.
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
        """Inserts vectors, as `stratann.Client.upsert` does. If an id is in the index already,
        replaces its vector. The call tries until it succeeds or `timeout` is over. The cluster
        needs `changes=True`.
        """
        self._changes("upsert")
        self._changed(lambda client, left: client.upsert(vectors, ids, timeout=left), timeout)

    def delete(self, ids: Any, *, timeout: Optional[float] = None) -> int:
        """Deletes the vectors with these ids, and returns how many of the ids were in the index, as
        `stratann.Client.delete` does. The cluster needs `changes=True`.

        If a server failed and the call repeated the deletion, the number omits ids that the first
        attempt deleted.
        """
        self._changes("delete")
        return self._changed(lambda client, left: client.delete(ids, timeout=left), timeout)

    def health(self, timeout: float = 10.0) -> dict[str, dict[str, Any]]:
        """The `health` of each server, by role: "memory", "storage", "compute-0" and so on. For a
        server that does not answer within `timeout`, "well" is False.
        """
        return self._of_all("health", timeout, lambda trouble: {"well": False, "trouble": trouble, "lines": []})

    def stats(self, timeout: float = 10.0) -> dict[str, dict[str, Any]]:
        """The `stats` of each server, by role: {} for a server that does not answer."""
        return self._of_all("stats", timeout, lambda _: {})

    def close(self) -> None:
        """Ends the servers, so that the storage server closes the index. A second call does
        nothing.
        """
        with self._lock:
            handles, self._handles, self._clients = self._handles, {}, {}
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)
        if handles:
            # Compute servers end first, because they need the memory server and the storage server.
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
            raise ValueError("the cluster is closed. Start or find it again")

    def _changes(self, what: str) -> None:
        self._open()
        if not self._facts["changes"]:
            raise ValueError(f"{what}: the cluster was started for reading only. Start it with changes=True")

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
                said[role] = missing(f"the {role} server cannot be asked, perhaps because it is being restarted: {error}")
        return said

    def _look(self) -> None:
        """Asks the compute servers for their addresses."""
        calls = {handle.address.remote(): role for role, handle in self._handles.items() if role.startswith("compute")}
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=LOOK)
        for call in ready:
            try:
                self._addresses[calls[call]] = ray.get(call)
            except RayError:
                continue  # Ray is restarting the server. Its last address is used until it answers.

    def _known(self) -> list[str]:
        """The addresses of compute servers, in the order of their numbers."""
        known = sorted(self._addresses.items(), key=lambda known: int(known[0].rsplit("-", 1)[1]))
        return [address for _, address in known]

    def _client(self, number: int, patience: float) -> stratann.Client:
        """A client that asks the compute server of this number first, connected within `patience`.
        If several threads make a client at the same time, they all use the first one.
        """
        with self._lock:
            known = self._clients.get(number)
        if known is not None:
            return known
        if not self._addresses:
            self._look()
        addresses = self._known()
        if not addresses:
            raise stratann.ServerError("no compute server has reported its address yet; the servers are being started. `ray status` lists pending actors")
        first = number % len(addresses)
        client = stratann.connect(addresses[first:] + addresses[:first], secret=self.secret, timeout=patience)
        with self._lock:
            return self._clients.setdefault(number, client) if self._handles else client

    def _changed(self, ask: Callable[[stratann.Client, float], _T], timeout: Optional[float]) -> _T:
        """Makes a change as `_asked` makes a query. The same client repeats the change during the
        whole time limit, because it orders the change before its own later changes. Another client
        would not know of the change.
        """
        timeout = self._facts["timeout"] if timeout is None else timeout
        return self._asked(ask, 0, timeout, timeout)

    def _asked(self, ask: Callable[[stratann.Client, float], _T], number: int, timeout: Optional[float], attempt: float = ATTEMPT) -> _T:
        """The result of `ask`, from servers that answer by the deadline. If a change may still take
        effect, no other client repeats it, and the next change comes from the same client.
        """
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
    """The `Cluster` object for servers that another program has started."""
    cluster = Cluster.__new__(Cluster)
    cluster._begin(facts)
    cluster._handles = dict(handles)
    return cluster


def _told(handle: Any, method: str, deadline: float, who: str) -> Any:
    """The result of an actor's method, by a deadline. Repeats the call if Ray restarts the actor.
    """
    while True:
        left = None if math.isinf(deadline) else max(0.1, deadline - time.monotonic())
        try:
            return ray.get(getattr(handle, method).remote(), timeout=left)
        except (ActorUnavailableError, GetTimeoutError) as error:
            if time.monotonic() + PAUSE > deadline:
                raise ActorsError(f"{who} does not answer; {error}. Check it with `ray status`") from None
            time.sleep(PAUSE)


class _Role:
    """An actor that runs a server."""

    _server: Any = None
    _trouble: Optional[Exception] = None

    def _serve(self, start: Callable[[str], Any], port: int) -> None:
        """Starts the server. If the server fails to start in the first process of the actor,
        `address` raises the error, because Ray would turn an exception of `__init__` into a text.
        In a later process, the process ends, and Ray starts another one.
        """
        try:
            self._server = _served(start, port)
        except Exception as error:
            if ray.get_runtime_context().was_current_actor_reconstructed:
                logging.getLogger("stratann").error("%s", error)
                time.sleep(LOOKS)
                os._exit(1)
            self._trouble = error

    def _running(self) -> Any:
        """The server. Raises the error if it could not be started."""
        if self._trouble is not None:
            raise self._trouble
        if self._server is None:
            raise stratann.ServerError("the server of this actor is not started yet. Ask again in a moment")
        return self._server

    def address(self) -> str:
        """The address on which the server listens."""
        return str(self._running().address)

    def health(self) -> dict[str, Any]:
        """The server's `health`."""
        return dict(self._running().health())

    def stats(self) -> dict[str, Any]:
        """The server's `stats`."""
        return dict(self._running().stats())

    def stop(self) -> None:
        """Ends the server."""
        if self._server is not None:
            self._server.close()


class _Memory(_Role):
    """The memory server. This actor also stores the facts of the cluster."""

    def __init__(self, path: pathlib.Path, port: int, facts: dict[str, Any]) -> None:
        self._facts = facts
        secret, follow = facts["secret"], facts["changes"]
        self._serve(lambda listen: stratann.MemoryServer(path, listen=listen, follow=follow, secret=secret), port)

    def facts(self) -> dict[str, Any]:
        """The arguments with which the cluster was started."""
        return self._facts


class _Storage(_Role):
    """The storage server."""

    def __init__(self, path: pathlib.Path, changes: bool, threads: int, port: int, secret: str) -> None:
        def start(listen: str) -> stratann.StorageServer:
            return stratann.StorageServer(path, listen=listen, changes=changes, threads=threads, secret=secret)

        self._serve(start, port)


class _Compute(_Role):
    """A compute server, and a thread that looks up the addresses of the memory server and the
    storage server.
    """

    def __init__(self, name: str, port: int, secret: str, options: dict[str, Any]) -> None:
        self._peers = [ray.get_actor(_actor(name, role), namespace=NAMESPACE) for role in ("memory", "storage")]
        self._secret, self._options = secret, options
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        # These calls need no time limit: the callers that wait for this actor have deadlines.
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
        """The server's `health`. Waits while the server restarts."""
        with self._lock:
            return super().health()

    def stats(self) -> dict[str, Any]:
        """The server's `stats`."""
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
                    continue  # Ray is restarting this server. The next look-up asks it again.
            if known == self._known:
                continue
            with self._lock:
                if self._stopped.is_set():
                    return
                # Clients connect again, and repeat the queries that were in flight.
                self._known = known
                listen = self._server.address
                self._server.close()
                try:
                    self._server = _served(self._started, int(listen.rsplit(":", 1)[1]))
                except Exception as error:
                    # A process without a server is useless. It ends, so that Ray starts another
                    # process.
                    logging.getLogger("stratann").error("%s", error)
                    os._exit(1)


def _served(start: Callable[[str], _T], port: int) -> _T:
    """Starts a server at the address of this node and at this port, or at any free port if another
    process uses this port.
    """
    util: Any = ray.util
    host = str(util.get_node_ip_address())
    host = f"[{host}]" if ":" in host else host
    for attempt in range(TRIES):
        try:
            return start(f"{host}:{port}")
        except (stratann.InUseError, stratann.ServerError) as error:
            # The process that ran this actor before may not have ended yet.
            if attempt + 1 == TRIES and isinstance(error, stratann.InUseError):
                raise
            time.sleep(PAUSE)
    return start(f"{host}:0")
