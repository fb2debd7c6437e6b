"""Private training in a federation: epsilon in the results, budgets across jobs, and the others go on."""

import json
import math

import pytest

from fedsm.client.privacy_ledger import FILE_NAME
from fedsm.client.workers import build_worker
from fedsm.core.errors import UserError
from fedsm.core.privacy_loss import NoisySteps
from fedsm.core.task_names import REGISTER
from fedsm.server.checks import dp_problem
from fedsm.server.results_file import TrainingPrivacy
from tests.helpers.federation import Federation, results_of
from tests.helpers.hostile_server import meta_of, real_site
from tests.helpers.other_accountant import reference
from tests.helpers.small_jobs import SITES, small_settings

GOOD = dict.fromkeys(TrainingPrivacy.model_fields, 0.5) | {"steps": 3}


def dp(state, **more):
    return {"site-1": {"dp": {"epsilon": 4.0, "delta": 1e-2} | more, "state_dir": str(state)}}


def test_epsilon_is_told_each_round_and_the_budget_holds_across_jobs(tmp_path, data_root):
    """Site-1 has 8 training images: batches of 4 are q = 1/2 and two steps a round. Its budget is for one job."""
    settings = small_settings(method="fedavg", rounds=3)
    first = Federation(tmp_path / "1", data_root, settings, SITES, site_settings=dp(tmp_path / "state")).run()
    assert first.panic is None
    results = results_of(first)
    told = results["dp"]
    assert set(told) == {"site-1"} and (told["site-1"]["steps"], told["site-1"]["sample_rate"]) == (6, 0.5)
    steps = [NoisySteps(told["site-1"]["noise_multiplier"], 0.5, 6)]
    assert told["site-1"]["epsilon"] == pytest.approx(reference(steps, 1e-2), rel=0.01)
    assert 3.9 < told["site-1"]["epsilon"] == told["site-1"]["spent"] <= 4.0 == told["site-1"]["budget"]
    by_round = [row["epsilon"]["site-1"] for row in results["validation"]["history"]]
    assert by_round == sorted(by_round) and by_round[-1] == told["site-1"]["epsilon"]
    assert all("site-1" not in row["loss"]["global"] for row in results["validation"]["history"]), "no losses leave"
    lines = [json.loads(line) for line in (first.run_folder / "progress.jsonl").read_text().splitlines()]
    assert [line["epsilon"]["site-1"] for line in lines if line["event"] == "round"] == by_round

    second = Federation(tmp_path / "2", data_root, settings, SITES, site_settings=dp(tmp_path / "state")).run()
    assert second.panic is None, "the others go on"
    rows = results_of(second)["validation"]["history"]
    assert all(row["answered"] == ["site-2", "site-3"] for row in rows)
    reason = rows[0]["missing"]["site-1"]
    assert "the site's privacy budget for all jobs is spent" in reason and "budget is 4" in reason
    assert "only the site's owner can raise it" in reason and str(tmp_path) not in reason
    ledger = json.loads((tmp_path / "state" / "site-1" / FILE_NAME).read_text())
    assert [entry["steps"] for entry in ledger["entries"]] == [6]


def test_a_site_with_a_fixed_noise_stops_when_its_epsilon_is_spent(tmp_path, data_root):
    """After two steps of q = 1/2 epsilon is 2.1, after four 3.2, and after six it would be 4.03."""
    noise = {"noise_multiplier": 1.0, "budget": 50}
    settings = small_settings(method="fedavg", rounds=4)
    run = Federation(tmp_path, data_root, settings, SITES, site_settings=dp(tmp_path / "state", **noise)).run()
    rows = results_of(run)["validation"]["history"]
    assert ["site-1" in row["answered"] for row in rows] == [True, True, False, False]
    assert "privacy budget for one job is spent" in rows[-1]["missing"]["site-1"]
    assert results_of(run)["dp"]["site-1"]["epsilon"] <= 4.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "fedsm", "selector": "statistics"}, "the site's dp does not cover the sums of the statistics"),
        ({"method": "fedavg", "overrides": ["task.unet.norm=BATCH"]}, "BatchNorm2d cannot be made private"),
        ({"method": "fedsm", "selector": "gradient"}, "no differential privacy with 'selector_gradient'"),
    ],
)
def test_what_cannot_be_made_private_is_refused_before_training(tmp_path, data_root, given, words):
    """At the registration: the site's worker is not even built."""
    place = real_site(tmp_path / "site", data_root / "site-1", dp={"epsilon": 4.0, "delta": 1e-2})
    with pytest.raises(UserError, match=words) as caught:
        build_worker(place, REGISTER, meta_of(small_settings(rounds=1, **given)))
    assert caught.value.remedy and words in caught.value.public
    assert not list(tmp_path.rglob(FILE_NAME))


def test_a_consortium_with_update_privacy_reads_its_epsilon(tmp_path, data_root):
    privacy = {"clip": 0.5, "noise_multiplier": 5.0, "delta": 1e-2}
    settings = small_settings(method="fedavg", rounds=2, overrides=[f"update_privacy={privacy}"])
    run = Federation(tmp_path, data_root, settings, SITES).run()
    assert run.panic is None
    results = results_of(run)
    expected = reference([NoisySteps(5.0, 1.0, 2)], 1e-2)
    assert results["update_privacy"] == privacy | {"rounds": 2, "epsilon": pytest.approx(expected, rel=0.01)}
    first, last = (row["update_epsilon"] for row in results["validation"]["history"])
    assert first < last == results["update_privacy"]["epsilon"]


@pytest.mark.parametrize(
    "claim",
    [None, {}, {"epsilon": 1.0}, *(GOOD | {key: bad} for key in GOOD for bad in ("1", math.nan, -1.0, True, 1e300))],
)
def test_rubbish_about_private_training_is_refused(claim):
    assert dp_problem(claim)
    assert dp_problem(GOOD) is None
