"""Awaits searches in event loops of asyncio. Each loop watches a `Bell`. When a search has ended,
its thread makes the file descriptor of the bell readable.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from typing import Any, Dict, Tuple

from ._stratann import Bell, Search


class _Loop:
    """The searches that tasks of an event loop await."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._bell = Bell()
        self._numbers = itertools.count()
        self._waiting: Dict[int, asyncio.Future[None]] = {}
        loop.add_reader(self._bell.fileno(), self._rung)

    def _rung(self) -> None:
        for number in self._bell.take():
            future = self._waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_result(None)

    async def ended(self, search: Search) -> None:
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        search.ring(self._bell, number)
        try:
            await future
        finally:
            self._waiting.pop(number, None)


_loops: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop]" = weakref.WeakKeyDictionary()


async def answers(search: Search) -> Tuple[Any, ...]:
    """Waits for a search, and returns its result. If the waiting task is cancelled, the search
    ends.
    """
    loop = asyncio.get_running_loop()
    here = _loops.get(loop)
    if here is None:
        here = _loops[loop] = _Loop(loop)
    while True:
        try:
            await here.ended(search)
        except BaseException:
            search.cancel()
            raise
        # `result` may read attributes from storage. The loop must not wait for this.
        found = await loop.run_in_executor(None, search.result) if search.reads() else search.result()
        # None is a search that began again.
        if found is not None:
            return found
