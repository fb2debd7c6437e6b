"""The files for FLARE's own tools: its reader finds them; they hold what the server checked, each round once."""

import json
from pathlib import Path

import pytest
from nvflare.tool.job.job_cli import _discover_job_download_artifacts

from fedsm.flare import exchange
from tests.helpers.federation import Federation, in_round, results_of
from tests.helpers.finished_run import finished_run
from tests.helpers.small_jobs import SITES, small_settings


@pytest.fixture(scope="module")
def run(tmp_path_factory, data_root):
    return finished_run(tmp_path_factory.mktemp("run"), data_root, rounds=2)


def rounds_of(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics/round_metrics.jsonl").read_text().splitlines()]


def values(metrics: list[dict]) -> dict[str, float]:
    """FLARE's list of names and values as a dict."""
    return {entry["name"]: entry["value"] for entry in metrics}


def test_flares_reader_finds_what_nvflare_job_download_reports(run):
    found, missing = _discover_job_download_artifacts(str(run))
    assert missing == ["client_logs"], "these stay at the sites"
    assert found["global_model"] == str(run / "super_model/global.safetensors")
    summary = json.loads(Path(found["metrics_summary"]).read_text())
    assert summary["schema_version"] == "1" and summary["round_metrics_file"] == "round_metrics.jsonl"
    assert found["round_metrics"] == str(run / "metrics/round_metrics.jsonl")


def test_rounds_and_summary_are_those_of_results_json(run):
    results = json.loads((run / "results.json").read_text())
    history = results["validation"]["history"]
    lines = rounds_of(run)
    assert [line["round"] for line in lines] == [1, 2]
    for line, row in zip(lines, history, strict=True):
        for track, score in row["score"].items():
            assert values(line["aggregated_metrics"])[f"{track}/validation"] == score
        sites = {site["name"]: values(site["metrics"]) for site in line["sites"]}
        assert set(sites) == set(SITES) and line["skipped_metrics"] == []
        for site in SITES:
            assert sites[site]["global/loss"] == row["loss"]["global"][site]
            assert sites[site]["personal/validation"] == row["validation"]["personal"][site]
    summary = json.loads((run / "metrics/metrics_summary.json").read_text())
    best = results["validation"]["best"]["global"]
    assert summary["final_round"] == 2 and summary["best_round"] == best["round"]
    assert summary["key_metric"] == {"name": "global/validation", "mode": "max"}
    assert values(summary["best_metrics"])["global/validation"] == pytest.approx(best["score"])
    final = values(summary["final_aggregated_metrics"])
    assert final["super_model/test"] == results["test"]["super_model"]["client_avg"]
    assert final["personal_own/test"] == results["test"]["personal_own"]["client_avg"]


def test_every_model_on_every_site_in_flares_form(run):
    """As FLARE's cross-site evaluation writes it: site -> model -> metrics, a server's model with SRV_ before it."""
    test = json.loads((run / "results.json").read_text())["test"]
    found = json.loads((run / "cross_site_val/cross_val_results.json").read_text())
    assert set(found) == set(SITES)
    for site, models in found.items():
        assert set(models) == {"SRV_global", "SRV_super_model", *SITES}
        for owner in SITES:
            assert models[owner]["dice"] == test["candidates"][site][f"personal.{owner}"]
            assert models[owner]["dice/cup"] == test["labels"]["cup"]["candidates"][site][f"personal.{owner}"]
        assert models["SRV_super_model"]["dice"] == test["super_model"]["per_site"][site]


def test_a_resumed_run_has_each_round_once(tmp_path, data_root):
    def stop_in_round_2(site, task, shareable, work):
        result = work()
        if task == exchange.TRAIN and in_round(shareable) == 2:
            site.federation.abort.trigger(True)
        return result

    settings = small_settings(rounds=3)
    first = Federation(tmp_path / "a", data_root, settings, SITES, fault=stop_in_round_2).run()
    for name in ("metrics", "cross_site_val", "artifact_manifest.json"):
        assert not (first.run_folder / name).exists(), "a run without an evaluation leaves no empty files"
    source = str(first.run_folder / "checkpoints")
    second = Federation(tmp_path / "b", data_root, settings, SITES, resume_from=source).run()
    assert [line["round"] for line in rounds_of(second.run_folder)] == [1, 2, 3]


def test_what_was_refused_is_in_none_of_them(tmp_path, data_root):
    """site-3 claims a perfect Dice beyond 1 and a loss that is no number: its answers are refused, and left out."""

    def lie(site, task, shareable, work):
        result = work()
        if site.name == "site-3" and task == exchange.TRAIN:
            result["DXO"]["meta"]["losses"]["global"] = float("nan")
        if site.name == "site-3" and task == exchange.EVALUATE:
            result["DXO"]["meta"]["evaluation"]["dice"]["global"]["cup"] = 7.5
        return result

    run = Federation(tmp_path, data_root, small_settings(rounds=1), SITES, fault=lie).run()
    assert results_of(run)["missing_in_evaluation"].keys() == {"site-3"}
    found = json.loads((run.run_folder / "cross_site_val/cross_val_results.json").read_text())
    assert set(found) == {"site-1", "site-2"}
    losses = {s["name"]: values(s["metrics"]).get("global/loss") for s in rounds_of(run.run_folder)[0]["sites"]}
    assert losses.get("site-3") is None and losses["site-1"] > 0
