"""How long each site is waited for.

A site that has always answered has the whole timeout. One that missed tasks is still asked, but the others do not pay
for it again and again:

    it has not fetched the task after `absent_wait` seconds      not waited for: it is away
    it has fetched it                                            max(absent_wait, 2 * others, timeout / 4^m, 2 * own) s

`others` is the time that the slowest of the trusted sites took for this task (or for the last one, where none of them
is asked: a site that has not registered yet is asked alone), `own` the time that the site took when it last answered. m
counts its misses: a miss adds 2, an answer takes 1 away. So a site that had one bad day is soon trusted again; one that
fetches and never answers, or answers every second task, soon costs the others no more than twice the time that they
need themselves. A site that is not asked (`fraction`) neither misses nor answers. `own` counts after one miss, and
again after every tenth, so that an honest but slow site is not shut out for ever.
"""

from __future__ import annotations

_PER_MISS, _PER_ANSWER, _SHORTER, _CHANCE = 2, 1, 4, 10


class Patience:
    """Counts misses and says how long a site is waited for.

    Args:
        absent_wait: the job's setting; 0 where no site was asked before.
    """

    def __init__(self, absent_wait: float = 0):
        self.absent_wait = absent_wait
        self._misses: dict[str, int] = {}
        self._took: dict[str, float] = {}
        self.others: float | None = None  # what the slowest of the trusted sites took the last time

    def trusts(self, site: str) -> bool:
        """Whether a site has the whole timeout."""
        return not self._misses.get(site)

    def seconds(self, site: str, timeout: float, others: float | None) -> float:
        """How long a site that has fetched its task is waited for.

        Args:
            site: the site.
            timeout: of the task.
            others: what the slowest of the trusted sites took; None: one of them is still at work, or there is none.
        """
        if self.trusts(site) or others is None:
            return timeout
        misses = self._misses[site]
        has_chance = misses // _PER_MISS % _CHANCE <= 1
        own = 2 * self._took.get(site, 0.0) if has_chance else 0.0
        return min(timeout, max(self.absent_wait, 2 * others, timeout / _SHORTER**misses, own))

    def note_others(self, seconds: float) -> None:
        """Takes note of how long the slowest of the trusted sites took."""
        self.others = seconds

    def note(self, site: str, took: float | None) -> None:
        """Takes note of how a task ended at a site: after so many seconds, or with no answer (None)."""
        change = _PER_MISS if took is None else -_PER_ANSWER
        self._misses[site] = max(0, self._misses.get(site, 0) + change)
        if took is not None:
            self._took[site] = took
