"""What cannot go together with asking only a fraction of the sites in each round.

Tracks need no code for it: a site that was not asked is not given to `accept`, as one that did not answer, and every
track says in its docstring what that means. Here are the cases in which that meaning is not what anybody wants.
"""

from __future__ import annotations

import math

from fedsm.core.draw import drawn_count, turn_of
from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings


def check_fraction(
    settings: JobSettings, n_sites: float, lam: float | None, at_site: str | None, own_rounds: int
) -> None:
    """Refuses a job with `fraction` that cannot work with this number of sites (inf: any number).

    Args:
        settings: the job's settings.
        n_sites: number of sites.
        lam: SoftPull's; None: the job has no SoftPull.
        at_site: the track whose pull is made at the sites, if there is one.
        own_rounds: rounds at the end that a selector has to itself.

    Raises:
        UserError: with the remedy.
    """
    fraction = settings.fraction
    if fraction == 1:
        return
    if at_site:
        raise UserError(
            f"track {at_site!r}: with personal models at their sites (softpull_at_site, which secure_sum chooses) a"
            f" site is pulled in the round after the one that it trained in, and fraction: {fraction:g} seldom asks it"
            " twice in a row",
            remedy="set fraction to 1, leave secure_sum out, or choose a personal track that is not pulled (ditto)",
        )
    if math.isinf(n_sites):
        return
    count = drawn_count(fraction, settings.min_sites, int(n_sites))
    if lam is not None and count < 2:
        raise UserError(
            f"fraction: {fraction:g} asks one of {n_sites} sites in a round, and SoftPull has nothing to pull it to",
            remedy="set min_sites to 2 or more, or a larger fraction",
        )
    if lam is not None and lam < 1 / count - 1e-9:
        raise UserError(
            f"lam must be in [1/n, 1] = [{1 / count:.4g}, 1] for the n = {count} sites of a round with fraction:"
            f" {fraction:g}, got {lam:g}",
            remedy="a larger lam or fraction",
        )
    turn, rounds = turn_of(int(n_sites), count), settings.rounds - own_rounds
    if "personal" in settings.tracks and rounds < turn:
        raise UserError(
            f"fraction: {fraction:g} asks {count} of {n_sites} sites in a round: in {rounds} rounds some would never"
            " train their personal model",
            remedy=f"at least {turn} rounds, or a larger fraction",
        )
