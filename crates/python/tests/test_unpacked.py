"""Indexes that are unpacked in memory when they are opened."""

import shutil
import signal

import stratann


def test_ctrl_c_ends_an_open_that_unpacks(photos):
    def press(signal_number, frame):
        raise KeyboardInterrupt

    def opened():
        return stratann.open(photos, memory="100MiB")

    assert opened().stats()["memory"]["unpacked"] > 0
    before = signal.signal(signal.SIGALRM, press)
    delay = 0.001
    try:
        while True:
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                opened()
            except stratann.Interrupted as interrupted:
                assert str(interrupted) == "interrupted; nothing was changed"
                break
            except KeyboardInterrupt:
                # The signal came before or after the opening.
                delay = delay * 1.5 if delay < 0.1 else 0.001
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert opened().stats()["memory"]["unpacked"] > 0


def unpacked(index):
    return index.stats()["memory"]["unpacked"] > 0


def test_ctrl_c_in_a_close_that_unpacks_leaves_the_index_closed(photos, tmp_path, another_process):
    def press(signal_number, frame):
        raise KeyboardInterrupt

    path = tmp_path / "photos.idx"
    shutil.copytree(photos, path)
    before = signal.signal(signal.SIGALRM, press)
    delay, deleted = 0.001, 0
    try:
        while True:
            index = stratann.open(path, memory="100MiB")
            index.delete([deleted])
            deleted += 1
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                index.close()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except stratann.Interrupted as pressed:
                signal.setitimer(signal.ITIMER_REAL, 0)
                # The signal came when the index was closed: while it was unpacked.
                if pressed.complete and not index._has_changed:
                    break
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
            index.close()
            delay = delay * 1.1 if delay < 0.1 else 0.001
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    # No lock is left, all changes are there, and the next search unpacks the index.
    assert another_process(path, "index.delete([1000]); print(1000 in index)") == "False"
    assert 0 not in index and unpacked(index)


def test_an_object_that_is_freed_unpacks_nothing_and_the_next_search_does(photos, tmp_path):
    path = tmp_path / "photos.idx"
    shutil.copytree(photos, path)
    reader, other = (stratann.open(path, memory="100MiB") for _ in range(2))
    for deleted, end in [(0, lambda writer: None), (1, lambda writer: writer.close())]:
        writer = stratann.open(path, memory="100MiB")
        writer.delete([deleted])
        assert deleted not in reader and not unpacked(reader) and not unpacked(writer)
        end(writer)
        del writer
        assert deleted not in reader and deleted not in other and unpacked(reader) and unpacked(other)


def test_an_index_is_as_unpacked_after_a_close_as_before(photos, tmp_path):
    path = tmp_path / "photos.idx"
    shutil.copytree(photos, path)
    for memory in (None, "100MiB"):
        index = stratann.open(path, memory=memory)
        before = unpacked(index)
        index.delete([int(index.ids(count=1)[0])])
        index.close()
        assert unpacked(index) == before == (memory == "100MiB") and index.search(index[100], 1)[0] == [100]
