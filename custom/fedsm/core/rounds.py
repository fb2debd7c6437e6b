"""Which rounds stay on disk: at the server as checkpoints, at a site as its own state.

The last few, to go on from, and one from before the norm guard's window, to go back to: an update that harms a run is
often noticed only some rounds after it was merged. Every fifth round is an anchor; the newest one that is at least a
window old stays, and so does the one after it, because it will be needed next. A site that was not asked in an anchor's
round, or did not answer, keeps its newest state from before: that is what belongs to the anchor.
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
    anchor = newest - newest % WINDOW
    before = [[n for n in known if n <= one][-1:] for one in (anchor, anchor - WINDOW)]
    return {*known[-last:], *before[0], *before[1]}
