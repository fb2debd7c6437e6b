"""Conduct and quarantine in a federation: figures of every round, a site that is left out and asked again, a resume."""

import json

import pytest

from app_fedsm.cli.status import progress, summary
from fedsm.evaluation.report_tables import quarantine_table, updates_table
from fedsm.evaluation.runs import Run
from fedsm.flare import exchange
from fedsm.server.record import Progress
from tests.helpers.federation import Federation, in_round, results_of
from tests.helpers.hostile import scale_updates
from tests.helpers.small_jobs import small_settings, write_site

FIVE = [f"site-{k + 1}" for k in range(5)]
HOSTILE = FIVE[-1]


@pytest.fixture(scope="module")
def five_sites(tmp_path_factory):
    root = tmp_path_factory.mktemp("five")
    for k, site in enumerate(FIVE):
        write_site(root / site, 12, k)
    return root


def far_too_long(site, task, shareable, work):
    """Twenty times the usual norm: warned of in every round."""
    result = work()
    if site.name == HOSTILE and task == exchange.TRAIN:
        scale_updates(result, 20.0)
    return result


def job(**given):
    return small_settings(method="fedavg", **({"rounds": 5, "quarantine": 2, "quarantine_rounds": 2} | given))


def rounds_of(results: dict, site: str) -> list[int]:
    return [row["round"] for row in results["validation"]["history"] if site in row["answered"]]


@pytest.fixture(scope="module")
def run(tmp_path_factory, five_sites):
    federation = Federation(tmp_path_factory.mktemp("run"), five_sites, job(), FIVE, fault=far_too_long).run()
    assert federation.panic is None
    return federation


def test_every_round_has_norm_and_cosine_of_every_update(run):
    for row in results_of(run)["validation"]["history"]:
        conduct = row["conduct"]["global"]
        assert list(conduct) == row["answered"]
        assert all(-1 <= entry["cosine"] <= 1 and entry["norm"] > 0 for entry in conduct.values())
        others = [entry["norm"] for site, entry in conduct.items() if site != HOSTILE]
        assert HOSTILE not in conduct or conduct[HOSTILE]["norm"] > 5 * max(others)  # as it was sent


def test_a_site_is_left_out_and_asked_again(run):
    """Warned of in rounds 1 and 2, not asked in 3 and 4, warned of again in 5."""
    results = results_of(run)
    assert rounds_of(results, HOSTILE) == [1, 2, 5] and rounds_of(results, FIVE[0]) == [1, 2, 3, 4, 5]
    assert results["validation"]["history"][2]["missing"] == {HOSTILE: "in quarantine until round 4"}
    entries = [(entry["round"], entry["site"], entry["until"]) for entry in results["quarantined"]]
    assert (
        entries == [(2, HOSTILE, 4), (5, HOSTILE, 7)] and "far above the usual" in results["quarantined"][0]["reason"]
    )
    assert results["missing_in_evaluation"] == {}


def test_status_and_report_name_it(run):
    results = results_of(run)
    events = Progress(run.run_folder / "progress.jsonl").events()
    until_round_3 = events[: [e["event"] for e in events].index("round") + 3]
    assert progress(events)["quarantined"][0]["until"] == 7
    assert f"{HOSTILE} in quarantine until round 7" in summary(events) and "fedsm forget" in summary(events)
    assert progress(until_round_3)["state"] == "training"
    shown = Run("run", run.run_folder, results, None)
    assert HOSTILE in quarantine_table(shown) and "3 to 4" in quarantine_table(shown)
    assert "median cosine" in updates_table(shown)


def test_quarantine_survives_a_resume(tmp_path, five_sites, run):
    """Stopped after round 3: the resumed run leaves the site out in round 4, asks it in round 5."""

    def stopped(site, task, shareable, work):
        if task == exchange.TRAIN and in_round(shareable) == 4:
            site.federation.abort.trigger(True)
        return far_too_long(site, task, shareable, work)

    folder = tmp_path / "run"
    first = Federation(folder, five_sites, job(), FIVE, fault=stopped).run()
    saved = tmp_path / "saved"
    first.run_folder.rename(saved)
    seed = json.loads((saved / "checkpoints" / "round_000003.json").read_text())["record"]["conduct_seed"]
    source = str(saved / "checkpoints")
    second = Federation(folder, five_sites, job(), FIVE, resume_from=source, fault=far_too_long).run()
    results = results_of(second)
    assert rounds_of(results, HOSTILE) == [1, 2, 5]
    newest = max((second.run_folder / "checkpoints").glob("round_*.json"))
    assert json.loads(newest.read_text())["record"]["conduct_seed"] == seed
    assert results["quarantined"] == results_of(run)["quarantined"]


def test_nobody_is_left_out_by_default(tmp_path, five_sites):
    federation = Federation(tmp_path, five_sites, job(rounds=3, quarantine=0), FIVE, fault=far_too_long).run()
    results = results_of(federation)
    assert rounds_of(results, HOSTILE) == [1, 2, 3] and results["quarantined"] == []
