"""The index behind documents: opened once in a process, built when there is something to build it of, and written to by one process at a time."""

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
"""What the lock file says from before the first file of a first build until its index is there."""


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
    moment in which an index is built anew, when the first cannot be. Its file says while a first build goes on, or was killed.

    A forked process begins anew with the handles that it inherits (`_forked`): nothing is open there, no lock is held, and what it changes takes locks of
    its own.
    """

    _open: "weakref.WeakValueDictionary[str, Handle]" = weakref.WeakValueDictionary()
    _opening = threading.RLock()
    """Held for moments, in which no thread forks: while a handle is made, and while one takes its lock."""

    @classmethod
    def of(cls, path: Path, memory: Union[int, str, None], watch_recall: Optional[int]) -> "Handle":
        """That of the folder; it opens with so much memory for searches and such a sample of live recall. None leaves either as it was."""
        given = {"memory": memory, "watch_recall": watch_recall}
        name = os.path.realpath(path)
        with cls._opening:
            found = cls._open.get(name)
            if found is None:
                found = cls._open[name] = cls(pathlib.Path(name), given)
        # Apart from the lock of all handles: another thread may be writing to this one.
        other = {name: value for name, value in given.items() if value is not None and value != found._arguments[name]}
        if other:
            found._reopen(other)
        return found

    def __init__(self, path: pathlib.Path, arguments: Dict[str, Any]) -> None:
        self.path = path
        self._arguments = arguments
        """Of `stratann.open`."""
        self._begin()

    def _begin(self) -> None:
        """Nothing is open, and no lock is held."""
        self.lock = threading.RLock()
        """Held by writers alone, over all that they do: readers go on with the index that is published."""
        self._publishing = threading.Lock()
        """Held while an index is opened, and put in place of the one that is published."""
        self._index: Optional[Index] = None
        """The index that is published: the last that was opened."""
        self._beginning = False
        """Whether the first index is being built."""
        self._beside: Optional[int] = None
        """The descriptor of the lock beside the folder, while this process holds it."""

    @classmethod
    def _forked(cls) -> None:
        """In a process that was just forked: what its parent has open and holds is the parent's."""
        # The thread that had it may not be here.
        cls._opening = threading.RLock()
        handles = list(cls._open.values())
        held = [handle._beside for handle in handles]
        for handle in handles:
            handle._begin()
        for file in held:
            # The lock is the parent's, and lasts for as long as any process has the descriptor.
            if file is not None:
                os.close(file)

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

    def _reopen(self, other: Dict[str, Any]) -> None:
        """Has searches take other arguments. An index that takes changes keeps those that it has: then that is refused."""
        with self.lock:
            if self._beside is not None:
                name, value = next(iter(other.items()))
                raise ValueError(
                    f"{name} is {value!r}; this process has another store of {self.path} open for changes, with {name}={self._arguments[name]!r}, and both go by "
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
        """What stands at the path; None if nothing does, or only what a first build has written so far, or left when its process was killed.

        An index that lacks a file is an error, its MANIFEST as well: taken for none, it would be built over.
        """
        try:
            return _stratann.open(self.path, **self._arguments)
        except (FileNotFoundError, StratannError):
            if self._is_vacant():
                return None
        # It may have come, or gone, between the two looks.
        try:
            return _stratann.open(self.path, **self._arguments)
        except (FileNotFoundError, StratannError) as error:
            if self._is_vacant():
                return None
            if _stratann.is_vacant(self.path):
                raise StratannError(
                    f"{error}. If a copy of these documents is under way, wait for it. If only a first `put` that was broken off left this folder, remove it; else put its MANIFEST back"
                ) from error
            raise

    def _is_vacant(self) -> bool:
        """Whether nothing is there, or only what a first build of these documents has written so far, or left when its process was killed.

        Files tell no first build from an index whose MANIFEST is away, as in a copy that is under way: the lock file does, from before the first of them until the index is there.
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
        """Has the lock file, which this process has open, say this durably."""
        assert self._beside is not None
        os.ftruncate(self._beside, 0)
        os.pwrite(self._beside, text, 0)
        os.fsync(self._beside)

    def _note_end(self) -> None:
        """Has the lock file say that no first build goes on. If it cannot, whoever changes the documents next does it."""
        if self._has_begun():
            with contextlib.suppress(OSError):
                self._note(b"")

    def hold(self) -> Optional[Index]:
        """The index for changes: no other process makes any until `close`. Raises InUseError if one does."""
        with self.lock:
            if self._beside is not None:
                return self.index()
            self._take()
            try:
                # With what another process did before it gave the lock back.
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
        # A process that was forked between these would have a descriptor that nobody closes there.
        with self._opening:
            file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                raise InUseError(
                    f"{self.path}: another process changes these documents and has {name} locked: close them there first, or only read here"
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
            # Closed alone, it would stay locked for as long as another process has the same descriptor.
            fcntl.flock(file, fcntl.LOCK_UN)
        finally:
            os.close(file)

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
        if self._beside is None:
            raise StratannError(f"{self.path}: this process holds no lock of the documents: it was forked in the midst of a change. Make the change again")
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
            # It leaves nothing behind, or was done when a callback raised. What comes there later is not of this build.
            if self._beginning and (self._is_empty() or os.path.exists(os.path.join(self.path, "MANIFEST"))):
                self._note_end()
            raise
        finally:
            self._beginning = False
        # From here on an index is there, whatever becomes of opening it.
        self._note_end()
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


# The lock is looked up each time: a forked process has another one.
os.register_at_fork(
    before=lambda: Handle._opening.acquire(),
    after_in_parent=lambda: Handle._opening.release(),
    after_in_child=Handle._forked,
)
