"""Who goes into quarantine, and when they are asked again."""

from fedsm.server.quarantine import Quarantine
from tests.helpers.small_jobs import small_settings

SITES = [f"site-{k + 1}" for k in range(5)]


def play(given: dict, rounds: list[set[str]], state: dict | None = None) -> tuple[list[dict], list[list[str]], dict]:
    """Rounds in which these sites are warned of: who went into quarantine, and who was asked."""
    state = {} if state is None else state
    new, asked = [], []
    for number, warned in enumerate(rounds, start=1):
        quarantine = Quarantine(small_settings(**given), state)  # as after a resume in every round
        here = [site for site in SITES if quarantine.until(site, number) is None]
        asked.append(here)
        new.append(quarantine.close(number, here, warned & set(here), SITES))
    return new, asked, state


def test_after_two_warnings_three_rounds_and_again_after_one():
    always = [{"site-5"}] * 10
    new, asked, _ = play({"quarantine": 2, "quarantine_rounds": 3}, always)
    assert [number for number, found in enumerate(new, start=1) if found] == [2, 6, 10]
    assert new[1] == {"site-5": 5}
    assert [number for number, here in enumerate(asked, start=1) if "site-5" not in here] == [3, 4, 5, 7, 8, 9]


def test_a_round_without_a_warning_takes_one_off():
    new, _, state = play({"quarantine": 2}, [{"site-1"}, set(), {"site-1"}, set()])
    assert not any(new) and state["site-1"]["warned"] == 0


def test_it_is_off_by_default():
    new, asked, state = play({}, [set(SITES)] * 4)
    assert not any(new) and all(here == SITES for here in asked) and state == {}


def test_min_sites_stay():
    """All five are warned of; with min_sites 3 two of them may go, the first two."""
    new, asked, _ = play({"quarantine": 1, "quarantine_rounds": 2, "min_sites": 3}, [set(SITES)] * 2)
    assert list(new[0]) == ["site-1", "site-2"] and asked[1] == SITES[2:]
