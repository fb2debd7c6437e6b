"""Updates whose norm is far from the others'.

    far:  ||update|| > norm_factor * m,      m: the median norm of the track's accepted updates of the last five rounds

(SCAFFOLD's weights and controls are judged each by itself: `ServerTrack.judged`.)

Of earlier rounds, because answers are merged as they arrive and the median of a round is known only when it is over; so
the verdict does not depend on who answers first, and no update has to be held back. In the first round, where nothing
is known yet, m is the norm of an update of 1 in every entry: above what an optimizer does in a round, below rubbish.
A site with far more images takes more steps and moves further: a federation of very unequal sites may want a larger
factor.

The norm costs nothing: the check for finite values computes it anyway.
"""

from __future__ import annotations

import math
from statistics import median

_ROUNDS = 5


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

    def limit(self, track: str, entries: int) -> float:
        """The norm from which an update of so many entries is far; infinite where nothing is judged."""
        if self.mode == "off":
            return math.inf
        known = [norm for row in self.history.get(track, []) for norm in row if norm > 0]
        return self._factor * (median(known) if known else math.sqrt(entries))

    def close(self, norms: dict[str, list[float]]) -> None:
        """Takes note of a round's accepted norms by track."""
        for track, row in norms.items():
            self.history[track] = [*self.history.get(track, []), row][-_ROUNDS:]
