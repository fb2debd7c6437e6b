"""Rows 5 and 10: one message of a huge norm, also in round 1, where no earlier round says what is usual."""

import json

import pytest

from fedsm.core.settings import NORM_CHECKS
from tests.helpers.federation import Federation, in_round, results_of
from tests.helpers.hostile import HOSTILE, TRAIN, on, scale_updates
from tests.helpers.small_jobs import SITES, small_settings


def boost(factor: float, numbers: set[int]):
    """The hostile site multiplies its updates in these rounds."""

    def fault(site, task, shareable, work):
        result = work()
        if site.name == HOSTILE and task == TRAIN and in_round(shareable) in numbers:
            scale_updates(result, factor)
        return result

    return fault


def run(tmp_path, data_root, fault, **given):
    federation = Federation(tmp_path, data_root, small_settings(rounds=3, **given), SITES, fault=fault).run()
    assert federation.panic is None
    return results_of(federation)


@pytest.mark.parametrize("mode", NORM_CHECKS)
@pytest.mark.parametrize("number", [1, 2])
def test_no_mode_lets_one_message_end_the_run(tmp_path, data_root, mode, number):
    """A norm of 1e12: the run ends with results, every site trains in every later round, and the site is named."""
    results = run(tmp_path, data_root, boost(1e12, {number}), norm_check=mode)
    history = results["validation"]["history"]
    assert [row["answered"] == SITES for row in history] == [n != number for n in (1, 2, 3)]
    (entry,) = results["refused"]
    assert (entry["round"], entry["site"]) == (number, HOSTILE) and "far above the usual" in entry["reason"]


def test_round_one_is_judged_by_its_own_answers(tmp_path, data_root):
    """Fifty times the others' norm in round 1 becomes the usual norm by default, and the site is warned of."""
    results = run(tmp_path, data_root, boost(50.0, {1}))
    assert {(entry["round"], entry["site"]) for entry in results["warned"]} == {(1, HOSTILE)}
    assert all("scaled down" in entry["reason"] for entry in results["warned"])


def test_round_one_is_judged_in_the_strict_mode_too(tmp_path, data_root):
    """Fifty times the others' norm: `refuse` let it pass in round 1, because nothing was usual yet."""
    results = run(tmp_path, data_root, boost(50.0, {1}), norm_check="refuse")
    assert {(entry["round"], entry["site"]) for entry in results["refused"]} == {(1, HOSTILE)}
    assert [row["answered"] == SITES for row in results["validation"]["history"]] == [False, True, True]


def test_whoever_goes_too_far_gains_nothing(tmp_path, data_root):
    """An update that is clipped has the norm of a usual one, not the limit's: accepted.jsonl says so."""
    federation = Federation(tmp_path, data_root, small_settings(rounds=1), SITES, fault=boost(100.0, {1})).run()
    lines = [json.loads(line) for line in (federation.run_folder / "accepted.jsonl").read_text().splitlines()]
    norms = {line["site"]: line["norms"]["global"] for line in lines}
    usual = sorted(norms.values())[1]
    assert norms[HOSTILE] == pytest.approx(usual) and max(norms.values()) < 2 * usual


def test_an_honest_run_is_warned_of_nothing(tmp_path, data_root):
    results = run(tmp_path, data_root, on(TRAIN, lambda result: None))
    assert results["warned"] == results["refused"] == []
