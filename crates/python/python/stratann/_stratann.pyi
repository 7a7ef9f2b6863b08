"""Types of the part of the package that is written in Rust."""

import os
import pathlib
from typing import (
    Any,
    Callable,
    Coroutine,
    Dict,
    Final,
    Iterable,
    Iterator,
    List,
    Literal,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
    final,
    overload,
)

import numpy
from numpy.typing import NDArray

from .rows import Page, Rows

_Path = Union[str, "os.PathLike[str]"]
# Arrays, lists, and columns of pandas, polars and pyarrow. At run time, `stratann.conversion`
# refuses other values.
_Vectors = Any
_IdsLike = Any
_Ids = NDArray[numpy.uint64]
_Distances = NDArray[numpy.float32]
_Metric = str
_Size = Union[int, str, None]
# A dict of columns, a list of dicts, or a table of another package (`stratann.attributes`).
_Attributes = Any
_Filter = Union[str, Mapping[str, Any], "Filter", None]
_Columns = Union[bool, Iterable[str], None]
_Place = Union[Dict[str, str], str, None]
_Server = TypeVar("_Server", bound="Server")
_Progress = Union[bool, Callable[[str, int, int], object], None]

__all__ = [
    "Bell",
    "Catalog",
    "Client",
    "Column",
    "ComputeServer",
    "DamagedError",
    "Filter",
    "InUseError",
    "Index",
    "Interrupted",
    "MOST_COLUMNS",
    "MOST_PADDED",
    "MOST_PAYLOAD",
    "MemoryServer",
    "NoSpaceError",
    "OutdatedError",
    "Search",
    "Server",
    "ServerError",
    "ServerTimeoutError",
    "StorageServer",
    "StratannError",
    "__version__",
    "build",
    "calibrate",
    "check_build",
    "column",
    "connect",
    "create",
    "is_vacant",
    "meant",
    "no_attribute",
    "open",
    "plan",
    "recall",
    "repair",
    "train",
    "truth",
    "verify",
    "warn_of_new",
]

__version__: Final[str]
MOST_COLUMNS: Final[int]
MOST_PADDED: Final[int]
MOST_PAYLOAD: Final[int]

class StratannError(RuntimeError): ...
class DamagedError(StratannError): ...
class InUseError(StratannError): ...
class OutdatedError(StratannError): ...
class NoSpaceError(StratannError): ...
class ServerError(StratannError): ...
class ServerTimeoutError(ServerError): ...

class Interrupted(KeyboardInterrupt):
    done: Optional[int]
    total: Optional[int]
    complete: bool

@final
class Bell:
    def __new__(cls) -> Bell: ...
    def fileno(self) -> int: ...
    def take(self) -> List[int]: ...

@final
class Search:
    def ring(self, bell: Bell, number: int) -> None: ...
    def cancel(self) -> None: ...
    def reads(self) -> bool: ...
    def result(self) -> Optional[Tuple[Any, ...]]: ...

@final
class Filter:
    def __new__(cls, text: Union[str, Mapping[str, Any]]) -> Filter: ...
    def __and__(self, other: Filter, /) -> Filter: ...
    def __rand__(self, other: Filter, /) -> Filter: ...
    def __or__(self, other: Filter, /) -> Filter: ...
    def __ror__(self, other: Filter, /) -> Filter: ...
    def __invert__(self) -> Filter: ...
    def __bool__(self) -> bool: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> Tuple[Any, ...]: ...
    @property
    def columns(self) -> List[str]: ...
    @property
    def negates(self) -> bool: ...

