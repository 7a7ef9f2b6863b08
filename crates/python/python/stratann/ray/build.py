"""A catalog of shards, built by the tasks of a Ray cluster.

```text
source ─> Ray Data ─> sample ─────────────> one codebook
                └──> cut into equal parts ─> a task for each: file of its rows ─> stratann.build
                                                                                      │
                              FOLDER, by one rename, when all shards are complete ────┘
```

Shards are contiguous: shard i of S has the rows from i n / S on, in the order of the source. A hash
of the id would be the other choice. Both give shards of the same number of rows, and every search
asks all shards, so neither is quicker.

Contiguous shards have three advantages. Ray Data can cut them without an exchange of every block
with every task. A restarted task has the same rows. A row number shows its shard.

The advantage of a hash is that each shard is a fair sample. If rows are ordered by subject, one
shard may have all answers to a query, so its list must be as long as the list of a single index. In
that case shuffle the dataset first (`random_shuffle`), with an id column.
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
"""Errors that another attempt, perhaps on another node, may not have, such as a full disk. A wrong
call would fail again.
"""

_ENDED = 10.0
"""The seconds that tasks have to end after another one failed. Then their folder is removed."""


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
        A dataset with a column of vectors, the path of a vector file (see `read`), or an array. The
        ids of a file or an array are its row numbers. The source is read once, into the cluster's
        object store, which spills to disk if it is full. If a node is lost, Ray reads a part again,
        which must give the same rows in the same order.
    folder : str or os.PathLike
        A folder in which all nodes see the same files. It does not exist before all shards are
        complete. During the build there is "FOLDER.building". Both `stratann.Catalog` and
        `ShardedIndex` open the folder.
    shards : int
        The number of shards. Their numbers of rows differ by at most one. Each shard has
        consecutive rows, in the order of the source.
    vector_column, id_column : str, optional
        For a dataset: the column of the vectors (None: the only column besides the ids), and the
        column of the ids (None: the row numbers). Ids are integers, each of them once. An id that
        appears twice is an error within a shard, and is not noticed in two shards.
    metric, code_bytes, seed
        As in `stratann.build`.
    codebook : bool
        Whether one codebook is trained for all shards, from a sample of all rows. With False each
        shard trains its own. Presets of clusters have no codebook.
    sample : int
        The approximate number of random rows that train the codebook. If there are fewer, all are
        used.
    memory : int, optional
        The most bytes of memory of each task's process during the build. Python, Ray and Arrow take
        about 200 MB of them. Ray reserves as many bytes. If this is too little, the error names a
        number that suffices.
    resources : Resources
        The resources of each task. With 4 CPUs a task builds on 4 threads.
    retries : int
        How often Ray restarts a task that died, or that failed with an OSError or a StratannError.
    overwrite : bool
        Whether an existing folder of shards may be replaced, once the new one is complete. Between
        two renames there is briefly no folder.
    progress : bool or callable, optional
        As in `stratann.build`; it counts shards.
    **build
        Other arguments of `stratann.build`: preset, degree, build_list, layout, ..

    Returns
    -------
    dict
        "vectors", "seconds", "codebook" (its hash, or None) and "shards". For each shard this has
        its name, its number of rows, the number of its first row, and the build report.

    Raises
    ------
    ValueError, TypeError
        Arguments or rows are wrong. A task may be the first to find wrong rows.
    FileExistsError
        The folder exists, or it is to be replaced and is no folder of shards.
    stratann.InUseError
        Another process builds into the same folder.
    stratann.StratannError, OSError, ray.exceptions.RayError
        A task failed with this error more than `retries` times. No files are left then, and the
        call may be repeated.
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
    """Builds a shard, and returns its facts.

    A task may have died after it built the shard. Then the shard is built again, and the first one
    stays.
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
    """The results of tasks. If one fails for good, or the wait is interrupted, the other tasks are
    ended first.
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
        # As Ctrl-C does, which ends a build quickly. Ending tasks by force would be quicker. But if
        # a task ended by itself at that time, this process would crash (Ray 2.60: "Tried to
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
    """Checks that this node sees the shards that tasks have built."""
    there = set(stratann.Catalog(staging.catalog).names())
    missing = [shard["name"] for shard in built if shard["name"] not in there]
    if missing:
        raise FileNotFoundError(
            f"{staging.catalog / missing[0]}: tasks have built {len(built)} shards, and {len(missing)} of them are missing on this node. "
            f"Put {staging.folder} on storage that all nodes see under this path"
        )


def _check(shards: int, sample: int, retries: int, memory: Optional[int], build: dict[str, Any]) -> None:
    """Refuses wrong arguments before any work."""
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
            raise TypeError(f"build_shards has no argument {name!r}. Of the arguments of stratann.build it takes {', '.join(known)}")
