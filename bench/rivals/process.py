"""What this process uses, and what it may use: CPU, memory, the page cache, a control group."""

import contextlib
import os
import pathlib


def cpu():
    """CPU seconds of this process and of its ended children."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def memory(key):
    """A line of /proc/self/status (VmRSS, VmHWM), in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key + ":"))


def reset_peak():
    """VmHWM begins anew."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def files(path):
    """A file, or all files of a folder."""
    if os.path.isfile(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


def size(path):
    return sum(os.path.getsize(file) for file in files(path))


def drop_cache(path):
    """The page cache forgets these files. It keeps pages that a process has mapped."""
    for file in files(path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def control_group(limit):
    """A control group with so much memory, as its folder, for as long as the block lasts. It is None
    where this user may make none."""
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
    """Groups of this process that limit memory, with the name of the limit."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            yield pathlib.Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
        elif not controllers:
            yield pathlib.Path("/sys/fs/cgroup" + path), "memory.max"


def enter(folder):
    """This process goes into the group. What it has by now counts in its old group."""
    (pathlib.Path(folder) / "cgroup.procs").write_text(str(os.getpid()))
