"""Passes on the sites' answers one at a time, in the order of the sites."""

from __future__ import annotations

import threading
from collections.abc import Callable

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

Taker = Callable[[Shareable, FLContext], object]


class Inbox:
    """Collects answers and passes them on in the order of the sites; none after it was closed.

    In the order of the sites, because sums of floats depend on their order in the last bits, and a run should not
    depend on who is fastest. What has to wait costs no memory: FLARE receives it to the server's disk.

    Args:
        order: the sites.
        accept: called with each answer.
        compare: if given, all answers are collected first, and this is called with each before any is accepted.
    """

    def __init__(self, order: list[str], accept: Taker, compare: Taker | None = None):
        self._turns = list(order)
        self._accept = accept
        self._compare = compare
        self._waiting: dict[str, tuple[Shareable, FLContext]] = {}
        self._closed = False
        self.answered: set[str] = set()
        self.changed = threading.Condition()

    def put(self, site: str, result: Shareable, fl_ctx: FLContext) -> bool:
        """Takes an answer; False if it came too late."""
        with self.changed:
            if self._closed:
                return False
            self.answered.add(site)
            self._waiting[site] = (result, fl_ctx)
            while not self._compare and self._turns and self._turns[0] in self._waiting:
                self._accept(*self._waiting.pop(self._turns.pop(0)))
            self.changed.notify()
        return True

    def close(self) -> None:
        """Takes no more answers, and passes on those that still wait for another site's or to be compared."""
        with self.changed:
            self._closed = True
            waiting = [site for site in self._turns if site in self._waiting]
            if self._compare:
                for site in waiting:
                    self._compare(*self._waiting[site])
            for site in waiting:
                self._accept(*self._waiting.pop(site))
