"""Opens and builds the index of documents. A process opens the index once, and one process at a
time writes to it.
"""

from __future__ import annotations

import contextlib
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

_BEGUN = b"building\n"
"""The contents of the lock file during a first build: from before the build writes its first file
until the index exists.
"""


def is_current(index: Index) -> bool:
    """Whether an open index is still the index at its path, and has the changes of all processes.
    """
    try:
        return index.is_current()
    except (FileNotFoundError, StratannError):
        # The index was removed, or is being removed. Opening the path again gives the current
        # index.
        return False


class Handle:
    """The index of one folder in this process. All stores of the folder share one handle, so they
    see each other's changes immediately.

    The first change takes two locks: the index's own, and a lock beside the folder (`FOLDER.lock`).
    `close` releases both. During a rebuild, only the second lock can be held, since the rebuild
    replaces the index. The lock file also records that a first build is running, or was killed.

    A forked process resets the handles that it inherits (`_forked`): it has no index open and holds
    no lock, and takes locks for its own changes.
    """

    _open: "weakref.WeakValueDictionary[str, Handle]" = weakref.WeakValueDictionary()
    _opening = threading.RLock()
    """Held briefly while a handle is made, and while a handle takes its lock. No thread can fork
    while it is held.
    """

    @classmethod
    def of(cls, path: Path, memory: Union[int, str, None], watch_recall: Optional[int]) -> "Handle":
        """The handle of a folder. It opens the index with `memory` for searches, and with a sample
        of `watch_recall` queries for live recall. An argument of None keeps the current value.
        """
        given = {"memory": memory, "watch_recall": watch_recall}
        name = os.path.realpath(path)
        with cls._opening:
            found = cls._open.get(name)
            if found is None:
                found = cls._open[name] = cls(pathlib.Path(name), given)
        # `_reopen` is called without `_opening`, since it may wait for another thread that writes
        # to this handle.
        other = {name: value for name, value in given.items() if value is not None and value != found._arguments[name]}
        if other:
            found._reopen(other)
        return found

    def __init__(self, path: pathlib.Path, arguments: Dict[str, Any]) -> None:
        self.path = path
        self._arguments = arguments
        """The arguments of `stratann.open`."""
        self._begin()

    def _begin(self) -> None:
        """Resets the handle: no index is open, and no lock is held."""
        self.lock = threading.RLock()
        """Held by writers for a whole change. Readers continue with the published index."""
        self._publishing = threading.Lock()
        """Held while an index is opened and published in place of the previous one."""
        self._index: Optional[Index] = None
        """The published index: the one that was opened last."""
        self._beginning = False
        """Whether the first index is being built."""
        self._beside: Optional[int] = None
        """The descriptor of the lock beside the folder, while this process holds it."""

    @classmethod
    def _forked(cls) -> None:
        """Runs in a process that was just forked. Open indexes and locks belong to the parent."""
        # The thread that held the lock `_opening` may not exist in this process.
        cls._opening = threading.RLock()
        handles = list(cls._open.values())
        held = [handle._beside for handle in handles]
        for handle in handles:
            handle._begin()
        for file in held:
            # The lock belongs to the parent. It would last as long as this process has the
            # descriptor open.
            if file is not None:
                os.close(file)

    def index(self) -> Optional[Index]:
        """The current index, with the changes of other processes. None if the index does not exist
        yet.
        """
        index = self._index
        if index is not None and is_current(index):
            return index
        with self._publishing:
            # Another thread may have opened the index while this thread waited.
            if self._index is not None and is_current(self._index):
                return self._index
            # Files of an unfinished first build are no index yet.
            if self._index is None and self._beginning:
                return None
            self._index = self._opened()
            return self._index

    def _reopen(self, other: Dict[str, Any]) -> None:
        """Opens the index for searches with other arguments. Raises ValueError if it is open for
        changes, since such an index keeps its arguments.
        """
        with self.lock:
            if self._beside is not None:
                name, value = next(iter(other.items()))
                raise ValueError(
                    f"{name} is {value!r}; this process has another store of {self.path} open for changes, with {name}={self._arguments[name]!r}, and both share "
                    f"one index. Close that store first, or pass the same {name}"
                )
            with self._publishing:
                before, self._arguments = self._arguments, {**self._arguments, **other}
                try:
                    self._index = self._opened()
                except BaseException:
                    self._arguments = before
                    raise

    def _opened(self) -> Optional[Index]:
        """The index at the path. None if the path is free, or has only files of a first build that
        is unfinished or was killed.

        If the index lacks a file, even its MANIFEST, the method raises an error. Returning None
        would let a build overwrite the index.
        """
        try:
            return _stratann.open(self.path, **self._arguments)
        except (FileNotFoundError, StratannError):
            if self._is_vacant():
                return None
        # The index may have appeared or disappeared between the two checks.
        try:
            return _stratann.open(self.path, **self._arguments)
        except (FileNotFoundError, StratannError) as error:
            if self._is_vacant():
                return None
            if _stratann.is_vacant(self.path):
                raise StratannError(
                    f"{error}. If these documents are being copied, wait for it to end. If this folder is left from a first `put` that was cut off, remove the folder; otherwise put its MANIFEST back"
                ) from error
            raise

    def _is_vacant(self) -> bool:
        """Whether the path is free, or has only files of a first build of these documents that is
        unfinished or was killed.

        By its files alone, a first build looks like an index whose MANIFEST is missing, as in an
        unfinished copy. The lock file distinguishes the two cases: it has the mark `_BEGUN` during
        a first build.
        """
        return _stratann.is_vacant(self.path) and (self._is_empty() or self._has_begun())

    def _is_empty(self) -> bool:
        return not os.path.lexists(self.path) or not os.listdir(self.path)

    def _lock_file(self) -> str:
        return f"{self.path}.lock"

    def _has_begun(self) -> bool:
        try:
            with open(self._lock_file(), "rb") as file:
                return file.read(len(_BEGUN)) == _BEGUN
        except OSError:
            return False

    def _note(self, text: bytes) -> None:
        """Writes this text to the lock file, which this process has open, and makes it durable."""
        assert self._beside is not None
        os.ftruncate(self._beside, 0)
        os.pwrite(self._beside, text, 0)
        os.fsync(self._beside)

    def _note_end(self) -> None:
        """Records in the lock file that no first build is running. If this fails, the next process
        that changes the documents records it.
        """
        if self._has_begun():
            with contextlib.suppress(OSError):
                self._note(b"")

    def hold(self) -> Optional[Index]:
        """Takes the locks for changes, and returns the index. No other process can change the
        documents until `close`. Raises InUseError if another process has the locks now.
        """
        with self.lock:
            if self._beside is not None:
                return self.index()
            self._take()
            try:
                # This index includes the changes that another process made before it released the
                # lock.
                index = self.index()
                if index is not None:
                    self._note_end()
                return index
            except BaseException:
                self._give_back()
                raise

    def _take(self) -> None:
        name = self._lock_file()
        os.makedirs(os.path.dirname(name), exist_ok=True)
        # No thread can fork between these two calls, since the child would keep the descriptor
        # open.
        with self._opening:
            file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                raise InUseError(
                    f"{self.path}: another process changes these documents and has {name} locked. Close them there first, or only read here"
                ) from None
            except OSError as error:
                os.close(file)
                raise StratannError(
                    f"{name}: it cannot be locked; {error.strerror}. Keep the folder on a file system that has locks (flock), or only read here"
                ) from error
            self._beside = file

    def _give_back(self) -> None:
        file, self._beside = self._beside, None
        if file is None:
            return
        try:
            # Closing the file is not enough: it would stay locked as long as a forked process has
            # the descriptor open.
            fcntl.flock(file, fcntl.LOCK_UN)
        finally:
            os.close(file)

    def __del__(self) -> None:
        # The index releases its own lock when Python frees it.
        self._give_back()

    def build(
        self,
        vectors: Any,
        ids: Any,
        attributes: List[Dict[str, Any]],
        payload: List[Any],
        options: Dict[str, Any],
    ) -> Index:
        """Builds an index of only these rows, and replaces the current index by it. After a crash,
        the folder has one of the two, complete. The caller must hold the lock (`hold`).
        """
        if self._beside is None:
            raise StratannError(f"{self.path}: this process holds no lock of the documents, since it was forked during a change. Make the change again")
        before = self._index
        if before is not None:
            before.close()
        rows = numpy.ascontiguousarray(vectors, numpy.float32)
        self._beginning = before is None
        try:
            if self._beginning:
                self._note(_BEGUN)
            _stratann.build(rows, self.path, ids=ids, attributes=attributes, payload=payload, overwrite=before is not None, **options)
        except BaseException:
            # A failed build leaves no files, unless it was complete when a callback raised an
            # exception. Files that appear in the folder later are not from this build.
            if self._beginning and (self._is_empty() or os.path.exists(os.path.join(self.path, "MANIFEST"))):
                self._note_end()
            raise
        finally:
            self._beginning = False
        # From here on, the index exists, even if it cannot be opened.
        self._note_end()
        with self._publishing:
            # A reader may have opened the new index already.
            if self._index is before:
                self._index = self._opened()
            built = self._index
        if built is None:
            raise OutdatedError(f"{self.path}: the index was removed while it was built. Put the documents again")
        return built

    def close(self) -> None:
        """Makes changes durable and releases the locks. The next change takes the locks again.

        If the index cannot be closed, it stays open for changes, and keeps its own lock. Then the
        handle keeps the other lock, since another process could otherwise replace the index.
        """
        with self.lock:
            try:
                if self._index is not None:
                    self._index.close()
            finally:
                if self._index is None or not self._index._has_changed:
                    self._give_back()


# `_opening` is looked up at each call, since a forked process has another lock.
os.register_at_fork(
    before=lambda: Handle._opening.acquire(),
    after_in_parent=lambda: Handle._opening.release(),
    after_in_child=Handle._forked,
)
