"""Missing sites: rounds close without them, they keep their place, and too few of them are asked again."""

import json
import threading
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl import wf_comm_server
from nvflare.apis.shareable import make_reply

from fedsm.flare import exchange
from fedsm.server.checkpoint import Checkpoints
from tests.helpers.attack_jobs import LEAD
from tests.helpers.federation import Federation, failing, in_round, results_of
from tests.helpers.plain_loop import algorithm_1, largest_difference
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import TOLERANCE, last_weights


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr("fedsm.flare.task_runner.RETRY_PAUSE", 0.05)


def accepted_of(federation: Federation) -> list[tuple[int, str]]:
    lines = (federation.run_folder / "accepted.jsonl").read_text().splitlines()
    return [(line["round"], line["site"]) for line in map(json.loads, lines)]


def assert_equal(federation, data_root, settings, present=None, selector="statistics") -> None:
    """The run's last weights are those of the plain loop with the same sites in each round."""
    weights = last_weights(federation.run_folder)
    plain = algorithm_1(data_root, settings, SITES, 0.7, selector, present)
    for model in ["global", *(f"personal.{s}" for s in SITES)] + (["selector"] if selector != "statistics" else []):
        assert largest_difference(weights[model], plain[model]) < TOLERANCE, model


def test_a_site_that_fails_keeps_its_state_and_goes_on_from_it(tmp_path, data_root):
    """Site 2 fails in round 2. Its personal model and its Adam moments are those of round 1 when round 3 begins: the
    weights are those of a plain loop in which it sits round 2 out."""
    settings = small_settings(selector="gradient", rounds=3, lam=0.7)
    federation = Federation(tmp_path, data_root, settings, SITES, fault=failing(("site-2", 2))).run()
    assert federation.panic is None
    assert_equal(federation, data_root, settings, {2: ["site-1", "site-3"]}, "gradient")
    results = results_of(federation)
    assert results["refused"] == [], "a site that says that it failed is missing, not refused"
    assert [row["attempts"] for row in results["validation"]["history"]] == [1, 1, 1]
    rounds = {1: SITES, 2: ["site-1", "site-3"], 3: SITES}
    assert accepted_of(federation) == [(r, s) for r, sites in rounds.items() for s in sites]


@pytest.mark.parametrize("selector", ["statistics", "gradient"])
def test_a_round_with_too_few_is_tried_again_and_merges_nothing_twice(tmp_path, data_root, selector):
    """Round 2: only site 1 answers, of 2 that are needed. Sites 2 and 3 are asked again, site 2 fails once more and
    site 3 answers: the round closes with 1 and 3, each merged once. Equal to the plain loop."""
    settings = small_settings(selector=selector, rounds=3, lam=0.7)
    fault = failing(("site-2", 2), ("site-3", 2), ("site-2", 2))
    federation = Federation(tmp_path, data_root, settings, SITES, fault=fault).run()
    assert federation.panic is None
    assert_equal(federation, data_root, settings, {2: ["site-1", "site-3"]}, selector)
    row = results_of(federation)["validation"]["history"][1]
    assert (row["attempts"], row["answered"]) == (2, ["site-1", "site-3"])
    assert row["missing"] == {"site-2": ReturnCode.EXECUTION_EXCEPTION}
    assert [a for a in accepted_of(federation) if a[0] == 2] == [(2, "site-1"), (2, "site-3")]


