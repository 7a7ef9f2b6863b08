"""Vector search for collections that do not fit in RAM.

    import stratann

    index = stratann.build("base.u8bin", "photos.idx", metric="l2", memory="2GiB")  # or a numpy array
    index = stratann.open("photos.idx", memory="64MiB")
    ids, distances = index.search(queries, k=10)

    catalog = stratann.Catalog("shelf", memory="256MiB")  # many indexes, one budget
    ids, distances = catalog["photos"].search(queries)

Distances: "l2" is the squared Euclidean distance, "ip" minus the inner product, "cosine" 1 - cos; a smaller one is
nearer. Arrays must be C-contiguous and float32, float16, uint8 or int8; they are read in place.

A wrong call raises TypeError or ValueError, a missing path FileNotFoundError, one that may not be touched
PermissionError, a name that a catalog does not have KeyError, and what failed though the call was right StratannError:
DamagedError, InUseError, OutdatedError and NoSpaceError are kinds of it. Ctrl-C raises Interrupted, a KeyboardInterrupt
that says what became of the work.

What the engine tells goes to the logger "stratann" of Python's logging, which shows warnings unless it is told otherwise:
logging.getLogger("stratann").setLevel("DEBUG") has it tell of each opening, merge, checkpoint and recovery. The environment
variable STRATANN_LOG ("error", "warn", "info", "debug" or "off"), set before the import, keeps the rest from being handed over.
"""

from ._stratann import (
    Catalog,
    DamagedError,
    Index,
    Interrupted,
    InUseError,
    NoSpaceError,
    OutdatedError,
    StratannError,
    __version__,
    build,
    open,
    recall,
    repair,
    train,
    truth,
    verify,
)
from .files import read, write

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
    "read",
    "recall",
    "repair",
    "train",
    "truth",
    "verify",
    "write",
]
