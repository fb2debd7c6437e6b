"""Which rounds stay on disk."""

from fedsm.core.rounds import rounds_to_keep


def test_a_site_keeps_the_state_that_belongs_to_an_anchor_that_it_sat_out():
    """It was asked in rounds 2, 7, 8. The server may go back to 5: what the site had then is of round 2."""
    assert rounds_to_keep([2, 7, 8], 8, last=2) == {2, 7, 8}
    assert rounds_to_keep([2, 4, 7, 8], 8, last=2) == {4, 7, 8}


def test_with_all_rounds_the_anchors_themselves_stay():
    """After 12: 11 and 12, 10 and 5; 0 is no longer needed."""
    assert rounds_to_keep(range(13), 12, last=2) == {5, 10, 11, 12}
    assert rounds_to_keep([0, 3, 4], 4, last=2) == {0, 3, 4}
