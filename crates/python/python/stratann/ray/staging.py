"""A folder of indexes that is either complete or does not exist.

```text
FOLDER                         the catalog of shards that readers see; it appears by one rename
FOLDER.building/lock           held (flock) by the process that builds
FOLDER.building/RUN/catalog/   the future FOLDER: codebook, shards.json, shard-00000, ..
FOLDER.building/RUN/tries/     the folders of tasks; a task that died leaves its own here, and the
                               next task of its shard removes it
FOLDER.replaced-RUN            the previous catalog, during the exchange of catalogs; the next build
                               completes an exchange that was cut off
```

A task also moves its shard into `catalog` by a rename. Two tasks may build the same shard, for
example after Ray gave up a node that is still alive. Then the shard of the task that ends first is
used. RUN is random, so tasks of a process that died cannot write into the catalog of the next
process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import os
import pathlib
import secrets
import shutil
from typing import Any, Iterator, Optional

from .. import InUseError

FACTS = "shards.json"
"""The file of a catalog that lists its shards."""

CODEBOOK = "codebook"

LOCK = "lock"

_FORMAT = 1


def facts(folder: pathlib.Path) -> Optional[dict[str, Any]]:
    """The "state" of the catalog in a folder, which is a random number, and the names of its
    "shards". None if this package did not build the catalog.
    """
    path = folder / FACTS
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        said = json.loads(text)
        if said["format"] != _FORMAT:
            raise ValueError(f"{path}: the format is {said['format']}, and this version reads {_FORMAT}. Install a newer stratann")
        return {"state": str(said["state"]), "shards": [str(shard["name"]) for shard in said["shards"]]}
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path}: the file is damaged ({error!r}). Build the shards again, or remove the file if the folder is complete"
        ) from error


class Staging:
    """The folder `FOLDER.building` of one run, as the module's documentation shows it."""

    def __init__(self, folder: pathlib.Path, run: str) -> None:
        self.folder = folder
        self.root = folder.with_name(folder.name + ".building")
        self.run = self.root / run
        self.catalog = self.run / "catalog"
        self._tries = self.run / "tries"

    @contextlib.contextmanager
    def attempt(self, shard: str) -> Iterator[pathlib.Path]:
        """Makes a folder in which a task builds a shard. Removes the folders of earlier tasks of
        this shard first, and the new folder at the end.
        """
        for left in self._tries.glob(f"{glob.escape(shard)}.*"):
            self._remove(left)
        folder = self._tries / f"{shard}.{secrets.token_hex(8)}"
        folder.mkdir()
        try:
            yield folder
        finally:
            self._remove(folder)

    def place(self, index: pathlib.Path, shard: str) -> None:
        """Moves the index of an attempt into the catalog as the shard. If the catalog has this
        shard already, does nothing.
        """
        try:
            index.rename(self.catalog / shard)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        _sync(self.catalog)

    def _remove(self, folder: pathlib.Path) -> None:
        # The folder is renamed first, so that a task that still works in it can no longer move its
        # index into the catalog.
        away = self._tries / f"gone-{secrets.token_hex(8)}"
        with contextlib.suppress(FileNotFoundError):
            folder.rename(away)
            shutil.rmtree(away, ignore_errors=True)

    @classmethod
    @contextlib.contextmanager
    def begin(cls, folder: pathlib.Path, overwrite: bool) -> Iterator[Staging]:
        """The staging folder of a new run. The run has the lock until it ends. Then the folder is
        removed; `commit` has moved the catalog out of it.
        """
        _free(folder, overwrite)
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = cls(folder, secrets.token_hex(8))
        with _locked(staging.root, folder):
            _heal(folder)
            _free(folder, overwrite)
            for left in staging.root.iterdir():
                if left.name != LOCK:
                    shutil.rmtree(left, ignore_errors=True)
            try:
                staging.catalog.mkdir(parents=True)
                staging._tries.mkdir()
                yield staging
            finally:
                shutil.rmtree(staging.run, ignore_errors=True)

    def commit(self, said: dict[str, Any], overwrite: bool) -> None:
        """Makes the catalog visible to readers, and durable. Removes the previous catalog.

        Between two renames, the catalog is missing for a moment. A process that has the previous
        catalog open continues with it.
        """
        whole = {"format": _FORMAT, "state": secrets.token_hex(16), **said}
        with (self.catalog / FACTS).open("x", encoding="utf-8") as file:
            json.dump(whole, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        _sync(self.catalog)
        _free(self.folder, overwrite)
        old = self.folder.with_name(f"{self.folder.name}.replaced-{self.run.name}")
        if self.folder.exists():
            self.folder.rename(old)
        try:
            self.catalog.rename(self.folder)
        except OSError:
            if old.exists():
                old.rename(self.folder)
            raise
        _sync(self.folder.parent)
        shutil.rmtree(old, ignore_errors=True)


def _heal(folder: pathlib.Path) -> None:
    """Completes an exchange of catalogs that was cut off. If the new catalog is missing, puts the
    old catalog back. Otherwise, removes the old catalog.
    """
    for old in folder.parent.glob(f"{glob.escape(folder.name)}.replaced-*"):
        if os.path.lexists(folder):
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(folder)


def _free(folder: pathlib.Path, overwrite: bool) -> None:
    """Raises FileExistsError if the folder exists and must not be replaced. A catalog may be
    replaced if `overwrite` is True, and any other folder never.
    """
    if not os.path.lexists(folder):
        return
    if not overwrite:
        raise FileExistsError(f"{folder}: the folder exists already. Choose another name, or pass overwrite=True")
    if not (folder / FACTS).is_file():
        raise FileExistsError(
            f"{folder}: without {FACTS} it is no folder of shards, so it is not replaced. Choose another name"
        )


@contextlib.contextmanager
def _locked(root: pathlib.Path, folder: pathlib.Path) -> Iterator[None]:
    path = root / LOCK
    while True:
        with contextlib.suppress(FileExistsError):
            root.mkdir()
        try:
            file = path.open("ab")
        except FileNotFoundError:
            continue  # Another build ended just now.
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUseError(
                    f"{folder}: another process builds shards there and has {path} locked. Wait until that build is done"
                ) from None
            if _is(file.fileno(), path):
                try:
                    yield
                finally:
                    # The name of the lock file is removed before the lock is released. A process
                    # that opens this name from now on makes a new file, and perhaps a new folder.
                    path.unlink(missing_ok=True)
                    with contextlib.suppress(OSError):
                        root.rmdir()
                return


def _is(descriptor: int, path: pathlib.Path) -> bool:
    """Whether `path` is still a name of the open file."""
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino)


def _sync(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
