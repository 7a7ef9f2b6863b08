"""A catalog of shards, built by the tasks of a Ray cluster.

    source ─> Ray Data ─> sample ─────────────> one codebook
                    └──> cut into equal parts ─> a task for each: file of its rows ─> stratann.build
                                                                                          │
                                                    FOLDER, by one rename, when all are there ─┘

Shards are contiguous: shard i of S has the rows from i n / S on, in the order of the source. They could have been chosen by a
hash of the id instead. Both give shards of the same number of rows, and every search asks all shards, so that neither is
quicker. Contiguous ones are what Ray Data can cut without an exchange of every block with every task; a task that is started
anew has the same rows; and of row numbers one sees which shard they are in. What a hash has for it is that each shard is a fair
sample: of rows that stand in the order of their subjects, one shard may have all answers to a query, so that the list has to be
as long as that of one index. Shuffle the dataset before (`random_shuffle`), with an id column, where that is so.
"""

from __future__ import annotations

import inspect
import pathlib
import time
from typing import Any, Callable, Optional, Union

import ray

import stratann

from ..progress import Bar
from . import source as rows_of
from .placement import Resources
from .source import Path, Rows, Source
from .staging import CODEBOOK, Staging

_OURS = ("base", "path", "codebook", "memory", "threads", "overwrite", "resume", "savepoint_seconds", "place", "ids", "progress")

_RETRIED = [OSError, stratann.StratannError]
"""What may be another time, or elsewhere, as a full disk. A wrong call is wrong again."""

_ENDED = 10.0
"""Seconds that tasks have to end when others have failed: what they work in is then removed."""


def build_shards(
    source: Source,
    folder: Path,
    shards: int,
    *,
    vector_column: Optional[str] = None,
    id_column: Optional[str] = None,
    metric: str = "l2",
    codebook: bool = True,
    code_bytes: Optional[int] = None,
    sample: int = 100_000,
    seed: int = 42,
    memory: Optional[int] = None,
    resources: Resources = Resources(),
    retries: int = 3,
    overwrite: bool = False,
    progress: Union[bool, Callable[[str, int, int], object], None] = None,
    **build: Any,
) -> dict[str, Any]:
    """Builds a folder of indexes, each of a part of the rows, by tasks of a Ray cluster.

    Parameters
    ----------
    source : ray.data.Dataset, str, os.PathLike or numpy.ndarray
        A dataset with a column of vectors; the path of a vector file (see `read`), whose row numbers are the ids; or an array,
        likewise. It is read once, into the cluster's object store, which spills to disk what is too much for it. What Ray reads
        again because a node is lost has to be the same rows in the same order.
    folder : str or os.PathLike
        Where all nodes see the same files. Nothing is there before all shards are whole; meanwhile "FOLDER.building" is.
        `stratann.Catalog` opens it as well as `ShardedIndex`.
    shards : int
        How many; each gets as many rows as the others but for one, in the order of the source.
    vector_column, id_column : str, optional
        Of a dataset: which column has the vectors (None: the only one but for the ids), and which the ids, integers of which
        none comes twice: within a shard that is an error, between shards it is not noticed. None: the row's number.
    metric, code_bytes, seed
        As those of `stratann.build`.
    codebook : bool
        Whether one codebook is trained for all shards, from a sample of all rows. False leaves each to its own; presets of
        clusters have none.
    sample : int
        From how many rows the codebook is trained, about: random ones, and all if there are no more.
    memory : int, optional
        A cap in bytes on the memory of each task's process while it builds, of which Python, Ray and Arrow take about 200 MB.
        Ray sets as much aside. A cap that is too small is refused with the number that would do.
    resources : Resources
        Of each task: with 4 CPUs it builds on 4 threads.
    retries : int
        How often Ray starts a task anew that died, or failed with an OSError or a StratannError.
    overwrite : bool
        Whether a folder of shards that is there may be replaced, once the new one is whole. For a moment there is none then.
    progress : bool or callable, optional
        As that of `stratann.build`; what is counted is shards.
    **build
        What else `stratann.build` takes: preset, degree, build_list, layout, ..

    Returns
    -------
    dict
        "vectors", "seconds", "codebook" (its hash, or None) and "shards": of each its name, rows, the number of its first row,
        and the build report.

    Raises
    ------
    ValueError, TypeError
        Wrong arguments or rows; the latter may be found by a task.
    FileExistsError
        The folder is there, or is to be replaced and is no folder of shards.
    stratann.InUseError
        Another process builds into the same folder.
    stratann.StratannError, OSError, ray.exceptions.RayError
        What a task failed with more than `retries` times. Nothing is left then, and it can be run again.
    """
    _check(shards, sample, retries, memory, build)
    begun = time.monotonic()
    tell = Bar() if progress is True else (progress or (lambda stage, done, total: None))
    folder = pathlib.Path(folder).absolute()
    common = {"metric": metric, "seed": seed, "code_bytes": code_bytes, "threads": resources.threads}
    with Staging.begin(folder, overwrite) as staging:
        rows = Rows(source, vector_column, id_column)
        if rows.count < shards:
            raise ValueError(f"shards is {shards}: there are {rows.count} rows, and each shard needs one")
        options = {"max_retries": retries, "retry_exceptions": _RETRIED, **resources.options(memory)}
        trained = None
        if codebook:
            tell("training codes", 0, 1)
            trained = _wait([_train.options(**options).remote(staging, rows.sample(sample, seed), rows.vectors, common)])[0]
            tell("training codes", 1, 1)
        task = _build.options(**options)
        arguments = {**build, **common, "memory": memory}
        parts = rows.cut(shards)
        names = [f"shard-{part:05}" for part in range(shards)]
        tasks = [
            task.remote(staging, name, part, first, rows.vectors, rows.ids, codebook, arguments)
            for name, (first, part) in zip(names, parts)
        ]
        built = _wait(tasks, lambda done: tell("building shards", done, shards))
        _look(staging, built)
        hash_of = trained["hash"] if trained else None
        kept = [{key: value for key, value in shard.items() if key != "report"} for shard in built]
        staging.commit({"vectors": rows.count, "codebook": hash_of, "shards": kept}, overwrite)
    return {"vectors": rows.count, "seconds": time.monotonic() - begun, "codebook": hash_of, "shards": built}


