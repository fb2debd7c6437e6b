"""The bar of a run: start-up is no round, the time left is that of rounds, the end is shown as what it is."""

import io
import time

import pytest
from tqdm import tqdm

from app_fedsm.runs.progress import WITHOUT_ROUNDS, show


@pytest.fixture
def bar():
    """A bar that began half an hour ago: FLARE took its time to start."""
    with tqdm(total=10, unit="round", desc="starting FLARE", bar_format=WITHOUT_ROUNDS, file=io.StringIO()) as bar:
        bar.start_t = bar.last_print_t = time.time() - 1800
        yield bar


def closed(number: int, seconds: float, **more) -> dict:
    return {"event": "round", "round": number, "score": {"global": 0.5}, "missing": {}, "seconds": seconds} | more


def test_start_up_is_no_round(bar):
    assert "0/10" not in str(bar) and "30:" in str(bar)
    show(bar, {"event": "started", "round": 0, "rounds": 10, "sites": ["a"]})
    assert str(bar).startswith("starting the sites [") and "/10" not in str(bar)
    bar.start_t = bar.last_print_t = time.time() - 900  # the sites load torch and register
    show(bar, closed(1, 7.0))
    assert "training" in str(bar) and "1/10 [00:07<01:03" in str(bar) and "dice global=0.500" in str(bar)


def test_a_server_that_tells_of_the_registration_has_its_first_round_shown(bar):
    show(bar, {"event": "started", "round": 0, "rounds": 10, "sites": ["a"]})
    show(bar, {"event": "registered", "round": 0})
    assert "training" in str(bar) and "0/10 [00:00<?" in str(bar)
    bar.start_t = bar.last_print_t = time.time() - 7
    show(bar, closed(1, 7.0))
    assert "1/10 [00:07<01:03" in str(bar)


def test_a_resumed_run_counts_its_own_rounds(bar):
    """Five of ten were done before: the one that took 7 s says how long the other four take."""
    show(bar, {"event": "started", "round": 5, "rounds": 10, "sites": ["a"]})
    show(bar, closed(6, 7.0))
    assert "6/10 [00:07<00:28" in str(bar)


def test_a_resumed_run_never_shows_fewer_rounds_than_are_done(bar):
    show(bar, {"event": "started", "round": 5, "rounds": 10, "sites": ["a"]})
    show(bar, {"event": "registered", "round": 5})
    show(bar, closed(6, 7.0))
    drawn = bar.fp.getvalue()
    assert "5/10" in drawn and "0/10" not in drawn and "-" not in drawn  # it was: 0/10 [00:00<-00:00, -379.82round/s]


@pytest.mark.parametrize("phase", ["validating", "evaluating", "finished"])
def test_the_end_has_no_time_left(bar, phase):
    show(bar, {"event": "started", "round": 8, "rounds": 10, "sites": ["a"]})
    show(bar, closed(9, 7.0))
    show(bar, closed(10, 7.0))
    show(bar, {"event": phase})
    assert str(bar).startswith(f"10 rounds done, {phase} [00:00")


def test_a_bar_of_sites_is_left_alone():
    """An evaluation of its own counts sites."""
    with tqdm(total=2, unit="site", file=io.StringIO()) as bar:
        show(bar, {"event": "evaluating", "sites": ["a", "b"]})
        show(bar, {"event": "scored", "site": "a"})
        assert "evaluating" in str(bar) and "1/2" in str(bar)
