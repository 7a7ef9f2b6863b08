"""Measures the CPU and memory of this process, and limits its memory and page cache."""

import contextlib
import os
import pathlib


def cpu():
    """CPU seconds of this process and of its ended children."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def memory(key):
    """The value of a line of /proc/self/status (VmRSS or VmHWM), in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key + ":"))


def reset_peak():
    """Resets VmHWM, the peak memory, to the current memory."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def files(path):
    """The path itself if it is a file, else the paths of all files in this folder."""
    if os.path.isfile(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


def size(path):
    return sum(os.path.getsize(file) for file in files(path))


def drop_cache(path):
    """Removes the files of `path` from the page cache, except pages that a process has mapped."""
    for file in files(path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def control_group(limit):
    """Makes a control group with a limit of memory in bytes, and removes it after the `with` block.
    The value is the group's folder, or None if this user cannot make a control group.
    """
    folder = None
    for parent, file in groups():
        folder = parent / f"rivals-{os.getpid()}"
        try:
            folder.mkdir()
            (folder / file).write_text(str(limit))
            break
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
            folder = None
    try:
        yield folder
    finally:
        if folder is not None:
            folder.rmdir()


def groups():
    """The control groups of this process that limit memory, each with the name of the file of its
    limit.
    """
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            yield pathlib.Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
        elif not controllers:
            yield pathlib.Path("/sys/fs/cgroup" + path), "memory.max"


def enter(folder):
    """Moves this process into the group. Memory that it already uses still counts in its old group.
    """
    (pathlib.Path(folder) / "cgroup.procs").write_text(str(os.getpid()))
