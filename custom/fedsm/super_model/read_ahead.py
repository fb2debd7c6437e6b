"""Files that are read by threads while the networks compute, in their order and within a budget of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")

_READERS = 2  # threads
_MEMORY = 256 * 1024**2  # bytes of what was read and is not asked for yet; the next files are read whatever they take


def read_ahead(
    items: Sequence[Item], read: Callable[[Item], Found], size: Callable[[Found], int], most: int
) -> Iterator[Found]:
    """What `read` makes of each item, in the items' order.

    Args:
        items: what to read.
        read: called in a thread.
        size: bytes that a result takes in memory.
        most: how many results may wait. Beside them each thread may read one.
    """
    changed = threading.Condition()
    waiting: dict[int, int] = {}  # bytes of the results that wait, by number
    asked = 0  # the number of the result that is asked for next
    stopped = False

    def has_room(number: int) -> bool:
        ahead = number - asked
        return stopped or ahead <= _READERS or (ahead < most and sum(waiting.values()) < _MEMORY)

    def work(number: int) -> Found | None:
        with changed:
            changed.wait_for(lambda: has_room(number))
            if stopped:
                return None
        found = read(items[number])
        with changed:
            waiting[number] = size(found)
        return found

    with ThreadPoolExecutor(_READERS, "fedsm-reader") as pool:
        futures: list[Future[Found | None] | None] = [pool.submit(work, number) for number in range(len(items))]
        try:
            for number in range(len(items)):
                future, futures[number] = futures[number], None  # a result lives no longer than whoever asked keeps it
                assert future is not None
                found = future.result()
                del future
                with changed:
                    asked = number + 1
                    waiting.pop(number, None)
                    changed.notify_all()
                yield found  # type: ignore[misc]  # None only where nobody asks any more
                del found
        finally:
            with changed:
                stopped = True
                changed.notify_all()
            for left in futures:
                if left:
                    left.cancel()