@final
class Column:
    def __new__(cls, name: str) -> Column: ...
    def __eq__(self, value: object, /) -> Filter: ...  # type: ignore[override]
    def __ne__(self, value: object, /) -> Filter: ...  # type: ignore[override]
    def __lt__(self, value: object, /) -> Filter: ...
    def __le__(self, value: object, /) -> Filter: ...
    def __gt__(self, value: object, /) -> Filter: ...
    def __ge__(self, value: object, /) -> Filter: ...
    def between(self, low: object, high: object) -> Filter: ...
    def is_in(self, values: Iterable[object]) -> Filter: ...
    def not_in(self, values: Iterable[object]) -> Filter: ...
    def contains(self, value: object) -> Filter: ...
    def contains_any(self, values: Iterable[object]) -> Filter: ...
    def contains_all(self, values: Iterable[object]) -> Filter: ...
    def exists(self) -> Filter: ...
    def missing(self) -> Filter: ...

@final
class Index:
    @property
    def dim(self) -> int: ...
    @property
    def metric(self) -> str: ...
    @property
    def dtype(self) -> "numpy.dtype[Any]": ...
    @property
    def _built_with(self) -> Dict[str, Any]: ...
    @property
    def _has_changed(self) -> bool: ...
    def _records(
        self, ids: _IdsLike, names: List[str], vectors: bool
    ) -> Tuple[List[Optional[Dict[str, Any]]], List[Any], Optional[Rows]]: ...
    @property
    def preset(self) -> str: ...
    @property
    def columns(self) -> Dict[str, str]: ...
    @property
    def path(self) -> pathlib.Path: ...
    @property
    def build_report(self) -> Optional[Dict[str, Any]]: ...
    def __len__(self) -> int: ...
    @overload
    def search(
        self,
        queries: _Vectors,
        k: int = 10,
        *,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        beam: Optional[int] = None,
        strategy: Optional[str] = None,
        navigation: Optional[bool] = None,
        whole_page: Optional[bool] = None,
        rerank_batch: Optional[int] = None,
        benefit: Optional[float] = None,
        rerank: Optional[str] = None,
        rerank_ratio: Optional[float] = None,
        low_list: Optional[float] = None,
        refine: Optional[float] = None,
        seeds: Optional[int] = None,
        exact: bool = True,
        stop_early: bool = False,
        recall: Optional[float] = None,
        filter: _Filter = None,
        attributes: Literal[False, None] = None,
        payload: Literal[False] = False,
        threads: Optional[int] = None,
        in_flight: Optional[int] = None,
        return_stats: Literal[False] = False,
    ) -> Tuple[_Ids, _Distances]: ...
    @overload
    def search(
        self,
        queries: _Vectors,
        k: int = 10,
        *,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        beam: Optional[int] = None,
        strategy: Optional[str] = None,
        navigation: Optional[bool] = None,
        whole_page: Optional[bool] = None,
        rerank_batch: Optional[int] = None,
        benefit: Optional[float] = None,
        rerank: Optional[str] = None,
        rerank_ratio: Optional[float] = None,
        low_list: Optional[float] = None,
        refine: Optional[float] = None,
        seeds: Optional[int] = None,
        exact: bool = True,
        stop_early: bool = False,
        recall: Optional[float] = None,
        filter: _Filter = None,
        attributes: Literal[False, None] = None,
        payload: Literal[False] = False,
        threads: Optional[int] = None,
        in_flight: Optional[int] = None,
        return_stats: Literal[True],
    ) -> Tuple[_Ids, _Distances, Dict[str, Any]]: ...
    @overload
    def search(
        self,
        queries: _Vectors,
        k: int = 10,
        *,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        beam: Optional[int] = None,
        strategy: Optional[str] = None,
        navigation: Optional[bool] = None,
        whole_page: Optional[bool] = None,
        rerank_batch: Optional[int] = None,
        benefit: Optional[float] = None,
        rerank: Optional[str] = None,
        rerank_ratio: Optional[float] = None,
        low_list: Optional[float] = None,
        refine: Optional[float] = None,
        seeds: Optional[int] = None,
        exact: bool = True,
        stop_early: bool = False,
        recall: Optional[float] = None,
        filter: _Filter = None,
        attributes: _Columns = None,
        payload: bool = False,
        threads: Optional[int] = None,
        in_flight: Optional[int] = None,
        return_stats: bool = False,
    ) -> Tuple[Any, ...]: ...
    @overload
    def search_async(
        self,
        queries: _Vectors,
        k: int = 10,
        *,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        beam: Optional[int] = None,
        strategy: Optional[str] = None,
        navigation: Optional[bool] = None,
        whole_page: Optional[bool] = None,
        rerank_batch: Optional[int] = None,
        benefit: Optional[float] = None,
        rerank: Optional[str] = None,
        rerank_ratio: Optional[float] = None,
        low_list: Optional[float] = None,
        refine: Optional[float] = None,
        seeds: Optional[int] = None,
        exact: bool = True,
        stop_early: bool = False,
        recall: Optional[float] = None,
        filter: _Filter = None,
        attributes: Literal[False, None] = None,
        payload: Literal[False] = False,
        threads: Optional[int] = None,
        in_flight: Optional[int] = None,
        return_stats: Literal[False] = False,
        timeout: Optional[float] = None,
    ) -> Coroutine[Any, Any, Tuple[_Ids, _Distances]]: ...
    @overload
    def search_async(
        self,
        queries: _Vectors,
        k: int = 10,
        *,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        beam: Optional[int] = None,
        strategy: Optional[str] = None,
        navigation: Optional[bool] = None,
        whole_page: Optional[bool] = None,
        rerank_batch: Optional[int] = None,
        benefit: Optional[float] = None,
        rerank: Optional[str] = None,
        rerank_ratio: Optional[float] = None,
        low_list: Optional[float] = None,
        refine: Optional[float] = None,
        seeds: Optional[int] = None,
        exact: bool = True,
        stop_early: bool = False,
        recall: Optional[float] = None,
        filter: _Filter = None,
        attributes: Literal[False, None] = None,
        payload: Literal[False] = False,
        threads: Optional[int] = None,
        in_flight: Optional[int] = None,
        return_stats: Literal[True],
        timeout: Optional[float] = None,
    ) -> Coroutine[Any, Any, Tuple[_Ids, _Distances, Dict[str, Any]]]: ...
    @overload
    def search_async(
        self,
        queries: _Vectors,
        k: int = 10,
        *,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        beam: Optional[int] = None,
        strategy: Optional[str] = None,
        navigation: Optional[bool] = None,
        whole_page: Optional[bool] = None,
        rerank_batch: Optional[int] = None,
        benefit: Optional[float] = None,
        rerank: Optional[str] = None,
        rerank_ratio: Optional[float] = None,
        low_list: Optional[float] = None,
        refine: Optional[float] = None,
        seeds: Optional[int] = None,
        exact: bool = True,
        stop_early: bool = False,
        recall: Optional[float] = None,
        filter: _Filter = None,
        attributes: _Columns = None,
        payload: bool = False,
        threads: Optional[int] = None,
        in_flight: Optional[int] = None,
        return_stats: bool = False,
        timeout: Optional[float] = None,
    ) -> Coroutine[Any, Any, Tuple[Any, ...]]: ...
    def search_range(
        self,
        query: _Vectors,
        distance: float,
        *,
        most: int = 1000,
        after: Optional[Tuple[float, int, int]] = None,
        without: Optional[int] = None,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        filter: _Filter = None,
        attributes: _Columns = None,
        payload: bool = False,
        threads: Optional[int] = None,
    ) -> Page: ...
    @overload
    def search_like(
        self,
        ids: _IdsLike,
        k: int = 10,
        *,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        recall: Optional[float] = None,
        filter: _Filter = None,
        attributes: Literal[False, None] = None,
        payload: Literal[False] = False,
        threads: Optional[int] = None,
        return_stats: Literal[False] = False,
    ) -> Tuple[_Ids, _Distances]: ...
    @overload
    def search_like(
        self,
        ids: _IdsLike,
        k: int = 10,
        *,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        recall: Optional[float] = None,
        filter: _Filter = None,
        attributes: Literal[False, None] = None,
        payload: Literal[False] = False,
        threads: Optional[int] = None,
        return_stats: Literal[True],
    ) -> Tuple[_Ids, _Distances, Dict[str, Any]]: ...
    @overload
    def search_like(
        self,
        ids: _IdsLike,
        k: int = 10,
        *,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        recall: Optional[float] = None,
        filter: _Filter = None,
        attributes: _Columns = None,
        payload: bool = False,
        threads: Optional[int] = None,
        return_stats: bool = False,
    ) -> Tuple[Any, ...]: ...
    def get(self, ids: _IdsLike, *, progress: _Progress = None) -> Rows: ...
    def ids(
        self, after: Optional[int] = None, count: Optional[int] = None, *, filter: _Filter = None
    ) -> _Ids: ...
    def count(self, filter: _Filter = None) -> int: ...
    def attributes(self, ids: _IdsLike) -> List[Optional[Dict[str, Any]]]: ...
    def payload(self, ids: _IdsLike) -> List[Any]: ...
    def set_attributes(
        self,
        ids: _IdsLike,
        attributes: Optional[_Attributes] = None,
        *,
        payload: Any = None,
        progress: _Progress = None,
    ) -> None: ...
    def update_attributes(
        self,
        ids: _IdsLike,
        attributes: Optional[_Attributes] = None,
        *,
        payload: Any = None,
        progress: _Progress = None,
    ) -> None: ...
    def batches(self, size: int = 1024) -> Iterator[Rows]: ...
    def __getitem__(self, id: int, /) -> NDArray[Any]: ...
    def __contains__(self, id: object, /) -> bool: ...
    def __iter__(self) -> Iterator[int]: ...
    def __reduce__(self) -> Tuple[Any, ...]: ...
    def insert(
        self,
        vectors: _Vectors,
        ids: Optional[_IdsLike] = None,
        *,
        attributes: Optional[_Attributes] = None,
        payload: Any = None,
        resume: bool = False,
        progress: _Progress = None,
    ) -> _Ids: ...
    def forget_cut_off(self) -> int: ...
    def upsert(
        self,
        vectors: _Vectors,
        ids: _IdsLike,
        *,
        attributes: Optional[_Attributes] = None,
        payload: Any = None,
        progress: _Progress = None,
    ) -> None: ...
    def delete(
        self,
        ids: Optional[_IdsLike] = None,
        *,
        filter: _Filter = None,
        progress: _Progress = None,
    ) -> Optional[int]: ...
    def flush(self) -> None: ...
    def compact(self, *, progress: _Progress = None) -> Dict[str, Any]: ...
    def snapshot(self, dest: _Path, *, progress: _Progress = None) -> Dict[str, Any]: ...
    def export(
        self,
        out: _Path,
        *,
        ids: Optional[_Path] = None,
        attributes: Optional[_Path] = None,
        overwrite: bool = False,
        progress: _Progress = None,
    ) -> Dict[str, Any]: ...
    def is_current(self) -> bool: ...
    def refresh(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Index: ...
    def __exit__(self, kind: Any, error: Any, trace: Any) -> None: ...
    def stats(self) -> Dict[str, Any]: ...
    def measure_recall(self, *, progress: _Progress = None) -> Dict[str, Any]: ...
    def verify(self, *, progress: _Progress = None) -> Dict[str, Any]: ...

@final
class Client:
    @property
    def dim(self) -> int: ...
    @property
    def metric(self) -> str: ...
    @property
    def dtype(self) -> "numpy.dtype[Any]": ...
    @property
    def changes(self) -> bool: ...
    @property
    def servers(self) -> List[str]: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    @overload
    def search(
        self,
        queries: _Vectors,
        k: int = 10,
        *,
        list_size: Optional[int] = None,
        beam: Optional[int] = None,
        in_flight: Optional[int] = None,
        return_stats: Literal[False] = False,
        timeout: Optional[float] = None,
    ) -> Tuple[_Ids, _Distances]: ...
    @overload
    def search(
        self,
        queries: _Vectors,
        k: int = 10,
        *,
        list_size: Optional[int] = None,
        beam: Optional[int] = None,
        in_flight: Optional[int] = None,
        return_stats: Literal[True],
        timeout: Optional[float] = None,
    ) -> Tuple[_Ids, _Distances, Dict[str, Any]]: ...
    def upsert(self, vectors: _Vectors, ids: _IdsLike, *, timeout: Optional[float] = None) -> None: ...
    def delete(self, ids: _IdsLike, *, timeout: Optional[float] = None) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Client: ...
    def __exit__(self, kind: Any, error: Any, trace: Any) -> None: ...

class Server:
    @property
    def address(self) -> str: ...
    def health(self) -> Dict[str, Any]: ...
    def stats(self) -> Dict[str, Any]: ...
    def close(self) -> None: ...
    def __enter__(self: _Server) -> _Server: ...
    def __exit__(self, kind: Any, error: Any, trace: Any) -> None: ...

@final
class MemoryServer(Server):
    def __new__(
        cls,
        path: _Path,
        *,
        listen: str = "127.0.0.1:0",
        follow: bool = False,
        secret: Union[bytes, str, None] = None,
        secret_file: Optional[_Path] = None,
        certificate: Optional[Tuple[_Path, _Path]] = None,
        clients: int = 256,
        progress: _Progress = None,
    ) -> "MemoryServer": ...

@final
class StorageServer(Server):
    def __new__(
        cls,
        path: _Path,
        *,
        listen: str = "127.0.0.1:0",
        changes: bool = False,
        threads: int = 2,
        io: str = "auto",
        secret: Union[bytes, str, None] = None,
        secret_file: Optional[_Path] = None,
        certificate: Optional[Tuple[_Path, _Path]] = None,
        clients: int = 256,
    ) -> "StorageServer": ...

@final
class ComputeServer(Server):
    def __new__(
        cls,
        memory: str,
        storage: str,
        *,
        listen: str = "127.0.0.1:0",
        threads: Optional[int] = None,
        in_flight: int = 2,
        list_size: int = 80,
        beam: int = 8,
        low_list: float = 3.0,
        refine: float = 0.2,
        seeds: int = 64,
        low_memory: _Size = None,
        connections: Optional[int] = None,
        waiting: int = 1024,
        tls: Union[bool, _Path, None] = None,
        secret: Union[bytes, str, None] = None,
        secret_file: Optional[_Path] = None,
        certificate: Optional[Tuple[_Path, _Path]] = None,
        clients: int = 256,
    ) -> "ComputeServer": ...

@final
class Catalog:
    def __new__(
        cls,
        path: _Path,
        *,
        memory: _Size = None,
        io: str = "auto",
        cache: _Size = None,
        navigation: Optional[bool] = None,
        place: _Place = None,
    ) -> "Catalog": ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def memory(self) -> Optional[int]: ...
    @property
    def open_count(self) -> int: ...
    @property
    def path(self) -> pathlib.Path: ...
    def names(self) -> List[str]: ...
    def close(self, name: str) -> bool: ...
    def __getitem__(self, name: str, /) -> Index: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    @overload
    def search(
        self,
        queries: _Vectors,
        k: int = 10,
        *,
        names: Optional[Iterable[str]] = None,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        beam: Optional[int] = None,
        strategy: Optional[str] = None,
        navigation: Optional[bool] = None,
        whole_page: Optional[bool] = None,
        exact: bool = True,
        stop_early: bool = False,
        recall: Optional[float] = None,
        filter: _Filter = None,
        attributes: Literal[False, None] = None,
        payload: Literal[False] = False,
        threads: Optional[int] = None,
        in_flight: Optional[int] = None,
        return_stats: Literal[False] = False,
    ) -> Tuple[_Ids, _Distances]: ...
    @overload
    def search(
        self,
        queries: _Vectors,
        k: int = 10,
        *,
        names: Optional[Iterable[str]] = None,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        beam: Optional[int] = None,
        strategy: Optional[str] = None,
        navigation: Optional[bool] = None,
        whole_page: Optional[bool] = None,
        exact: bool = True,
        stop_early: bool = False,
        recall: Optional[float] = None,
        filter: _Filter = None,
        attributes: Literal[False, None] = None,
        payload: Literal[False] = False,
        threads: Optional[int] = None,
        in_flight: Optional[int] = None,
        return_stats: Literal[True],
    ) -> Tuple[_Ids, _Distances, Dict[str, Any]]: ...
    @overload
    def search(
        self,
        queries: _Vectors,
        k: int = 10,
        *,
        names: Optional[Iterable[str]] = None,
        list_size: Optional[int] = None,
        probes: Optional[int] = None,
        beam: Optional[int] = None,
        strategy: Optional[str] = None,
        navigation: Optional[bool] = None,
        whole_page: Optional[bool] = None,
        exact: bool = True,
        stop_early: bool = False,
        recall: Optional[float] = None,
        filter: _Filter = None,
        attributes: _Columns = None,
        payload: bool = False,
        threads: Optional[int] = None,
        in_flight: Optional[int] = None,
        return_stats: bool = False,
    ) -> Tuple[Any, ...]: ...

def build(
    base: Union[_Path, _Vectors],
    path: _Path,
    *,
    metric: _Metric = "l2",
    preset: str = "stratann",
    degree: Optional[int] = None,
    build_list: int = 100,
    alpha: float = 1.2,
    code_bytes: Optional[int] = None,
    low_codes: Optional[str] = None,
    codebook: Optional[_Path] = None,
    order: Optional[str] = None,
    layout: Optional[str] = None,
    compression: Optional[str] = None,
    chunk: _Size = None,
    segment: _Size = None,
    navigation: float = 0.01,
    memory: _Size = None,
    search_memory: _Size = None,
    space: _Size = None,
    cluster_size: Optional[int] = None,
    replicas: Optional[int] = None,
    query_log: Optional[_Path] = None,
    threads: Optional[int] = None,
    calibrate: bool = True,
    seed: int = 42,
    overwrite: bool = False,
    resume: bool = False,
    savepoint_seconds: float = 120.0,
    place: _Place = None,
    ids: Optional[_IdsLike] = None,
    attributes: Optional[_Attributes] = None,
    payload: Any = None,
    watch_recall: Optional[int] = None,
    progress: _Progress = None,
) -> Index: ...
def plan(
    base: _Vectors,
    *,
    metric: _Metric = "l2",
    preset: str = "stratann",
    degree: Optional[int] = None,
    build_list: int = 100,
    code_bytes: Optional[int] = None,
    order: Optional[str] = None,
    layout: Optional[str] = None,
    compression: Optional[str] = None,
    navigation: float = 0.01,
    memory: _Size = None,
    search_memory: _Size = None,
    space: _Size = None,
    cluster_size: Optional[int] = None,
    replicas: Optional[int] = None,
    threads: Optional[int] = None,
    attributes: Optional[_Attributes] = None,
    payload: Any = None,
) -> Dict[str, Any]: ...
def check_build(
    dimension: Optional[int],
    memory: _Size,
    *,
    metric: _Metric = "l2",
    preset: str = "stratann",
    degree: Optional[int] = None,
    build_list: int = 100,
    alpha: float = 1.2,
    code_bytes: Optional[int] = None,
    low_codes: Optional[str] = None,
    codebook: Optional[_Path] = None,
    order: Optional[str] = None,
    layout: Optional[str] = None,
    compression: Optional[str] = None,
    chunk: _Size = None,
    segment: _Size = None,
    navigation: float = 0.01,
    search_memory: _Size = None,
    space: _Size = None,
    cluster_size: Optional[int] = None,
    replicas: Optional[int] = None,
    query_log: Optional[_Path] = None,
    calibrate: bool = True,
    threads: Optional[int] = None,
    seed: int = 42,
    resume: bool = False,
    savepoint_seconds: float = 120.0,
    place: _Place = None,
    watch_recall: Optional[int] = None,
    progress: _Progress = None,
) -> Dict[str, Any]: ...
def warn_of_new(index: Index, names: List[str]) -> None: ...
def is_vacant(path: _Path) -> bool: ...
def create(
    path: _Path,
    *,
    dimension: int,
    dtype: Any = "float32",
    columns: Optional[Mapping[str, str]] = None,
    metric: _Metric = "l2",
    preset: str = "stratann",
    degree: Optional[int] = None,
    build_list: int = 100,
    alpha: float = 1.2,
    code_bytes: Optional[int] = None,
    low_codes: Optional[str] = None,
    codebook: Optional[_Path] = None,
    order: Optional[str] = None,
    layout: Optional[str] = None,
    compression: Optional[str] = None,
    chunk: _Size = None,
    segment: _Size = None,
    navigation: float = 0.01,
    search_memory: _Size = None,
    cluster_size: Optional[int] = None,
    replicas: Optional[int] = None,
    seed: int = 42,
    overwrite: bool = False,
    exist_ok: bool = False,
    place: _Place = None,
    memory: _Size = None,
    io: str = "auto",
    cache: _Size = None,
    cache_entries: _Size = None,
    durability: Union[int, str, None] = None,
    merges: bool = True,
    watch_recall: Optional[int] = None,
) -> Index: ...
def no_attribute(object: object, name: str) -> AttributeError: ...
def meant(typed: str, names: List[str]) -> Optional[str]: ...
def calibrate(
    path: _Path,
    queries: Union[_Path, _Vectors, None] = None,
    *,
    memory: _Size = None,
    threads: Optional[int] = None,
    progress: _Progress = None,
) -> Dict[str, Any]: ...
def train(
    base: Union[_Path, _Vectors],
    path: _Path,
    *,
    code_bytes: Optional[int] = None,
    low_codes: Optional[str] = None,
    metric: _Metric = "l2",
    threads: Optional[int] = None,
    seed: int = 42,
    overwrite: bool = False,
    progress: _Progress = None,
) -> Dict[str, Any]: ...
def open(
    path: _Path,
    *,
    memory: _Size = None,
    io: str = "auto",
    cache: _Size = None,
    cache_entries: Union[int, str, None] = None,
    navigation: Optional[bool] = None,
    place: _Place = None,
    durability: Union[int, str, None] = None,
    merges: bool = True,
    watch_recall: Optional[int] = None,
) -> Index: ...
def column(name: str) -> Column: ...
def connect(
    servers: Union[str, Sequence[str]],
    *,
    secret: Union[bytes, str, None] = None,
    secret_file: Optional[_Path] = None,
    tls: Union[bool, _Path, None] = None,
    timeout: float = 10.0,
) -> Client: ...
def verify(path: _Path, *, place: _Place = None, progress: _Progress = None) -> Dict[str, Any]: ...
def repair(
    path: _Path,
    threads: Optional[int] = None,
    memory: _Size = None,
    force: bool = False,
    *,
    progress: _Progress = None,
) -> Dict[str, Any]: ...
def truth(
    base: Union[_Path, _Vectors],
    queries: Union[_Path, _Vectors],
    k: int = 100,
    metric: _Metric = "l2",
    *,
    threads: Optional[int] = None,
    progress: _Progress = None,
) -> Tuple[_Ids, _Distances]: ...
def recall(
    found: Tuple[Any, ...],
    truth: Tuple[Any, ...],
    k: Optional[int] = None,
) -> float: ...
