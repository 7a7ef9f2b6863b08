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


def test_ctrl_c_ends_a_close_that_unpacks(photos, tmp_path):
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
            except KeyboardInterrupt as pressed:
                # The changes are in the index, so the text does not say that nothing was changed.
                if isinstance(pressed, stratann.Interrupted) and str(pressed) == "interrupted":
                    break
                # The signal came before or after the opening by `close`.
                delay = delay * 1.1 if delay < 0.1 else 0.001
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                index.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert 0 not in stratann.open(path)
