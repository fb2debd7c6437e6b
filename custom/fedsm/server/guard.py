"""Updates whose norm is far from the others'.

    far:     ||update|| > norm_factor * m
    absurd:  ||update|| > 100 * norm_factor * m

m is the median norm of the track's accepted updates of the last five rounds. Of earlier rounds, because answers are
merged as they arrive and the median of a round is known only when it is over; so the verdict does not depend on who
answers first, and no update has to be held back. In a track's first round, where no earlier round is known, the answers
are held back until all are there, and m is the median of their own norms (of two: the smaller one).

`clip` scales a far update down to m, not to the limit: whoever goes too far has the weight of a usual update and gains
nothing by going further. `refuse` leaves it out, `warn` merges it. An absurd update is refused in every mode, also
`off`: no model survives it, and the round must not be closed with it.

A site with far more images takes more steps and moves further: a federation of very unequal sites may want a larger
factor. The parts of an update whose norms differ in kind are judged apart (`ServerTrack.judged`: SCAFFOLD's weights and
controls). The norm costs nothing: the check for finite values computes it anyway.
"""

from __future__ import annotations

import math
from statistics import median

from fedsm.rounds import WINDOW

_ABSURD = 100.0
_LEAST = 1e-6  # of an update of 1 in every entry: below that a usual norm is no measure for anything


class NormGuard:
    """Remembers norms and judges by them, track by track.

    Args:
        mode: the job's `norm_check`.
        factor: the job's `norm_factor`.
        history: what an earlier guard remembered: track -> a list a round of accepted norms.
    """

    def __init__(self, mode: str, factor: float, history: dict[str, list[list[float]]] | None = None):
        self.mode = mode
        self._factor = factor
        self.history = history if history is not None else {}
        self._first: dict[str, list[float]] = {}

    def knows(self, track: str) -> bool:
        """Whether there is an earlier round to judge by."""
        return any(norm > 0 for row in self.history.get(track, []) for norm in row)

    def note(self, track: str, norm: float) -> None:
        """Takes note of an answer in a track's first round, before any of them is judged."""
        self._first.setdefault(track, []).append(norm)

    def usual(self, track: str, entries: int) -> float:
        """The usual norm of an update of so many entries; infinite where nothing is known."""
        known = [norm for row in self.history.get(track, []) for norm in row if norm > 0]
        known = known or [norm for norm in self._first.get(track, []) if norm > 0]
        if not known:
            return math.inf
        middle = median(known) if len(known) > 2 else min(known)
        return max(middle, _LEAST * math.sqrt(entries))

    def limit(self, usual: float) -> float:
        """The norm from which an update is far; infinite where norms are not judged."""
        return math.inf if self.mode == "off" else self._factor * usual

    def absurd(self, usual: float) -> float:
        """The norm from which an update is refused in any mode."""
        return _ABSURD * self._factor * usual

    def close(self, norms: dict[str, list[float]]) -> None:
        """Takes note of a round's accepted norms by track."""
        self._first = {}
        for track, row in norms.items():
            self.history[track] = [*self.history.get(track, []), row][-WINDOW:]
