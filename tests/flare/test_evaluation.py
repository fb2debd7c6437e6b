"""A federated evaluation in one process: the real controller and executors, against `fedsm evaluate` at home."""

import copy
import csv
import json
import math
import shutil

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("scipy", reason="MONAI's Hausdorff distance needs scipy: pip install 'fedsm[report]'")

from app_fedsm.cli.main import main
from fedsm.data.readers import read
from fedsm.evaluation.volume_scores import volume_metrics
from fedsm.flare import exchange
from fedsm.flare.evaluation import FILE, MODEL, EvaluationController
from fedsm.server.report_check import report_problem
from fedsm.super_model.artefact import load_super_model
from fedsm.super_model.model import SuperModel
from tests.helpers.federation import Federation
from tests.helpers.finished_run import finished_run
from tests.helpers.small_jobs import SITES, write_site
from tests.helpers.small_model import write_super_model


@pytest.fixture(scope="module")
def run(tmp_path_factory, data_root):
    return finished_run(tmp_path_factory.mktemp("run"), data_root)


@pytest.fixture(scope="module")
def at_home(run, data_root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    assert main(["evaluate", str(run / "super_model"), str(data_root), "-o", str(folder)]) == 0
    return json.loads((folder / FILE).read_text())


def evaluate(tmp_path, run, data, sites=SITES, part="test", **given):
    """Runs an evaluation job; returns the federation and what it wrote, if anything."""
    settings = load_super_model(run / "super_model").settings
    federation = Federation(tmp_path, data, settings, sites, controller=EvaluationController(part), **given)
    workspace = federation.engine.get_workspace.return_value
    shutil.copytree(run / "super_model", f"{workspace.get_app_config_dir('simulate_job')}/{MODEL}")
    federation.run()
    file = federation.run_folder / FILE
    return federation, json.loads(file.read_text()) if file.is_file() else None


def test_the_same_as_at_home(tmp_path, run, data_root, at_home):
    """Every mean, count and curve; sites have too few patients for intervals to leave."""
    federation, found = evaluate(tmp_path, run, data_root)
    assert federation.panic is None and found.pop("missing") == {}
    assert list(found) == list(at_home)
    for key in ("super_model", "part", "labels", "images", "patients", "unit", "selected", "confusion"):
        assert found[key] == at_home[key], key
    for model, by_site in at_home["models"].items():
        for site, metrics in by_site.items():
            for metric, labels in metrics.items():
                for label, value in labels.items():
                    assert found["models"][model][site][metric][label]["mean"] == pytest.approx(value["mean"])
    for mine, theirs in zip(found["gammas"], at_home["gammas"], strict=True):
        assert mine["per_site"] == pytest.approx(theirs["per_site"]) and mine["selected"] == theirs["selected"]
    assert found["reliability"]["ece"] == pytest.approx(at_home["reliability"]["ece"])
    for_flare = json.loads((federation.run_folder / "cross_site_val/cross_val_results.json").read_text())
    for site in SITES:
        assert set(for_flare[site]) == {"SRV_global", "SRV_super_model", *SITES}
        own = found["models"]["personal_own"][site]["iou"]
        assert for_flare[site][site]["iou"] == own["mean"]["mean"]
        assert for_flare[site][site]["iou/cup"] == own["cup"]["mean"]


@pytest.mark.parametrize(("method", "options"), [("fedsm-ensemble", []), ("fedsm-extra", ["tracks.selector.rounds=1"])])
def test_a_selector_without_threshold_may_name_the_global_model(tmp_path, data_root, method, options):
    """The same as at home, and the super model is what the run itself measured."""
    run = finished_run(tmp_path / "run", data_root, method=method, rounds=2, overrides=options)
    assert main(["evaluate", str(run / "super_model"), str(data_root), "-o", str(tmp_path / "home")]) == 0
    at_home = json.loads((tmp_path / "home" / FILE).read_text())
    federation, found = evaluate(tmp_path / "job", run, data_root)
    assert federation.panic is None and found["missing"] == {}
    assert found["confusion"] == at_home["confusion"] and found["selected"] == at_home["selected"]
    assert all(set(row) == {"global", *(f"personal.{s}" for s in SITES)} for row in found["confusion"].values())
    measured = json.loads((run / "results.json").read_text())["test"]["super_model"]["per_site"]
    for site, dice in measured.items():
        assert found["models"]["super_model"][site]["dice"]["mean"]["mean"] == pytest.approx(dice, abs=1e-6)


def test_no_tensor_and_no_name_of_a_file_leaves_a_site(tmp_path, run, data_root):
    seen = []

    def listen(site, name, shareable, work):
        seen.append(work())
        return seen[-1]

    evaluate(tmp_path, run, data_root, fault=listen)
    assert len(seen) == len(SITES)
    for answer in seen:
        meta, tracks = exchange.unpack(answer)
        text = json.dumps(meta)
        assert not tracks and "case_" not in text and str(data_root) not in text and len(text) < 30_000


def test_one_site_fails_the_others_are_evaluated(tmp_path, run, data_root):
    data = tmp_path / "data"
    shutil.copytree(data_root, data)
    (data / "site-2" / "images" / "case_00.png").write_bytes(b"no picture")
    (data / "site-2" / "splits.json").unlink(missing_ok=True)
    federation, found = evaluate(tmp_path / "job", run, data, part="all")
    assert federation.panic is None
    assert list(found["images"]) == ["site-1", "site-3"]
    assert list(found["missing"]) == ["site-2"] and "case_00" not in found["missing"]["site-2"]


def test_a_site_from_elsewhere(tmp_path, run):
    write_site(tmp_path / "data" / "elsewhere", 4, 7)
    federation, found = evaluate(tmp_path / "job", run, tmp_path / "data", ["elsewhere"], part="all")
    assert federation.panic is None, federation.panic
    assert found["images"] == {"elsewhere": 4} and found["reliability"] is None
    assert "personal_own" not in found["models"]


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    """A super model and two sites: one of volumes with slices 3 mm apart, stored turned, the other of pictures."""
    root = tmp_path_factory.mktemp("volumes")
    tolerance = ["task.surface_tolerance=1.5"]
    model = write_super_model(root / "run", task="prostate", overrides=tolerance, policy={"labels": ["prostate"]})
    rng = np.random.default_rng(0)
    turned = np.array([[0, 0.7, 0, 0], [-0.6, 0, 0, 0], [0, 0, 3.0, 0], [0, 0, 0, 1]])
    for i in range(4):
        voxels = rng.integers(0, 200, (24, 20, 5), np.int16)
        mask = np.zeros(voxels.shape, np.uint8)
        mask[6:15, 5 : 12 + i, 1:4] = 1
        save(root / "data" / "site-1", f"v{i}", nibabel.Nifti1Image(voxels, turned), nibabel.Nifti1Image(mask, turned))
    for part in ("images", "masks"):
        (root / "data" / "site-2" / part).mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 2 if part == "masks" else 255, (30, 30), np.uint8)
            Image.fromarray(pixels).save(root / "data" / "site-2" / part / f"p{i}.png")
    return model, root / "data"


