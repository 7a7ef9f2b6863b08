"""A catalog of shards, built by the tasks of a Ray cluster.

```text
source ─> Ray Data ─> sample ─────────────> one codebook
                └──> cut into equal parts ─> a task for each: file of its rows ─> stratann.build
                                                                                      │
                              FOLDER, by one rename, when all shards are complete ────┘
```

Shards are contiguous: of n rows in S shards, shard i has the rows from i n / S on, in the order of
the source. The alternative is to assign rows by a hash of the id. Either way, shards have the same
number of rows, and every search asks all shards. So searches are equally fast.

Contiguous shards have three advantages. Ray Data can cut the source without a shuffle. A restarted
task gets the same rows. The row number determines the shard.

The advantage of a hash is that each shard is a fair sample. If rows are ordered by subject, one
shard may have all results of a query, and then needs as long a list size as a single index. In that
case, shuffle the dataset first (`random_shuffle`), and give the dataset a column of ids.
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
"""Errors, such as a full disk, after which another attempt may succeed, perhaps on another node.
After an error about a wrong argument, another attempt would fail too.
"""

_ENDED = 10.0
"""After a task failed, the other tasks have this time to end, in seconds. Then their folder is
removed.
"""


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
    """Builds a folder of shards in tasks of a Ray cluster. A shard is an index of a part of the
    vectors.

    Parameters
    ----------
    source : ray.data.Dataset, str, os.PathLike or numpy.ndarray
        A dataset with a column of vectors, the path of a vector file (see `read`), or an array. For
        a file or an array, ids are row numbers. The source is read once into the cluster's object
        store, which spills to disk if it is full. If a node is lost, Ray reads a part of the source
        again. The source must then return the same rows in the same order.
    folder : str or os.PathLike
        A new folder, on storage where all nodes see the same files. The folder appears when all
        shards are complete. During the build, there is a folder "FOLDER.building". Both
        `stratann.Catalog` and `ShardedIndex` open the folder.
    shards : int
        The number of shards. Each shard has consecutive rows in the order of the source. The sizes
        of two shards differ by at most one row.
    vector_column, id_column : str, optional
        For a dataset: the column of the vectors (None: the only column besides the ids), and the
        column of the ids (None: ids are row numbers). No two ids may be equal. If an id is twice in
        one shard, the build fails; the build does not notice an id in two shards.
    metric, code_bytes, seed
        As in `stratann.build`.
    codebook : bool
        Whether all shards share one codebook, trained on a sample of all rows. With False, each
        shard trains its own codebook. Presets of clusters have no codebook.
    sample : int
        The approximate number of random vectors on which the codebook is trained. If the source has
        fewer vectors, all are used.
    memory : int, optional
        The maximum memory of each task's process during the build, in bytes. Python, Ray and Arrow
        take about 200 MB of it. Ray reserves this memory. If the memory is too little, the error
        names a number that suffices.
    resources : Resources
        The resources of each task. With 4 CPUs, a task builds with 4 threads.
    retries : int
        How often Ray restarts a task that died or that failed with an OSError or a StratannError.
    overwrite : bool
        Whether an existing folder of shards may be replaced once the new folder is complete.
        Between two renames, the folder is missing for a moment.
    progress : bool or callable, optional
        As in `stratann.build`. Progress counts shards.
    **build
        Other arguments of `stratann.build`: preset, degree, build_list, layout, ..

    Returns
    -------
    dict
        "vectors", "seconds", "codebook" (its hash, or None) and "shards", which has for each shard
        its name, its number of rows, the number of its first row, and the build report.

    Raises
    ------
    ValueError, TypeError
        Arguments or rows are wrong. Wrong rows may be found only in a task.
    FileExistsError
        The folder exists and `overwrite` is False, or the folder to replace is no folder of shards.
    stratann.InUseError
        Another process builds into the same folder.
    stratann.StratannError, OSError, ray.exceptions.RayError
        A task failed with this error more than `retries` times. The call has removed its files, and
        may be repeated.
    """
    _check(shards, sample, retries, memory, build)
    begun = time.monotonic()
    tell = Bar() if progress is True else (progress or (lambda stage, done, total: None))
    folder = pathlib.Path(folder).absolute()
    common = {"metric": metric, "seed": seed, "code_bytes": code_bytes, "threads": resources.threads}
    with Staging.begin(folder, overwrite) as staging:
        rows = Rows(source, vector_column, id_column)
        if rows.count < shards:
            raise ValueError(f"shards is {shards}; there are {rows.count} rows, and each shard needs one. Pass fewer shards")
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
    # A task that died may have left this file.
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
    """Builds a shard, and returns its name, first row, number of vectors and build report.

    If an earlier task built the shard and then died, this task builds it again, but the catalog
    keeps the earlier index.
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
    """Waits for tasks, and returns their results. If a task fails in its last attempt, or the wait
    is interrupted, ends the other tasks before it raises the error.
    """
    waiting = list(tasks)
    try:
        tell(0)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            ray.get(done)
            tell(len(tasks) - len(waiting))
        return list(ray.get(tasks))
    except BaseException as error:
        # `cancel` acts like Ctrl-C, which ends a build quickly. Killing the tasks would be quicker,
        # but if a task ended at the same time, this process would crash (Ray 2.60: "Tried to
        # complete task that was not pending").
        _, going = ray.wait(tasks, num_returns=len(tasks), timeout=0)
        for task in going:
            ray.cancel(task)
        ray.wait(tasks, num_returns=len(tasks), timeout=_ENDED)
        cause = getattr(error, "cause", None)
        if isinstance(error, ray.exceptions.RayTaskError) and isinstance(cause, Exception):
            raise cause from None
        raise


def _look(staging: Staging, built: list[dict[str, Any]]) -> None:
    """Checks that this node sees the shards that the tasks have built."""
    there = set(stratann.Catalog(staging.catalog).names())
    missing = [shard["name"] for shard in built if shard["name"] not in there]
    if missing:
        raise FileNotFoundError(
            f"{staging.catalog / missing[0]}: tasks have built {len(built)} shards, and {len(missing)} of them are missing on this node. "
            f"Put {staging.folder} on storage that all nodes see under this path"
        )


def _check(shards: int, sample: int, retries: int, memory: Optional[int], build: dict[str, Any]) -> None:
    """Raises an error if an argument of `build` is wrong, before any shard is built."""
    for name, value, least in [("shards", shards, 1), ("sample", sample, 1), ("retries", retries, 0), ("memory", memory, 1)]:
        if value is None and name == "memory":
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}; it is of another type. Pass an integer" + (" of bytes, or None" if name == "memory" else ""))
        if value < least:
            raise ValueError(f"{name} is {value}; it is out of range. Pass at least {least}")
    known = [name for name in inspect.signature(stratann.build).parameters if name not in _OURS]
    for name in build:
        if name not in known:
            raise TypeError(f"build_shards has no argument {name!r}. It takes these arguments of stratann.build: {', '.join(known)}")
