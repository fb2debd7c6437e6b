"""Which sites are drawn, by hand."""

from collections import Counter
from itertools import pairwise

import pytest

from fedsm.core.draw import draw, drawn_count, turn_of

SITES = [f"site-{k}" for k in range(1, 11)]


@pytest.mark.parametrize(
    ("fraction", "least", "registered", "count"),
    [
        (0.25, 2, 64, 16),
        (0.25, 2, 6, 2),  # 1.5, rounded up
        (0.1, 2, 6, 2),  # min_sites
        (0.1, 1, 30, 3),  # 0.1 * 30 is 3.0000000000000004 in floats
        (1.0, 2, 6, 6),
        (0.5, 8, 6, 6),  # no more than there are
    ],
)
def test_how_many_are_asked(fraction, least, registered, count):
    assert drawn_count(fraction, least, registered) == count


def test_everyone_is_asked_once_in_each_turn():
    """10 sites, 3 in a round: a turn has 4 rounds, in which 12 are asked, so two of them twice."""
    assert turn_of(10, 3) == 4
    for turn in range(5):
        asked = [draw(SITES, 3, 7, 4 * turn + place)[0] for place in (1, 2, 3, 4)]
        assert all(len(set(one)) == 3 for one in asked)
        assert sorted(Counter(site for one in asked for site in one).values()) == [1] * 8 + [2] * 2


def test_turns_differ_and_seeds_differ():
    turns = [[frozenset(draw(SITES, 5, seed, n)[0]) for n in range(1, 9)] for seed in (0, 1)]
    assert turns[0] != turns[1]
    assert any(a != b for a, b in pairwise(turns[0][::2])), "another order in each turn"


def test_it_depends_on_nothing_but_seed_round_and_names():
    """So a resumed run asks the same, whatever order its clients come in."""
    assert draw(SITES, 4, 3, 17) == draw(SITES[::-1], 4, 3, 17)
    # By hand: sha256("3/0/a") = 1d.., "3/0/b" and "3/0/c" see below; the first two in that order are asked in round 1.
    import hashlib

    order = sorted("abc", key=lambda site: hashlib.sha256(f"3/0/{site}".encode()).hexdigest())
    assert draw(["a", "b", "c"], 2, 3, 1) == (order[:2], order[2:])
    assert draw(["a", "b", "c"], 2, 3, 2) == ([order[2], order[0]], [order[1]])


def test_a_resting_site_is_passed_over_and_the_others_keep_their_place():
    asked, spare = draw(SITES, 3, 0, 2)
    without, left = draw(SITES, 3, 0, 2, resting={asked[1]})
    assert without == [asked[0], asked[2], spare[0]]
    assert left == spare[1:]


def test_all_are_asked_without_a_fraction():
    assert set(draw(SITES, 10, 0, 5)[0]) == set(SITES)
    assert draw([], 0, 0, 5) == ([], [])
