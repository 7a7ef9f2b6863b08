"""Vector search for collections that do not fit in RAM.

```python
import stratann

index = stratann.build("base.u8bin", "photos.idx", metric="l2", memory="2GiB")  # or a numpy array
index = stratann.open("photos.idx", memory="64MiB")
ids, distances = index.search(queries, k=10)
vector = index[17]  # by its id; several with index.get(ids), all with index.batches()

# An index without vectors, which are inserted later.
index = stratann.create("notes.idx", dimension=384, dtype="float32", metric="cosine")

# Attributes and filters.
index = stratann.build(vectors, "docs.idx", attributes={"year": [...], "tags": [[...], ...]})
ids, distances = index.search(query, filter="year >= 2020 and tags contains 'sea'")

catalog = stratann.Catalog("shelf", memory="256MiB")  # many indexes, one budget
ids, distances = catalog["photos"].search(queries)

with stratann.connect("10.0.0.3:7710") as client:  # compute servers (`stratann cluster up`)
    ids, distances = client.search(queries, k=10)

memory = stratann.MemoryServer("photos.idx")  # servers in this process
storage = stratann.StorageServer("photos.idx")
compute = stratann.ComputeServer(memory.address, storage.address)
```

Distances: "l2" is the squared Euclidean distance, "ip" minus the inner product, "cosine" 1 - cos. A
smaller distance is nearer.

A C-contiguous array of float32, float16, uint8 or int8 is read in place. Other arrays, lists, and
columns of pandas, polars and pyarrow are converted. If a conversion copies 64 MiB or more, Python
shows a CopyWarning.

Exceptions:

- TypeError, ValueError: an argument is wrong.
- FileNotFoundError: a path does not exist. PermissionError: this user may not access a path.
- KeyError: a catalog has no index of this name.
- MemoryError: the system refuses memory.
- StratannError: a correct call failed. DamagedError, InUseError, OutdatedError, NoSpaceError and
  ServerError are its subclasses, and ServerTimeoutError is a subclass of ServerError.
- Interrupted: the user pressed Ctrl-C. The exception is a KeyboardInterrupt, and its message says
  how much of the work was done.

The engine logs to the logger "stratann" of Python's logging, which shows only warnings by default.
After logging.getLogger("stratann").setLevel("DEBUG"), this logger shows each opening, merge,
checkpoint and recovery. If the environment variable STRATANN_LOG ("error", "warn", "info", "debug"
or "off") is set before the import, messages below this level do not reach Python.
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