def save(site, stem, image, mask):
    for part, volume in (("images", image), ("masks", mask)):
        (site / part).mkdir(parents=True, exist_ok=True)
        nibabel.save(volume, site / part / f"{stem}.nii.gz")


def test_volumes_are_scored_as_a_whole_at_home_and_in_a_federation(tmp_path, volumes):
    """On the file's grid, with the mask that `predict` gives; pictures are no volumes. A site sends the same means."""
    model, data = volumes
    assert main(["evaluate", str(model), str(data), "--part", "all", "-o", str(tmp_path / "home")]) == 0
    found = json.loads((tmp_path / "home" / FILE).read_text())["volumes"]
    assert found["volumes"] == found["patients"] == {"site-1": 4} and found["tolerance"] == 1.5
    loaded, every = SuperModel.load(model), []
    for image in sorted((data / "site-1" / "images").iterdir()):
        truth = read(data / "site-1" / "masks" / image.name, mask=True)[..., 0] == 1
        mask = loaded.predict(image).mask == 1
        every.append(volume_metrics(mask[:, None], truth[:, None], (3.0, 0.6, 0.7), 1.5))
    for metric in ("dice", "nsd", "hd95"):
        mean = sum(one[metric].item() for one in every) / 4
        scored = found["models"]["super_model"]["site-1"][metric]["prostate"]
        assert scored["mean"] == pytest.approx(mean) and scored["low"] <= mean <= scored["high"]
        assert found["averages"]["super_model"][metric]["mean"]["client_avg"]["mean"] == pytest.approx(mean)
    rows = [row for row in csv.DictReader((tmp_path / "home" / "evaluation.csv").open()) if "volume" in row["metric"]]
    assert {(r["metric"], r["site"], r["images"], r["unit"]) for r in rows} == {
        ("volume_dice", "site-1", "4", ""), ("volume_nsd", "site-1", "4", ""), ("volume_hd95", "site-1", "4", "mm"),
    }  # fmt: skip
    text = (tmp_path / "home" / "evaluation.md").read_text()
    assert "volume NSD (1.5 mm)" in text and "volume HD95 [mm]" in text and "volumes (patients)" in text
    assert text.count("all volumes") == 3, "a table for each metric"
    federation, sent = evaluate(tmp_path / "job", model.parent, data, ["site-1", "site-2"], part="all")
    assert federation.panic is None and sent["missing"] == {}
    for name, by_site in found["models"].items():
        for metric, labels in by_site["site-1"].items():
            value = sent["volumes"]["models"][name]["site-1"][metric]["mean"]
            assert value["mean"] == pytest.approx(labels["mean"]["mean"])
    assert sent["volumes"]["volumes"] == {"site-1": 4}


