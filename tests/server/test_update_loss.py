"""Which rounds count for the privacy of whole sites."""

from fedsm.server.update_loss import noisy_rounds
from tests.helpers.small_jobs import small_settings

HISTORY = [{"answered": sites} for sites in (["a", "b"], ["b", "c"], ["a", "b"], ["c"])]


def test_with_a_fraction_a_site_pays_for_its_own_rounds():
    """b was in three of four rounds, the others in two. The draw is no secret: no amplification beyond that."""
    assert noisy_rounds(small_settings(), HISTORY) == 4
    assert noisy_rounds(small_settings().replace(fraction=0.5), HISTORY) == 3
    assert noisy_rounds(small_settings().replace(fraction=0.5), []) == 0
