"""SoftPull whose last rounds are local training, on numbers small enough to do by hand."""

import pytest
import torch

from fedsm.tracks import server_tracks
from fedsm.tracks.base import TRAIN
from tests.helpers.small_jobs import SITES, small_settings

TWO = SITES[:2]


def after_rounds(alone: float, rounds: int, method: str = "fedsm", **given) -> list[list[float]]:
    """The two sites' models after each round, lam = 0.75; both start at 0, and a round adds 1 and 5."""
    settings = small_settings(
        method=method, lam=0.75, rounds=rounds, overrides=[f"tracks.personal.alone={alone}", *given.get("more", [])]
    )
    track, found = server_tracks(settings, TWO)["personal"], []
    track.load_files({f"personal.{s}": {"w": torch.zeros(1)} for s in TWO})
    for number in range(1, rounds + 1):
        track.open(number, dict)
        for site, change in zip(TWO, (1.0, 5.0), strict=True):
            track.accept(TRAIN, site, {"w": torch.tensor([change])}, 7)
        track.close(TRAIN)
        found.append([track.weights[s]["w"].item() for s in TWO])
    return found


def test_the_last_rounds_pull_nothing():
    """Round 1: 0.75 * 1 + 0.25 * 5 = 2 and 0.75 * 5 + 0.25 * 1 = 4. With half of two rounds alone, round 2 adds 1 and
    5: 3 and 9. With the pull: 0.75 * 3 + 0.25 * 9 = 4.5 and 0.75 * 9 + 0.25 * 3 = 7.5."""
    assert after_rounds(0.5, 2) == [[2.0, 4.0], [3.0, 9.0]]
    assert after_rounds(0.0, 2) == [[2.0, 4.0], [4.5, 7.5]]


def test_all_rounds_alone_are_local_training():
    assert after_rounds(1.0, 2) == [[1.0, 5.0], [2.0, 10.0]]


@pytest.mark.parametrize(("alone", "pulled"), [(0.2, 4), (0.25, 4), (0.4, 3), (0.5, 2), (0.9, 0)])
def test_the_rounds_with_a_pull_are_the_nearest_whole_number(alone, pulled):
    """Of five rounds (1 - alone) * 5 = 4, 3.75, 3, 2.5, 0.5 (halves to the even number)."""
    models = after_rounds(alone, 5)
    alone_from = [b[1] - a[1] == 5.0 for a, b in zip([[0.0, 0.0], *models], models, strict=False)]
    assert alone_from == [False] * pulled + [True] * (5 - pulled)


def test_rounds_of_the_selector_do_not_count():
    """FedSM-extra with 2 of 6 rounds for the selector: half of the other four are pulled."""
    models = after_rounds(0.5, 4, "fedsm-extra", more=["tracks.selector.rounds=2", "rounds=6"])
    assert [round(b[1] - a[1], 3) for a, b in zip(models, models[1:], strict=False)] != [5.0] * 3
    assert models[3][1] - models[2][1] == 5.0 and models[1][1] - models[0][1] != 5.0
