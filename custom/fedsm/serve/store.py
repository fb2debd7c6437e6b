"""What is kept in memory for a while: bounded in number, in bytes and in age."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from fedsm.serve.limits import Refused, ServeLimits


class Sized(Protocol):
    """Something that knows how much memory it takes."""

    @property
    def nbytes(self) -> int:
        """Bytes."""


Item = TypeVar("Item", bound=Sized)


class Store(Generic[Item]):
    """Items by their ids; the oldest go first.

    Args:
        limits: how many, how large, how long.
        what: what one is called, for messages.
        clock: seconds that only grow.
    """

    def __init__(self, limits: ServeLimits, what: str, clock: Callable[[], float] = time.monotonic):
        self._limits, self._what, self._clock = limits, what, clock
        self._items: OrderedDict[str, tuple[float, Item]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, name: str, item: Item) -> None:
        """Keeps an item.

        Raises:
            Refused: it alone is larger than all may be.
        """
        if item.nbytes > self._limits.results_bytes:
            raise Refused(413, f"the {self._what} takes too much memory", "make the image smaller")
        self.remove(name)
        with self._lock:
            self._items[name] = (self._clock(), item)
            self._bytes += item.nbytes
            while len(self._items) > self._limits.results or self._bytes > self._limits.results_bytes:
                self._drop(next(iter(self._items)))

    def get(self, name: str) -> Item:
        """An item.

        Raises:
            Refused: it is not there, or no longer.
        """
        self.expire()
        with self._lock:
            if name not in self._items:
                raise Refused(404, f"there is no such {self._what}, or no longer", "upload the image again")
            return self._items[name][1]

    def remove(self, name: str) -> None:
        """Forgets an item; one that is not there is forgotten already."""
        with self._lock:
            if name in self._items:
                self._drop(name)

    def expire(self) -> None:
        """Forgets what is too old."""
        with self._lock:
            oldest = self._clock() - self._limits.results_seconds
            for name in [name for name, (since, _) in self._items.items() if since < oldest]:
                self._drop(name)

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            for name in list(self._items):
                self._drop(name)

    def _drop(self, name: str) -> None:
        self._bytes -= self._items.pop(name)[1].nbytes