def test_after_all_attempts_the_job_stops_with_its_checkpoint_and_goes_on_from_it(tmp_path, data_root):
    """Round 2 fails three times (`round_retries` is 2). What site 1 had sent is not in the checkpoint: the run that
    goes on has the weights, and the log of accepted updates, of one that was never stopped."""
    settings = small_settings(rounds=3, lam=0.7)
    fault = failing(*[(site, 2) for site in ("site-2", "site-3")] * 3)
    stopped = Federation(tmp_path, data_root, settings, SITES, fault=fault).run()
    assert "round 2: 1 of 3 sites gave a good answer after 3 attempts, min_sites is 2" in stopped.panic
    assert "go on from the last checkpoint with `fedsm resume RUN`" in stopped.panic
    assert Checkpoints(stopped.run_folder / "checkpoints").load()["round"] == 1
    last = json.loads((stopped.run_folder / "progress.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["reason"]) == ("failed", stopped.panic)

    saved = tmp_path / "saved"
    stopped.run_folder.rename(saved)
    resumed = Federation(tmp_path, data_root, settings, SITES, resume_from=str(saved / "checkpoints")).run()
    assert resumed.panic is None
    assert_equal(resumed, data_root, settings)
    assert accepted_of(resumed) == [(r, s) for r in (1, 2, 3) for s in SITES]


def test_a_job_that_fails_before_its_first_checkpoint_says_that_it_may_start_again(tmp_path, data_root):
    """Sites were silent when it registered: it may go on, and then there is nothing to go on from."""

    def fault(site, task, shareable, work):
        return work() if site.name == "site-1" else None

    settings = small_settings(rounds=1, round_timeout=4, round_retries=0)
    stopped = Federation(tmp_path, data_root, settings, SITES, fault=fault, job_id="job-1", submitter=LEAD).run()
    assert "registration: 1 of 3 sites gave a good answer" in stopped.panic
    again = Federation(tmp_path, data_root, small_settings(), SITES, "job:job-1", job_id="job-2", submitter=LEAD).run()
    assert again.panic == "the server keeps no checkpoint of job job-1; start the run again"
    for federation, key in ((stopped, "can_go_on"), (again, "no_checkpoint")):
        last = json.loads((federation.run_folder / "progress.jsonl").read_text().splitlines()[-1])
        assert last["event"] == "failed" and last[key] is True


def test_a_registration_and_an_evaluation_with_too_few_are_tried_again(tmp_path, data_root):
    """All sites fail the first time they are asked to register, and two the first time they evaluate."""
    asked = set()

    def fault(site, task, shareable, work):
        first = (site.name, task) not in asked
        asked.add((site.name, task))
        if first and (task == exchange.REGISTER or (task == exchange.EVALUATE and site.name != "site-1")):
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return work()

    federation = Federation(tmp_path, data_root, small_settings(rounds=1), SITES, fault=fault).run()
    assert federation.panic is None
    results = results_of(federation)
    assert results["missing_in_evaluation"] == {}
    assert list(results["images"]) == SITES


def test_a_site_that_is_gone_costs_its_timeout_once(tmp_path, data_root):
    """Site 3 is killed in round 2 with its task in hand: that round waits to its deadline. Later ones wait
    `absent_wait` for it to fetch, not the deadline. Its personal model and its class in the selector stay."""

    def fault(site, task, shareable, work):
        if site.name == "site-3" and task == exchange.TRAIN and in_round(shareable) == 2:
            site.federation.done.wait(600)  # it never fetches again
            return None
        return work()

    settings = small_settings(rounds=4, round_timeout=8, absent_wait=1, keep_checkpoints=9)
    federation = Federation(tmp_path, data_root, settings, SITES, fault=fault).run()
    assert federation.panic is None
    results = results_of(federation)
    history = results["validation"]["history"]
    assert history[1]["missing"] == {"site-3": "no answer within 8 s"} and history[1]["seconds"] > 7.9
    for row in history[2:]:
        assert row["missing"] == {"site-3": "still away: it fetched no task"}
        assert 0.9 < row["seconds"] < 7, "not the whole timeout again"
    checkpoints = Checkpoints(federation.run_folder / "checkpoints")
    kept = [checkpoints.load_weights(f"r00000{r}.personal.site-3.safetensors") for r in (1, 4)]
    assert largest_difference(*kept) == 0
    assert (federation.run_folder / "super_model" / "personal.site-3.safetensors").is_file()
    assert torch.isfinite(last_weights(federation.run_folder)["selector.sums"]["site-3/sum"]).all()
    assert results["test"]["super_model"]["per_site"]["site-3"] is None


def test_a_round_closes_as_soon_as_flare_knows_that_a_site_is_gone(tmp_path, data_root, monkeypatch):
    """Site 3 dies in round 2 with its task in hand. The deadline is an hour away; FLARE reports the site as dead."""
    monkeypatch.setattr(wf_comm_server.ConfigService, "get_float_var", lambda *args, **kwargs: 0.0)  # its own waits
    monkeypatch.setattr(wf_comm_server, "job_from_meta", lambda meta: SimpleNamespace(min_sites=2, required_sites=[]))

    def fault(site, task, shareable, work):
        if site.name == "site-3" and task == exchange.TRAIN and in_round(shareable) == 2:
            server = site.federation.server
            server.process_dead_client_report(site.name, site.federation.server_context(site))
            site.federation.done.wait(600)
            return None
        return work()

    settings = small_settings(rounds=3, round_timeout=3600, absent_wait=1)
    federation = Federation(tmp_path, data_root, settings, SITES, fault=fault).run()
    assert federation.panic is None
    row = results_of(federation)["validation"]["history"][1]
    assert row["missing"] == {"site-3": "the site is disconnected"} and row["answered"] == SITES[:2]
    assert row["seconds"] < 60


def test_a_site_that_comes_back_is_waited_for_again(tmp_path, data_root):
    """Site 1 is down in rounds 2 and 3, with the task of round 2 in hand; in round 4 it is there again, and goes on
    from what it had after round 1. Equal to the plain loop."""
    back = threading.Event()

    def fault(site, task, shareable, work):
        number = in_round(shareable) if task == exchange.TRAIN else 0
        if site.name == "site-1" and number == 2:
            back.wait(600)
            return None
        if site.name != "site-1" and number == 4:
            back.set()
        return work()

    settings = small_settings(rounds=4, round_timeout=8, absent_wait=1, lam=0.7)
    federation = Federation(tmp_path, data_root, settings, SITES, fault=fault).run()
    assert federation.panic is None
    answered = [row["answered"] for row in results_of(federation)["validation"]["history"]]
    assert answered == [SITES, SITES[1:], SITES[1:], SITES]
    assert_equal(federation, data_root, settings, {2: SITES[1:], 3: SITES[1:]})


def test_a_retry_waits_the_full_time_for_a_silent_site(tmp_path, data_root, caplog):
    """Two of three are needed and two are silent in round 2's first attempt: in the second both get the full time."""
    silent = [("site-2", 2), ("site-3", 2)]

    def fault(site, task, shareable, work):
        if task == exchange.TRAIN and (site.name, in_round(shareable)) in silent:
            silent.remove((site.name, in_round(shareable)))
            while "asking again" not in caplog.text and not site.federation.done.wait(0.05):
                pass
            return None
        return work()

    settings = small_settings(rounds=2, round_timeout=6, absent_wait=1, lam=0.7)
    federation = Federation(tmp_path, data_root, settings, SITES, fault=fault).run()
    assert federation.panic is None
    assert results_of(federation)["validation"]["history"][1]["attempts"] == 2
    assert_equal(federation, data_root, settings)
