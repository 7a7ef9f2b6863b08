"""The progress bar of `progress=True`."""

from __future__ import annotations

import sys
import time
from typing import Optional, TextIO


class Bar:
    """A line with the current stage of long work, its progress, and the remaining time.

    On a terminal, the bar redraws one line. Any other stream gets a line when a stage begins, and a
    line when the stage is done.
    """

    def __init__(self, stream: Optional[TextIO] = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._stage: Optional[str] = None
        self._begun = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self._stage, self._begun = stage, time.monotonic()
            if not self._terminal:
                self._write(f"{stage}: begun\n")
        spent = time.monotonic() - self._begun
        if total and done == total:
            start, end = ("\r\x1b[K", "\n") if self._terminal else ("", "\n")
            self._write(f"{start}{stage}: done in {spent:.1f} s{end}")
            self._stage = None
        elif self._terminal and not total:
            self._write(f"\r\x1b[K{stage}: {done}")
        elif self._terminal:
            left = f", {_clock(spent * (total - done) / done)} left" if done else ""
            self._write(f"\r\x1b[K{stage}: {100 * done // total} %{left}")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
