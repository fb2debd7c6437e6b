"""Which rounds stay on disk: at the server as checkpoints, at a site as its own state.

The last few, to go on from, and one from before the norm guard's window, to go back to: an update that harms a run is
often noticed only some rounds after it was merged. Every fifth round is an anchor; the newest one that is at least a
window old stays, and so do those after it, because one of them will be needed next.
"""

from __future__ import annotations

from collections.abc import Iterable

WINDOW = 5  # rounds: as long as the norm guard looks back


def rounds_to_keep(rounds: Iterable[int], newest: int, last: int) -> set[int]:
    """The rounds of those on disk that stay.

    Args:
        rounds: the rounds on disk.
        newest: the round that was just done; later ones are from before a rollback and do not stay.
        last: how many of the newest stay in any case.
    """
    known = sorted(n for n in rounds if n <= newest)
    anchors = [n for n in known if n % WINDOW == 0]
    old = [n for n in anchors if n <= newest - WINDOW]
    return {*known[-last:], *(n for n in anchors if n > newest - WINDOW), *old[-1:]}
