"""What a masked sum can stand for, and what cannot go together with it.

A track's server half that makes nothing of updates but their weighted mean gets the same from the mean alone. A kind of
track says so by `summed`; a new kind does not, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedsm.core.errors import UserError
from fedsm.core.secure_sum.group import FEWEST
from fedsm.core.settings import JobSettings
from fedsm.tracks.rules import rule_of

SHARE = "share"  # a site weighs its share in averages
FINE = "fine share"  # the same, and the server magnifies small numbers: 32 bits round too much
EQUAL = "equal"  # all sites weigh the same
NOTHING = "nothing"  # nothing travels in a round


def check_secure_sum(settings: JobSettings, summed: Mapping[str, str | None]) -> None:
    """Refuses a job with `secure_sum` and something that needs single updates.

    Args:
        settings: the job's settings.
        summed: track -> `summed` of its kind.

    Raises:
        UserError: with what takes its place.
    """
    if settings.norm_check != "off":
        raise UserError(
            f"secure_sum hides single updates, and norm_check: {settings.norm_check} judges them",
            remedy="set norm_check to off; the sites themselves scale updates down to `secure_sum.clip`",
        )
    if settings.min_sites < FEWEST:
        raise UserError(
            f"secure_sum opens no sum of fewer than {FEWEST} updates, and min_sites is {settings.min_sites}:"
            " of two, each site would know the other's",
            remedy=f"set min_sites to {FEWEST} or more",
        )
    if settings.wire != "float32":
        raise UserError(
            f"secure_sum adds updates up as whole numbers of its own, and wire: {settings.wire} has others",
            remedy="set wire to float32; `secure_sum.bits: 32` is the smallest that travels under masks",
        )
    if rule_of(settings).needs_single_updates:
        raise UserError(
            f"secure_sum hides single updates, and aggregation: {settings.aggregation} needs them",
            remedy="leave aggregation out; what one site can do is bounded by `secure_sum.clip` and `max_share` then",
        )
    if settings.update_privacy:
        raise UserError(
            "secure_sum hides single updates, and update_privacy clips each of them at the server",
            remedy="leave one of them out; sites can add noise of their own (`dp`)",
        )
    if settings.quarantine:
        raise UserError(
            "secure_sum hides single updates, and quarantine judges them",
            remedy="leave quarantine out; `fedsm forget` takes out a site for good",
        )
    for name, how in summed.items():
        kind = settings.tracks[name]["kind"]
        if how == FINE and settings.secure_sum and settings.secure_sum.bits < 64:
            raise UserError(
                f"the server's Adam magnifies the small gradients of track {name!r} ({kind}): 32 bits are too coarse",
                remedy="set secure_sum.bits to 64",
            )
        if how is None:
            raise UserError(
                f"secure_sum hides single updates, and the server half of track {name!r} ({kind}) needs them",
                remedy="choose another kind, or leave secure_sum out",
            )
