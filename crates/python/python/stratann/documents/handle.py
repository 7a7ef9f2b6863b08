"""The index behind documents: opened once in a process, built when there is something to build it of, and written to by one process at a time."""

from __future__ import annotations

import fcntl
import os
import pathlib
import threading
import weakref
from typing import Any, Dict, List, Optional, Union

import numpy

from .. import _stratann
from .._stratann import Index, InUseError, OutdatedError, StratannError

Path = Union[str, "os.PathLike[str]"]


def is_current(index: Index) -> bool:
    """Whether an index is still what stands at its path, with all that anyone has changed."""
    try:
        return index.is_current()
    except (FileNotFoundError, StratannError):
        # It was removed, or is being removed: what stands there is found out by opening it.
        return False


class Handle:
    """One for each folder in a process: what is changed through one store is seen by the others at once.

    The first change takes the index's lock, and a lock beside the folder (`FOLDER.lock`), which `close` gives back. The second is held over the
    moment in which an index is built anew, when the first cannot be.
    """

    _open: "weakref.WeakValueDictionary[str, Handle]" = weakref.WeakValueDictionary()
    _opening = threading.Lock()

    @classmethod
    def of(cls, path: Path, memory: Union[int, str, None]) -> "Handle":
        """That of the folder; it opens with so much memory for searches, or as much as before where `memory` is None."""
        # Worker processes that are forked inherit this dict, but no index that is open: those are their own.
        name = f"{os.getpid()}:{os.path.realpath(path)}"
        with cls._opening:
            found = cls._open.get(name)
            if found is None:
                found = cls._open[name] = cls(pathlib.Path(os.path.abspath(path)), memory)
        # Apart from the lock of all handles: another thread may be writing to this one.
        if memory is not None and memory != found._memory:
            found._reopen(memory)
        return found

    def __init__(self, path: pathlib.Path, memory: Union[int, str, None]) -> None:
        self.path = path
        self.lock = threading.RLock()
        """Held by writers alone, over all that they do: readers go on with the index that is published."""
        self._memory = memory
        self._publishing = threading.Lock()
        """Held while an index is opened, and put in place of the one that is published."""
        self._index: Optional[Index] = None
        """The index that is published: the last that was opened."""
        self._beginning = False
        """Whether the first index is being built."""
        self._beside: Optional[int] = None

    def index(self) -> Optional[Index]:
        """The index as it is now, other processes' changes included; None if there is none yet."""
        index = self._index
        if index is not None and is_current(index):
            return index
        with self._publishing:
            # Another thread may have opened it meanwhile.
            if self._index is not None and is_current(self._index):
                return self._index
            # What a first build has written so far is no index yet.
            if self._index is None and self._beginning:
                return None
            self._index = self._opened()
            return self._index

    def _reopen(self, memory: Union[int, str]) -> None:
        """Has searches take another size of memory. An index that takes changes keeps what it has: then that is refused."""
        with self.lock:
            if self._beside is not None:
                raise ValueError(
                    f"memory is {memory!r}; this process has another store of {self.path} open for changes, with memory={self._memory!r}, and both go by "
                    "one index. Close that store first, or pass the same memory"
                )
            with self._publishing:
                before, self._memory = self._memory, memory
                try:
                    self._index = self._opened()
                except BaseException:
                    self._memory = before
                    raise

    def _opened(self) -> Optional[Index]:
        """What stands at the path; None if nothing does. An index that lacks a file is an error: taken for none, it would be built over."""
        try:
            return _stratann.open(self.path, memory=self._memory)
        except (FileNotFoundError, StratannError):
            if os.path.lexists(self.path):
                raise
            return None

    def hold(self) -> Optional[Index]:
        """The index for changes: no other process makes any until `close`. Raises InUseError if one does."""
        with self.lock:
            if self._beside is not None:
                return self.index()
            self._beside = self._take()
            try:
                # With what another process did before it gave the lock back.
                return self.index()
            except BaseException:
                self._give_back()
                raise

    def _take(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        name = f"{self.path}.lock"
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise InUseError(
                f"{self.path}: another process changes these documents and has {name} locked: close them there first, or only read here"
            ) from None
        return file

    def _give_back(self) -> None:
        if self._beside is not None:
            os.close(self._beside)
            self._beside = None

    def __del__(self) -> None:
        # The index gives its own lock back when it goes.
        self._give_back()

    def build(
        self,
        vectors: Any,
        ids: Any,
        attributes: List[Dict[str, Any]],
        payload: List[Any],
        options: Dict[str, Any],
    ) -> Index:
        """Builds the index of these alone, in place of what there is; a crash leaves the one or the other. Only for who holds it."""
        before = self._index
        if before is not None:
            before.close()
        rows = numpy.ascontiguousarray(vectors, numpy.float32)
        self._beginning = before is None
        try:
            _stratann.build(rows, self.path, ids=ids, attributes=attributes, payload=payload, overwrite=True, **options)
        finally:
            self._beginning = False
        with self._publishing:
            # A reader may have opened it already.
            if self._index is before:
                self._index = self._opened()
            built = self._index
        if built is None:
            raise OutdatedError(f"{self.path}: the index was removed while it was built: build it again")
        return built

    def close(self) -> None:
        """Makes changes durable and gives the locks back. The next change takes them again."""
        with self.lock:
            try:
                if self._index is not None:
                    self._index.close()
            finally:
                self._give_back()