def test_a_site_s_scores_of_volumes_are_checked(tmp_path, volumes):
    model, data = volumes
    files, seen = load_super_model(model), []
    evaluate(
        tmp_path, model.parent, data, ["site-1"], part="all",
        fault=lambda site, name, shareable, work: seen.append(work()) or seen[-1],
    )  # fmt: skip
    report = exchange.unpack(seen[0])[0]["report"]
    assert report_problem(report, files.manifest, files.settings, "site-1", "all") is None
    wrong = [
        (lambda v: v.update(volumes=10**6), "counts of volumes"),
        (lambda v: v.update(patients=5), "counts of volumes"),
        (lambda v: v.update(tolerance=50.0), "another tolerance"),
        (lambda v: v["models"].pop("global"), "scores of models are missing"),
        (lambda v: v["models"]["global"].pop("nsd"), "scores are incomplete"),
        (lambda v: v["models"]["global"]["nsd"]["mean"].update(mean=1.5), "value of nsd is out of range"),
        (lambda v: v["models"]["global"]["hd95"]["mean"].update(mean=math.nan), "value of hd95 is out of range"),
    ]
    for spoil, words in wrong:
        bad = copy.deepcopy(report)
        spoil(bad["volumes"])
        assert words in report_problem(bad, files.manifest, files.settings, "site-1", "all")
    assert report_problem(report | {"volumes": 3}, files.manifest, files.settings, "site-1", "all")


def test_files_that_changed_since_training(tmp_path, run, data_root):
    data = tmp_path / "data"
    shutil.copytree(data_root, data)
    for part in ("images", "masks"):
        for i in range(6):
            (data / "site-1" / part / f"case_{i:02d}.png").unlink()
    _, found = evaluate(tmp_path / "job", run, data)
    assert "files have changed" in found["missing"]["site-1"] and "site-1" not in found["images"]


def test_nobody_answers(tmp_path, run):
    (tmp_path / "data" / "site-1").mkdir(parents=True)
    federation, found = evaluate(tmp_path / "job", run, tmp_path / "data", ["site-1"])
    assert found is None and "no site could be evaluated: site-1" in federation.panic


def test_rubbish_costs_only_its_sender(tmp_path, run, data_root):
    """Tensors in the answer, no report at all, another kind of answer."""
    payloads = {
        "site-1": lambda: exchange.pack({"global": {"w": torch.zeros(3)}}, {"round": 0, "report": {}}),
        "site-2": lambda: exchange.pack({}, {"round": 0}),
    }
    _, found = evaluate(tmp_path, run, data_root, fault=lambda site, name, task, work: payloads.get(site.name, work)())
    assert list(found["images"]) == ["site-3"]
    assert "oversized" in found["missing"]["site-1"] or "malformed" in found["missing"]["site-1"]
    assert "malformed" in found["missing"]["site-2"]


LIES = {
    "counts of images": lambda r: r.update(images=0),
    "counts of images and": lambda r: r.update(patients=10**9),
    "in training": lambda r: r.update(images=r["images"] + 1),
    "unit": lambda r: r.update(unit="<script>"),
    "scores of models": lambda r: r["models"].pop("global"),
    "incomplete": lambda r: r["models"]["global"]["dice"].pop("cup"),
    "value of dice": lambda r: r["models"]["global"]["dice"]["cup"].update(mean=1.5),
    "value of iou": lambda r: r["models"]["global"]["iou"]["cup"].update(mean=float("nan")),
    "value of hd95": lambda r: r["models"]["global"]["hd95"]["cup"].update(mean="far"),
    "paired comparisons are others": lambda r: r["paired"].pop(),
    "a difference is out of range": lambda r: r["paired"][0].update(low=-1.5),
    "gammas are others": lambda r: r["gammas"].pop(),
    "Dice at a gamma": lambda r: r["gammas"][0].update(dice=-0.1),
    "add up": lambda r: r["confusion"].update({"personal.site-1": 99}),
    "calibration": lambda r: r["reliability"]["bins"][0].update(images=99),
    "malformed": lambda r: r.pop("confusion"),
}


@pytest.mark.parametrize("words", LIES)
def test_lies_are_refused(words, tmp_path, run, data_root, sent):
    model = load_super_model(run / "super_model")
    report = copy.deepcopy(sent)
    assert report_problem(report, model.manifest, model.settings, "site-1", "test") is None
    LIES[words](report)
    assert words in report_problem(report, model.manifest, model.settings, "site-1", "test")


@pytest.fixture(scope="module")
def sent(tmp_path_factory, run, data_root):
    """What site-1 sends."""
    seen = {}

    def listen(site, name, shareable, work):
        answer = work()
        seen[site.name] = exchange.unpack(copy.deepcopy(answer))[0]["report"]
        return answer

    evaluate(tmp_path_factory.mktemp("sent"), run, data_root, fault=listen)
    return seen["site-1"]
