"""Vector search for collections that do not fit in RAM.

    import stratann

    index = stratann.build("base.u8bin", "photos.idx", metric="l2", memory="2GiB")  # or a numpy array
    index = stratann.create("notes.idx", dimension=384, dtype="float32", metric="cosine")  # no vectors yet
    index = stratann.open("photos.idx", memory="64MiB")
    ids, distances = index.search(queries, k=10)
    index = stratann.build(vectors, "docs.idx", attributes={"year": [...], "tags": [[...], ...]})
    ids, distances = index.search(query, filter="year >= 2020 and tags contains 'sea'")
    vector = index[17]  # by its id; several with index.get(ids), all with index.batches()

    catalog = stratann.Catalog("shelf", memory="256MiB")  # many indexes, one budget
    ids, distances = catalog["photos"].search(queries)

    with stratann.connect("10.0.0.3:7710") as client:  # compute servers (`stratann cluster up`)
        ids, distances = client.search(queries, k=10)

    memory, storage = stratann.MemoryServer("photos.idx"), stratann.StorageServer("photos.idx")  # or such servers, here
    compute = stratann.ComputeServer(memory.address, storage.address)

Distances: "l2" is the squared Euclidean distance, "ip" minus the inner product, "cosine" 1 - cos; a smaller one is
nearer. Arrays that are C-contiguous and float32, float16, uint8 or int8 are read in place; other arrays, lists, and columns of
pandas, polars and pyarrow are converted, with a CopyWarning where that copies 64 MiB or more.

A wrong call raises TypeError or ValueError, a missing path FileNotFoundError, one that may not be touched
PermissionError, a name that a catalog does not have KeyError, memory that the system refuses MemoryError, and what failed though the call was right StratannError:
DamagedError, InUseError, OutdatedError, NoSpaceError and ServerError (of which ServerTimeoutError is one) are kinds of it. Ctrl-C raises Interrupted, a KeyboardInterrupt
that says what became of the work.

What the engine tells goes to the logger "stratann" of Python's logging, which shows warnings unless it is told otherwise:
logging.getLogger("stratann").setLevel("DEBUG") has it tell of each opening, merge, checkpoint and recovery. The environment
variable STRATANN_LOG ("error", "warn", "info", "debug" or "off"), set before the import, keeps the rest from being handed over.
"""

from ._stratann import (
    Catalog,
    Client,
    Column,
    ComputeServer,
    DamagedError,
    Filter,
    Index,
    Interrupted,
    InUseError,
    MemoryServer,
    NoSpaceError,
    OutdatedError,
    Server,
    ServerError,
    ServerTimeoutError,
    StorageServer,
    StratannError,
    __version__,
    column,
    recall,
)
from .conversion import CopyWarning
from .files import read, write
from .naming import build, calibrate, connect, create, open, plan, repair, train, truth, verify
from .rows import Page, Rows, to_arrow, to_lists, to_pandas

__all__ = [
    "Catalog",
    "Client",
    "Column",
    "ComputeServer",
    "CopyWarning",
    "DamagedError",
    "Filter",
    "InUseError",
    "Index",
    "Interrupted",
    "MemoryServer",
    "NoSpaceError",
    "OutdatedError",
    "Page",
    "Rows",
    "Server",
    "ServerError",
    "ServerTimeoutError",
    "StorageServer",
    "StratannError",
    "__version__",
    "build",
    "calibrate",
    "column",
    "connect",
    "create",
    "open",
    "plan",
    "read",
    "recall",
    "repair",
    "to_arrow",
    "to_lists",
    "to_pandas",
    "train",
    "truth",
    "verify",
    "write",
]
