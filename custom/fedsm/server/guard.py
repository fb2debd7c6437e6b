"""Updates whose norm is far from the others'.

    far:     ||update|| > norm_factor * m
    absurd:  ||update|| > 100 * norm_factor * m

m is the median norm of the track's updates of the last five rounds, or of the last one where that is larger: where most
sites move further than before, m follows. Of earlier rounds, because answers are merged as they arrive and the median
of a round is known only when it is over; so the verdict does not depend on who answers first, and no update has to be
held back. In a track's first round, where no earlier round is known, all answers are held back until the last came, and
m is the median of their own norms (of two: the smaller one).

Norms count as they were sent, also those that were scaled down or refused. Otherwise m could never grow, and one site
that drives the others to longer updates would have them all scaled down, then refused, until the run ends. Where fewer
than three answered there is no majority, and norms count as they were merged. Updates of zero (a selector that does not
learn yet, entries that filters keep back) say nothing about the usual norm; where most updates are zero, the round is
not used at all.

`clip` scales a far update down to m, not to the limit: it then has the weight of a usual update, and a larger one gains
nothing. `refuse` leaves it out, `warn` merges it. An absurd update is refused in every mode, also `off`: it would
destroy any model.

A network that a site hands over after the last round (`site_personal`) is compared with those of the others, and only
an absurd one is refused: it is the site's own, and if its best round was an early one it has hardly moved, so that
honest norms differ far more than those of updates.

A site with far more images takes more steps and moves further: a federation of very unequal sites may want a larger
factor. The parts of an update whose norms differ in kind are judged apart (`norm_groups`: SCAFFOLD's weights and
controls). The norm costs nothing: the check for finite values computes it anyway.
"""

from __future__ import annotations

import math
from statistics import median

from fedsm.core.rounds import WINDOW
from fedsm.core.tensors import Tensors

_ABSURD = 100.0
_LEAST = 1e-6  # smallest usual norm, as a fraction of the norm of an update of 1 in every entry


def norm_groups(track: str, tensors: Tensors) -> dict[str, Tensors]:
    """The parts of an update whose norms are of different sizes: each is judged by itself.

    Entries under a `word/` are measured in other units than the weights beside them (SCAFFOLD's `control/`: gradients,
    or Adam's steps), and are the group `track.word`.
    """
    if not any("/" in key for key in tensors):
        return {track: tensors} if tensors else {}
    groups: dict[str, Tensors] = {}
    for key, value in tensors.items():
        word, slash, _ = key.partition("/")
        groups.setdefault(f"{track}.{word}" if slash else track, {})[key] = value
    return groups


class NormGuard:
    """Remembers norms and judges by them, track by track.

    Args:
        mode: the job's `norm_check`.
        factor: the job's `norm_factor`.
        history: the norms that an earlier guard kept: track -> for each round a list of norms.
    """

    def __init__(self, mode: str, factor: float, history: dict[str, list[list[float]]] | None = None):
        self.mode = mode
        self._factor = factor
        self.history = history if history is not None else {}
        self._first_round: dict[str, dict[str, float]] = {}  # track -> site -> norm

    def knows(self, track: str) -> bool:
        """Whether there is an earlier round to judge by."""
        return any(map(_usable, self.history.get(track, [])))

    def begin(self) -> None:
        """Forgets what was noted about the answers to an earlier task."""
        self._first_round = {}

    def note(self, track: str, site: str, norm: float) -> None:
        """Notes the norm of a site's answer in a track's first round, before any answer is judged."""
        self._first_round.setdefault(track, {})[site] = norm

    def usual(self, track: str, entries: int) -> float:
        """The usual norm of an update of so many entries; infinite where nothing is known."""
        rows = [row for row in map(_usable, self.history.get(track, [])) if row]
        if not rows:
            noted = list(self._first_round.get(track, {}).values())
            if not any(noted):
                return math.inf
            rows = [_usable(noted)]
        last = _middle(rows[-1]) if len(rows[-1]) > 2 else 0.0
        return max(_middle([norm for row in rows for norm in row]), last, _LEAST * math.sqrt(entries))

    def limit(self, usual: float) -> float:
        """The norm from which an update is far; infinite where norms are not judged."""
        return math.inf if self.mode == "off" else self._factor * usual

    def absurd(self, usual: float) -> float:
        """The norm from which an update is refused in any mode."""
        return _ABSURD * self._factor * usual

    def close(self, sent: dict[str, list[float]], merged: dict[str, list[float]] | None = None) -> None:
        """Keeps a round's norms by track: as they were sent, and as they were merged (None: the same)."""
        self._first_round = {}
        for track, row in (sent if merged is None else merged).items():
            kept = sent[track] if len(sent.get(track, [])) > 2 else row
            self.history[track] = [*self.history.get(track, []), kept][-WINDOW:]


def _usable(row: list[float]) -> list[float]:
    """The norms of a round that say what is usual: those above zero, unless most are zero."""
    positive = [norm for norm in row if norm > 0]
    return positive if 2 * len(positive) >= len(row) else []


def _middle(norms: list[float]) -> float:
    """The median; of two the smaller one, of none 0."""
    return median(norms) if len(norms) > 2 else min(norms, default=0.0)
