"""Real FLARE processes: the simulator's result equals Algorithm 1, and its folder holds what we promise."""

import contextlib
import io
import json
import shlex
import shutil
import tempfile
from pathlib import Path

import pytest

from app_fedsm.cli.main import main
from fedsm.super_model.artefact import load_super_model
from tests.helpers.assertions import assert_equals_plain_loop
from tests.helpers.json_output import document
from tests.helpers.processes import processes_of
from tests.helpers.small_jobs import SITES, SMALL


@pytest.fixture(scope="module")
def run_folder(data_root, tmp_path_factory, request) -> Path:
    """One run of 3 sites and 3 rounds with the trained selector, in a folder whose name needs quotes.

    FLARE's simulator (2.9) cuts the commands of its workers at blanks: without a path for it that has none, no round
    ever ran.
    """
    out = tmp_path_factory.mktemp("run") / "Anna's first run"
    command = ["run", *SMALL, "--data", str(data_root), "--rounds", "3", "--selector", "gradient", "--out", str(out)]
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        code = main([*command, "--format", "json"])
    assert code == 0
    (out / "stdout").write_text(stdout.getvalue())
    return out


@pytest.mark.process
def test_simulator_equals_plain_loop(run_folder, data_root):
    assert_equals_plain_loop(run_folder, data_root, rounds=3)
    assert not processes_of(run_folder), "everything that was started has ended"


@pytest.mark.process
def test_a_folder_with_blanks_leaves_nothing_in_the_temporary_folder(run_folder):
    assert not [link for link in Path(tempfile.gettempdir()).glob("fedsm_*/run") if link.resolve() == run_folder]


@pytest.mark.process
def test_the_end_of_the_run_as_json(run_folder):
    data = document((run_folder / "stdout").read_text(), 0)["data"]
    assert (data["state"], data["rounds_done"], data["sites"]) == ("finished", 3, SITES)
    assert data["checkpoint"] == str(run_folder / "checkpoints" / "round_000003.json")
    assert data["commands"]["report"] == shlex.join(["fedsm", "report", str(run_folder)])


@pytest.mark.process
def test_what_results_say(run_folder):
    """`docs/reference/results.md` describes the keys; see `tests/docs_tools/test_results_reference.py`."""
    results = json.loads((run_folder / "results.json").read_text())
    number, text = (int, float), str
    for key, kind in {
        "task": text, "method": text, "selector": text, "lam": number, "gamma": number, "rounds": int, "seed": int,
        "sites": list,
    }.items():  # fmt: skip
        assert isinstance(results[key], kind), key
    assert (results["task"], results["method"], results["selector"], results["lam"]) == (
        "retinal", "fedsm", "gradient", 0.7,
    )  # fmt: skip
    for table in ("global", "personal_own", "super_model"):
        row = results["test"][table]
        assert set(row["per_site"]) == set(SITES)
        assert set(row["per_label"]) == {"disc", "cup"}
        assert all(0 <= v <= 1 for v in [*row["per_site"].values(), *row["per_label"].values()])
        assert 0 <= row["client_avg"] <= 1 and 0 <= row["global"] <= 1
    assert set(results["test"]["selector_accuracy"]["per_site"]) == set(SITES)
    assert 0 <= results["test"]["selector_accuracy"]["mean"] <= 1
    for site, frequency in results["test"]["selection_frequency"].items():
        assert site in SITES and sum(frequency.values()) == pytest.approx(1)
    history = results["validation"]["history"]
    assert [row["round"] for row in history] == [1, 2, 3]
    assert all(set(row["score"]) == {"global", "personal", "selector"} for row in history), "the last one too"
    for direction in ("down_bytes", "up_bytes"):
        assert {site: len(b) for site, b in results["wire"][direction].items()} == dict.fromkeys(SITES, 3)
    assert len(results["seconds"]["round"]) == 3 and results["seconds"]["total"] > 0
    assert results["peak_rss_mb"]["server"] > results["peak_rss_mb"]["server_start"] > 0


@pytest.mark.process
def test_the_run_folder_holds_all_products(run_folder, data_root):
    model = load_super_model(run_folder / "super_model")
    assert set(model.networks) == {"global", "selector", *(f"personal.{s}" for s in SITES)}
    assert {"sites", "lam", "gamma", "labels", "versions", "run_id"} <= set(model.manifest)
    assert 0 <= model.manifest["networks"]["personal.site-1"]["validation_score"] <= 1
    assert list((run_folder / "tb_events").rglob("events.out*"))
    assert json.loads((run_folder / "metrics/metrics_summary.json").read_text())["final_round"] == 3
    assert len((run_folder / "metrics/round_metrics.jsonl").read_text().splitlines()) == 3
    assert set(json.loads((run_folder / "cross_site_val/cross_val_results.json").read_text())) == set(SITES)
    for path in (run_folder / "workspace" / "server").rglob("*"):
        if path.is_file() and path.name != "fedsm_site.yaml":
            assert str(data_root) not in path.read_text(errors="ignore"), path


@pytest.mark.process
def test_tensorboard_has_a_curve_for_each_site_and_track(run_folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = next((run_folder / "tb_events").rglob("events.out*")).parent
    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()["scalars"]
    for track in ("global", "personal", "selector"):
        for site in SITES:
            assert f"{track}/loss/{site}" in tags
            assert [e.step for e in events.Scalars(f"{track}/validation/{site}")] == [1, 2, 3]


@pytest.mark.process
def test_a_finished_run_is_not_evaluated_again(run_folder, capsys):
    log = (run_folder / "flare.log").stat().st_size
    assert main(["resume", str(run_folder)]) == 0
    assert "has finished its 3 rounds" in capsys.readouterr().out
    assert (run_folder / "flare.log").stat().st_size == log and (run_folder / "results.json").is_file()


@pytest.mark.process
def test_a_slim_run_still_predicts_and_reports(run_folder, data_root, tmp_path, capsys):
    slim = shutil.copytree(run_folder, tmp_path / "slim")
    assert main(["clean", str(slim)]) == 0
    assert not (slim / "checkpoints").exists() and not (slim / "workspace").exists() and not (slim / "cache").exists()
    assert main(["evaluate", str(slim), str(data_root), "-o", str(slim)]) == 0, "by the split that the run wrote down"
    images = str(data_root / SITES[0] / "images")
    assert main(["predict", str(slim), images, "-o", str(slim / "predictions")]) == 0
    assert main(["report", str(slim), "--quick"]) == 0 and (slim / "report.html").is_file()
    capsys.readouterr()
    assert main(["resume", str(slim), "--rounds", "4"]) == 2
    assert "its checkpoints were dropped" in capsys.readouterr().err
