"""Which sites are asked in a round, where only a fraction of them is: `fraction`.

    n    = max(min_sites, ceil(fraction K))        of the K sites that have registered
    turn = ceil(K / n) rounds                      in which each of them is drawn at least once

Each turn has an order of its own: the sites by SHA-256 of seed, turn and name. Its first round asks the first n, the
second the next n, and the last begins again at the front where too few are left. So no site waits for more than two
turns, and all train about equally often. The order is made of nothing but the job's seed and the round, so a run that
is resumed asks the same sites, and everybody who knows the job's settings knows who is asked when: the draw is no
secret, and nothing that protects privacy may rest on it.

A site that rests (quarantine) is passed over: the next in the order is drawn in its place, and the others keep theirs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence

_ROUNDING = 1e-9  # 0.1 * 30 is a little more than 3


def drawn_count(fraction: float, least: int, registered: int) -> int:
    """How many of the registered sites are asked: the fraction, rounded up, and at least so many."""
    return min(registered, max(least, math.ceil(fraction * registered - _ROUNDING)))


def turn_of(registered: int, count: int) -> int:
    """Rounds in which every site is drawn at least once."""
    return math.ceil(registered / count)


def draw(
    sites: Sequence[str], count: int, seed: int, number: int, resting: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Draws a round's sites.

    Args:
        sites: those that have registered; their order does not matter.
        count: how many are asked.
        seed: the job's.
        number: the round, from 1.
        resting: those that are not asked.

    Returns:
        who is asked, and the others in the order in which they take the place of sites that do not answer.
    """
    turn, place = divmod(number - 1, turn_of(len(sites), count)) if sites else (0, 0)
    order = sorted(sites, key=lambda site: hashlib.sha256(f"{seed}/{turn}/{site}".encode()).digest())
    first = place * count
    free = [site for site in [*order[first:], *order[:first]] if site not in resting]
    return free[:count], free[count:]
