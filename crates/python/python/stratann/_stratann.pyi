"""Types of the part of the package that is written in Rust."""

import os
import pathlib
from typing import (
    Any,
    Callable,
    Dict,
    Final,
    Iterable,
    Iterator,
    List,
    Literal,
    Optional,
    Tuple,
    Union,
    final,
    overload,
)

import numpy
from numpy.typing import NDArray

_Path = Union[str, "os.PathLike[str]"]
_Vectors = NDArray[Union[numpy.float32, numpy.float16, numpy.uint8, numpy.int8]]
_Ids = NDArray[numpy.uint64]
_Distances = NDArray[numpy.float32]
_Metric = str
_Size = Union[int, str, None]
_Place = Union[Dict[str, str], str, None]
_Progress = Union[bool, Callable[[str, int, int], object], None]

__all__ = [
    "Catalog",
    "DamagedError",
    "InUseError",
    "Index",
    "Interrupted",
    "NoSpaceError",
    "OutdatedError",
    "StratannError",
    "__version__",
    "build",
    "open",
    "recall",
    "repair",
    "train",
    "truth",
    "verify",
]

__version__: Final[str]

class StratannError(RuntimeError): ...
class DamagedError(StratannError): ...
class InUseError(StratannError): ...
class OutdatedError(StratannError): ...
class NoSpaceError(StratannError): ...

class Interrupted(KeyboardInterrupt):
    done: Optional[int]
    total: Optional[int]
    complete: bool

@final
class Index:
    @property
    def dim(self) -> int: ...
    @property
    def metric(self) -> str: ...
    @property
    def dtype(self) -> "numpy.dtype[Any]": ...
    @property
    def preset(self) -> str: ...
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
        exact: bool = False,
        stop_early: bool = False,
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
        exact: bool = False,
        stop_early: bool = False,
        threads: Optional[int] = None,
        in_flight: Optional[int] = None,
        return_stats: Literal[True],
    ) -> Tuple[_Ids, _Distances, Dict[str, Any]]: ...
    def insert(
        self,
        vectors: _Vectors,
        ids: Optional[NDArray[Any]] = None,
        *,
        progress: _Progress = None,
    ) -> _Ids: ...
    def upsert(
        self,
        vectors: _Vectors,
        ids: NDArray[Any],
        *,
        progress: _Progress = None,
    ) -> None: ...
    def delete(self, ids: NDArray[Any]) -> None: ...
    def flush(self) -> None: ...
    def compact(self, *, progress: _Progress = None) -> Dict[str, Any]: ...
    def is_current(self) -> bool: ...
    def refresh(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Index: ...
    def __exit__(self, kind: Any, error: Any, trace: Any) -> None: ...
    def stats(self) -> Dict[str, Any]: ...
    def verify(self, *, progress: _Progress = None) -> Dict[str, Any]: ...

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
        exact: bool = False,
        stop_early: bool = False,
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
        exact: bool = False,
        stop_early: bool = False,
        threads: Optional[int] = None,
        in_flight: Optional[int] = None,
        return_stats: Literal[True],
    ) -> Tuple[_Ids, _Distances, Dict[str, Any]]: ...

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
    seed: int = 42,
    overwrite: bool = False,
    resume: bool = False,
    savepoint_seconds: float = 120.0,
    place: _Place = None,
    ids: Optional[NDArray[Any]] = None,
    progress: _Progress = None,
) -> Index: ...
def train(
    base: Union[_Path, _Vectors],
    path: _Path,
    *,
    code_bytes: Optional[int] = None,
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
) -> Index: ...
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
    found: Tuple[NDArray[Any], NDArray[Any]],
    truth: Tuple[NDArray[Any], Optional[NDArray[Any]]],
    k: Optional[int] = None,
) -> float: ...
