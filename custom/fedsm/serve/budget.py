"""How much memory all uploads together may take while they are worked on: a small file can become a large volume."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Budget:
    """Memory that is given out in the order of asking. Used by one event loop.

    Args:
        total: bytes. A single request for more gets them when nobody else has any.
    """

    def __init__(self, total: int):
        self._total = total
        self._used = 0
        self._turn = asyncio.Lock()  # fair: first come, first served
        self._freed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def take(self, count: int) -> AsyncIterator[None]:
        """Waits until there is room for `count` bytes, and has them while the block runs."""
        async with self._turn:
            while self._used and self._used + count > self._total:
                self._freed.clear()
                await self._freed.wait()
            self._used += count
        try:
            yield
        finally:
            self._used -= count
            self._freed.set()
