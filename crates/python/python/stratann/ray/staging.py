"""A folder of indexes that is there when all of it is, or not at all.

    FOLDER                             what readers see: a catalog of shards; it comes by one rename
    FOLDER.building/lock               held (flock) by the process that builds
    FOLDER.building/RUN/catalog/       what FOLDER will be: codebook, shards.json, shard-00000, ..
    FOLDER.building/RUN/tries/         what tasks work in; one that died leaves its own here, and the next one of its shard removes it
    FOLDER.replaced-RUN                the catalog that was there before, while it is exchanged; the next build puts right what was cut short

A shard comes into `catalog` by a rename as well: of two tasks that build the same one, as when Ray gives up a node that is
alive, the first wins. RUN is random, so that what is left of the tasks of a process that died cannot get into the next one's
catalog.
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
"""The file of a catalog that says which shards it has."""

CODEBOOK = "codebook"

LOCK = "lock"

_FORMAT = 1


def facts(folder: pathlib.Path) -> Optional[dict[str, Any]]:
    """The "state" of the catalog in a folder, a random number, and the names of its "shards"; None if it was not built here."""
    path = folder / FACTS
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        said = json.loads(text)
        if said["format"] != _FORMAT:
            raise ValueError(f"{path}: format {said['format']}, and this version reads {_FORMAT}: install a newer stratann")
        return {"state": str(said["state"]), "shards": [str(shard["name"]) for shard in said["shards"]]}
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path}: it is damaged ({error!r}): build the shards again, or remove it if the folder is whole"
        ) from error


class Staging:
    """The folder `FOLDER.building` of one run; see the module's documentation."""

    def __init__(self, folder: pathlib.Path, run: str) -> None:
        self.folder = folder
        self.root = folder.with_name(folder.name + ".building")
        self.run = self.root / run
        self.catalog = self.run / "catalog"
        self._tries = self.run / "tries"

    @contextlib.contextmanager
    def attempt(self, shard: str) -> Iterator[pathlib.Path]:
        """A folder to build a shard in, after what earlier tasks left of it is removed. It is removed as well in the end."""
        for left in self._tries.glob(f"{glob.escape(shard)}.*"):
            self._remove(left)
        folder = self._tries / f"{shard}.{secrets.token_hex(8)}"
        folder.mkdir()
        try:
            yield folder
        finally:
            self._remove(folder)

    def place(self, index: pathlib.Path, shard: str) -> None:
        """Has the index of an attempt be the shard, unless another one is already."""
        try:
            index.rename(self.catalog / shard)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        _sync(self.catalog)

    def _remove(self, folder: pathlib.Path) -> None:
        # Away first: whoever works in it may not give it a name in the catalog any more while it goes.
        away = self._tries / f"gone-{secrets.token_hex(8)}"
        with contextlib.suppress(FileNotFoundError):
            folder.rename(away)
            shutil.rmtree(away, ignore_errors=True)

    @classmethod
    @contextlib.contextmanager
    def begin(cls, folder: pathlib.Path, overwrite: bool) -> Iterator[Staging]:
        """That of a new run, which nobody else has at the same time. All of it is gone in the end, but for what was committed."""
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
        """Makes the catalog what readers see, and durable. The one that was there before goes.

        Between two renames there is no catalog at all then; whoever has the old one open goes on with that.
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
    """Ends an exchange that was cut short: the old catalog comes back if the new one is not there, and goes if it is."""
    for old in folder.parent.glob(f"{glob.escape(folder.name)}.replaced-*"):
        if os.path.lexists(folder):
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(folder)


def _free(folder: pathlib.Path, overwrite: bool) -> None:
    """Refuses to replace what is there: a catalog unless that was asked for, and what is none."""
    if not os.path.lexists(folder):
        return
    if not overwrite:
        raise FileExistsError(f"{folder}: it exists: choose another name, or pass overwrite=True")
    if not (folder / FACTS).is_file():
        raise FileExistsError(
            f"{folder}: it has no {FACTS}, so it is no folder of shards, and is not replaced: choose another name"
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
            continue  # Another one ended just now.
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUseError(
                    f"{folder}: another process builds shards there (it holds {path}): wait until it is done"
                ) from None
            if _is(file.fileno(), path):
                try:
                    yield
                finally:
                    # The name first: who opens it from now on makes a file, and perhaps a folder, of its own.
                    path.unlink(missing_ok=True)
                    with contextlib.suppress(OSError):
                        root.rmdir()
                return


def _is(descriptor: int, path: pathlib.Path) -> bool:
    """Whether the file that is open is the one that has the name still."""
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