@ray.remote
def _train(staging: Staging, sample: Any, column: str, options: dict[str, Any]) -> dict[str, Any]:
    # A task that died may have left a file.
    return stratann.train(rows_of.matrix(sample, column), staging.catalog / CODEBOOK, overwrite=True, **options)


@ray.remote
def _build(
    staging: Staging,
    name: str,
    rows: Any,
    first: int,
    vectors: str,
    ids: Optional[str],
    codebook: bool,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Builds a shard, and says what it is.

    It may have been built by a task that died before it could say so: then it is built again, and the first stays.
    """
    with staging.attempt(name) as folder:
        file, named = rows_of.spool(rows, vectors, ids, folder)
        if named is None:
            named = rows_of.numbers(first, rows.count())
        if codebook:
            options = {**options, "codebook": staging.catalog / CODEBOOK}
        with stratann.build(file, folder / "index", ids=named, **options) as index:
            said = {"name": name, "first_row": first, "vectors": len(index), "report": index.build_report}
        staging.place(folder / "index", name)
    return said


def _wait(tasks: list[Any], tell: Callable[[int], object] = lambda done: None) -> list[Any]:
    """What tasks return. When one fails for good, or the wait is interrupted, the others are ended first."""
    waiting = list(tasks)
    try:
        tell(0)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            ray.get(done)
            tell(len(tasks) - len(waiting))
        return list(ray.get(tasks))
    except BaseException as error:
        # As Ctrl-C would, which ends a build within moments. By force it would be sooner, and then a task that ends by itself just then
        # brings this process down (Ray 2.60: "Tried to complete task that was not pending").
        _, going = ray.wait(tasks, num_returns=len(tasks), timeout=0)
        for task in going:
            ray.cancel(task)
        ray.wait(tasks, num_returns=len(tasks), timeout=_ENDED)
        cause = getattr(error, "cause", None)
        if isinstance(error, ray.exceptions.RayTaskError) and isinstance(cause, Exception):
            raise cause from None
        raise


def _look(staging: Staging, built: list[dict[str, Any]]) -> None:
    """Whether what tasks have built is here to be seen."""
    there = set(stratann.Catalog(staging.catalog).names())
    missing = [shard["name"] for shard in built if shard["name"] not in there]
    if missing:
        raise FileNotFoundError(
            f"{staging.catalog / missing[0]}: tasks have built {len(built)} shards, and {len(missing)} of them are not seen here: "
            f"{staging.folder} has to be on storage that all nodes have under this path"
        )


def _check(shards: int, sample: int, retries: int, memory: Optional[int], build: dict[str, Any]) -> None:
    """Refuses wrong arguments before any work."""
    for name, value, least in [("shards", shards, 1), ("sample", sample, 1), ("retries", retries, 0), ("memory", memory, 1)]:
        if value is None and name == "memory":
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}: it must be an integer" + (" of bytes, or None" if name == "memory" else ""))
        if value < least:
            raise ValueError(f"{name} is {value}: it must be at least {least}")
    known = [name for name in inspect.signature(stratann.build).parameters if name not in _OURS]
    for name in build:
        if name not in known:
            raise TypeError(f"build_shards has no argument {name!r}; of stratann.build it takes {', '.join(known)}")
