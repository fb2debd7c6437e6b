"""Row 9: `gammas` in the evaluation of a job without selector ended every run with an IndexError."""

import pytest

from tests.helpers.federation import Federation, results_of
from tests.helpers.hostile import EVALUATE, HOSTILE, meta_of, on
from tests.helpers.small_jobs import SITES, small_settings


def with_gammas(result) -> None:
    found = meta_of(result)["evaluation"]
    dice = next(iter(found["dice"].values()))
    found["gammas"] = [{"gamma": 0.5, "dice": dice, "selected": {"global": found["images"]}}]
    found["argmax"] = dict.fromkeys(SITES, 0)


def with_an_extra_entry(result) -> None:
    meta_of(result)["evaluation"]["extra"] = meta_of(result)["evaluation"]["dice"]


def with_a_policy(result) -> None:
    """Of the test images: there is no selector that a policy could use."""
    found = meta_of(result)["evaluation"]
    if "policy" in found:
        dice = next(iter(found["dice"].values()))
        found["policy"] = {"dice": dice, "selected": {"global": found["images"]}, "foreign": None}


@pytest.mark.parametrize("change", [with_gammas, with_an_extra_entry, with_a_policy])
@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_an_evaluation_of_another_shape_is_refused_by_name(tmp_path, data_root, method, change):
    settings = small_settings(rounds=1, method=method)
    federation = Federation(tmp_path, data_root, settings, SITES, fault=on(EVALUATE, change)).run()
    assert federation.panic is None
    results = results_of(federation)
    assert set(results["missing_in_evaluation"]) == {HOSTILE}
    assert results["refused"][-1]["site"] == HOSTILE
