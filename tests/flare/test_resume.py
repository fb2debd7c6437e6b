"""Stopping and going on, through the real controller and task server: the same weights to the last bit."""

import json
import time

import pytest

from fedsm.flare import exchange
from tests.helpers.federation import Federation, in_round, results_of
from tests.helpers.plain_loop import largest_difference
from tests.helpers.small_jobs import SITES, small_settings, write_site
from tests.helpers.weights import last_weights


@pytest.mark.parametrize("selector", ["statistics", "gradient"])
def test_restarted_sites_give_the_same_weights(tmp_path, data_root, selector):
    """A new process for every task, as with fewer simulator threads than sites: Adam's moments come from disk."""

    def restart(site, task, shareable, work):
        site.restart()
        return work()

    settings = small_settings(selector=selector)
    kept = Federation(tmp_path / "kept", data_root, settings, SITES).run()
    restarted = Federation(tmp_path / "restarted", data_root, settings, SITES, fault=restart).run()
    a, b = last_weights(kept.run_folder), last_weights(restarted.run_folder)
    for model in a:
        assert largest_difference(a[model], b[model]) == 0, model


@pytest.mark.parametrize("selector", ["statistics", "gradient"])
def test_resume_equals_an_uninterrupted_run(tmp_path, data_root, selector):
    settings = small_settings(selector=selector, rounds=4)
    straight = Federation(tmp_path / "straight", data_root, settings, SITES).run()

    def stop_in_round_3(site, task, shareable, work):
        result = work()
        if task == exchange.TRAIN and in_round(shareable) == 3:
            # Some sites have trained and kept the moments of round 3 when the server dies.
            time.sleep(0.3)
            site.federation.abort.trigger(True)
        return result

    folder = tmp_path / "stopped"
    first = Federation(folder, data_root, settings, SITES, fault=stop_in_round_3).run()
    assert not (first.run_folder / "results.json").exists()
    saved = tmp_path / "saved"
    first.run_folder.rename(saved)
    second = Federation(folder, data_root, settings, SITES, resume_from=str(saved / "checkpoints")).run()
    assert second.panic is None
    a, b = last_weights(straight.run_folder), last_weights(second.run_folder)
    for model in a:
        assert largest_difference(a[model], b[model]) == 0, model
    one, two = results_of(straight), results_of(second)
    assert [r["score"] for r in one["validation"]["history"]] == [r["score"] for r in two["validation"]["history"]]
    assert {k: v["score"] for k, v in one["validation"]["best"].items()} == {
        k: v["score"] for k, v in two["validation"]["best"].items()
    }
    assert one["test"] == two["test"]


def test_resume_from_other_sites_or_nothing_is_refused(tmp_path, data_root):
    run = Federation(tmp_path / "a", data_root, small_settings(rounds=1), SITES).run()
    source = str(run.run_folder / "checkpoints")
    write_site(tmp_path / "others" / "site-8", 8, 8)
    write_site(tmp_path / "others" / "site-9", 8, 9)
    strangers = ["site-8", "site-9"]
    job = small_settings(rounds=2)
    other = Federation(tmp_path / "b", tmp_path / "others", job, strangers, resume_from=source).run()
    assert "is of the sites site-1, site-2, site-3, but this job has site-8, site-9" in other.panic
    for change, words in (({"rounds": 1, "lr": 0.5}, "'lr' setting"), ({"seed": 9}, "'seed' setting")):
        job = small_settings(**({"rounds": 2} | change))
        refused = Federation(tmp_path / words[:4], data_root, job, SITES, resume_from=source).run()
        assert words in refused.panic
    longer = Federation(tmp_path / "d", data_root, small_settings(rounds=2), SITES, resume_from=source).run()
    back = str(longer.run_folder / "checkpoints")
    shorter = Federation(tmp_path / "e", data_root, small_settings(rounds=1), SITES, resume_from=back).run()
    assert "2 rounds are done already" in shorter.panic
    nothing = Federation(tmp_path / "c", data_root, small_settings(), SITES, resume_from=str(tmp_path / "no")).run()
    assert "no checkpoint" in nothing.panic


def test_options_that_a_checkpoint_does_not_know_yet_have_their_defaults(tmp_path, data_root):
    """A run of an earlier version goes on; with another value of such an option it would be another run."""
    run = Federation(tmp_path / "old", data_root, small_settings(rounds=1), SITES).run()
    manifest = run.run_folder / "checkpoints" / "round_000001.json"
    state = json.loads(manifest.read_text())
    assert state["settings"]["tracks"]["personal"].pop("pull") == "uniform"
    manifest.write_text(json.dumps(state))
    source = str(manifest.parent)
    resumed = Federation(tmp_path / "new", data_root, small_settings(rounds=2), SITES, resume_from=source).run()
    assert resumed.panic is None
    job = small_settings(rounds=2, overrides=["tracks.personal.pull=similarity"])
    other = Federation(tmp_path / "other", data_root, job, SITES, resume_from=source).run()
    assert "another 'tracks' setting" in other.panic
