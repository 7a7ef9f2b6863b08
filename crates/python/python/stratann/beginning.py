"""`stratann.create`: an index that begins with nothing."""

from __future__ import annotations

import os
import time
from typing import Any, Mapping, Optional, Union

import numpy

from ._stratann import Index, InUseError, build, check_choices, give_report, is_there_for, open
from .naming import checked

# How often one looks whether another process has created an index that is about to, and how long between: ten seconds in all.
_LOOKS, _BETWEEN = 500, 0.02
_DTYPES = ("float32", "float16", "uint8", "int8")


@checked
def create(
    path: Union[str, "os.PathLike[str]"],
    *,
    dimension: int,
    dtype: Any = "float32",
    metric: str = "l2",
    preset: str = "stratann",
    degree: Optional[int] = None,
    build_list: int = 100,
    alpha: float = 1.2,
    code_bytes: Optional[int] = None,
    low_codes: Optional[str] = None,
    codebook: Union[str, "os.PathLike[str]", None] = None,
    order: Optional[str] = None,
    layout: Optional[str] = None,
    compression: Optional[str] = None,
    chunk: Union[int, str, None] = None,
    segment: Union[int, str, None] = None,
    navigation: float = 0.01,
    search_memory: Union[int, str, None] = None,
    cluster_size: Optional[int] = None,
    replicas: Optional[int] = None,
    seed: int = 42,
    overwrite: bool = False,
    exist_ok: bool = False,
    place: Union[Mapping[str, str], str, None] = None,
    memory: Union[int, str, None] = None,
    io: str = "auto",
    cache: Union[int, str, None] = None,
    cache_entries: Union[int, str, None] = None,
    durability: Union[int, str, None] = None,
    merges: bool = True,
) -> Index:
    """Creates an index without vectors in the new folder `path`, and opens it. `Index.insert` and `Index.upsert` bring the vectors.

    Columns of attributes come with the first vectors that have them. As the index grows, merges (`Index.compact`, or those that
    `merges=True` of `open` allows) train its codes anew, until it is as good as one that was built of all its vectors.

    Parameters
    ----------
    path : str or os.PathLike
        The folder of the index.
    dimension : int
        Elements of each vector, 1 to 65,535.
    dtype : str or numpy.dtype
        "float32", "float16", "uint8" or "int8": what the elements are.
    metric, preset, degree, build_list, alpha, code_bytes, low_codes, codebook, order, layout, compression, chunk, segment, navigation
        As those of `build`.
    search_memory, cluster_size, replicas, seed, overwrite, place
        As those of `build`.
    exist_ok : bool
        Whether an index that is there already is opened as it is. It must have this dimension, dtype and metric: a ValueError says in what it differs. The choices
        of a build are for an index that is created. Of several processes that call this at once, one creates it and the others wait for that.
    memory, io, cache, cache_entries, durability, merges
        As those of `open`: how the index is opened, whether it was created or was there.

    Returns
    -------
    Index
        Open, with `build_report`, and of length 0; of one that was there, without a report.
    """
    if isinstance(dimension, bool) or not hasattr(dimension, "__index__"):
        kind = type(dimension).__name__
        raise TypeError(f"dimension is a {kind}: it must be an int, 1 to 65535")
    if not 1 <= dimension <= 65535:
        raise ValueError(f"dimension is {dimension}: it must be 1 to 65535")
    try:
        name = numpy.dtype(dtype).name
    except TypeError:
        name = repr(dtype)
    if name not in _DTYPES:
        raise ValueError(f"dtype is {name}: it must be one of {', '.join(_DTYPES)}")
    opening: dict[str, Any] = {
        "memory": memory,
        "io": io,
        "cache": cache,
        "cache_entries": cache_entries,
        "durability": durability,
        "merges": merges,
    }

    def opened() -> Index:
        return open(path, place=place, **opening)

    def new() -> Index:
        built = build(
            numpy.empty((0, dimension), name),
            path,
            metric=metric,
            preset=preset,
            degree=degree,
            build_list=build_list,
            alpha=alpha,
            code_bytes=code_bytes,
            low_codes=low_codes,
            codebook=codebook,
            order=order,
            layout=layout,
            compression=compression,
            chunk=chunk,
            segment=segment,
            navigation=navigation,
            search_memory=search_memory,
            cluster_size=cluster_size,
            replicas=replicas,
            seed=seed,
            overwrite=overwrite,
            place=place,
        )
        built.close()
        index = opened()
        give_report(index, built.build_report)
        return index

    check_choices(preset, low_codes, order, layout, compression, memory, io, durability)
    if not exist_ok:
        return new()
    if overwrite:
        raise ValueError("exist_ok and overwrite are both given: an index that is there is either kept or replaced")
    for _ in range(_LOOKS):
        if is_there_for(path, dimension, name, metric):
            return opened()
        try:
            return new()
        except FileExistsError:
            # Another process was faster, or it is something else that is there.
            if not is_there_for(path, dimension, name, metric):
                raise
        except InUseError:
            # Another process is about to create it.
            time.sleep(_BETWEEN)
    return new()
