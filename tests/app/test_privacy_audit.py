"""`fedsm privacy audit` on real small runs: at home, and as a job in which only figures leave a site."""

import copy
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from app_fedsm.cli.main import main
from docs_tools.described_reference import rows
from fedsm.core.task_names import AUDIT
from fedsm.evaluation.audit import FILE, PAGE
from fedsm.evaluation.audit_file import AuditFile
from fedsm.evaluation.audit_page import audit_page
from fedsm.evaluation.membership import SITES_FILE
from fedsm.flare import exchange
from fedsm.flare.evaluation import MODEL, EvaluationController
from fedsm.server.audit_check import audit_problem
from fedsm.super_model.artefact import load_super_model
from tests.helpers.federation import Federation
from tests.helpers.finished_run import finished_run
from tests.helpers.json_output import ask
from tests.helpers.small_jobs import SITES

ROWS = {"personal_own", "global"}


@pytest.fixture(scope="module")
def made(tmp_path_factory, data_root):
    """Two rounds of FedSM."""
    return finished_run(tmp_path_factory.mktemp("made"), data_root, rounds=2)


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def audit_job(folder, run, data, **given):
    """The audit as a job; returns the federation and what the server wrote."""
    settings = load_super_model(run / "super_model").settings
    controller = EvaluationController(task=AUDIT)
    federation = Federation(folder, data, settings, SITES, controller=controller, **given)
    workspace = federation.engine.get_workspace.return_value
    shutil.copytree(run / "super_model", f"{workspace.get_app_config_dir('simulate_job')}/{MODEL}")
    federation.run()
    file = federation.run_folder / SITES_FILE
    return federation, json.loads(file.read_text()) if file.is_file() else None


def test_at_home(run, capsys):
    """What left is what the wire counted, tensor by tensor; every attack has an AUC and an interval."""
    answer, _ = ask(capsys, "privacy", "audit", run)
    content = answer["data"]["audit"]
    assert answer["exit_code"] == 0 and json.loads((run / FILE).read_text()) == content
    results = json.loads((run / "results.json").read_text())
    sent = {(e["track"], e["phase"]): e for e in content["sent"]}
    assert set(sent) == {("global", "train"), ("personal", "train"), ("selector", "register")}
    each = sent["global", "train"]["bytes"] + sent["personal", "train"]["bytes"]
    for site in SITES:
        assert results["wire"]["up_bytes"][site] == [each, each]
        assert results["wire"]["registration_up_bytes"][site] == sent["selector", "register"]["bytes"]
        totals = content["sites"][site]
        assert totals["up_bytes"] == 2 * each + sent["selector", "register"]["bytes"]
        assert (totals["rounds"], totals["merged"], totals["images"]) == (2, 2, results["images"][site])
        found = content["attacks"][site]
        assert found["members"]["images"] == results["images"][site]["train"] and found["references"] == 2
        assert set(found["models"]) == ROWS
        for model in found["models"].values():
            for attack in (model["loss"], model["calibrated"]):
                assert 0 <= attack["low"] <= attack["auc"] <= attack["high"] <= 1
    assert sent["selector", "register"]["shapes"]["sum"] == [63] and "brightness" in content["learn"]["server"][1]
    assert content["missing"] == {} and content["privacy"] == {} and content["filters"] == []
    page = (run / PAGE).read_text()
    assert "tossing a coin" in page and "No differential privacy" in page and "<script src" not in page
    for path in (run / FILE, run / PAGE):
        assert path.stat().st_mode & 0o77 == 0
    assert main(["privacy", "audit", str(run)]) == 2 and "--force" in capsys.readouterr().err


def test_every_key_is_described_and_no_other_is_there(run):
    assert main(["privacy", "audit", str(run)]) == 0
    AuditFile.model_validate(json.loads((run / FILE).read_text()))
    assert all(text and text.endswith(".") for _, _, text in rows(AuditFile))


def test_the_same_as_a_job_and_only_figures_leave(run, tmp_path, data_root):
    seen = []

    def listen(site, name, shareable, work):
        seen.append(work())
        return seen[-1]

    assert main(["privacy", "audit", str(run)]) == 0
    at_home = json.loads((run / FILE).read_text())["attacks"]
    federation, found = audit_job(tmp_path / "job", run, data_root, fault=listen)
    assert federation.panic is None and found["missing"] == {} and set(found["sites"]) == set(SITES)
    for site, report in found["sites"].items():
        few = min(report["members"]["patients"], report["others"]["patients"]) < 4
        for row, model in report["models"].items():
            mine = at_home[site]["models"][row]
            for attack in ("loss", "calibrated"):
                assert model[attack]["auc"] == pytest.approx(mine[attack]["auc"])
                assert (model[attack]["low"] is None) == few, "bounds of few patients stay at the site"
    for answer in seen:
        meta, tracks = exchange.unpack(answer)
        assert not tracks and "case_" not in json.dumps(meta) and len(json.dumps(meta)) < 2000


def test_a_site_from_elsewhere_has_no_members(run, tmp_path, data_root):
    """A super model of other sites: it says so, and the others are audited."""
    manifest = run / "super_model" / "manifest.json"
    content = json.loads(manifest.read_text())
    del content["networks"]["personal.site-3"], content["networks"]["selector"]
    manifest.write_text(json.dumps(content | {"sites": SITES[:2]}))
    federation, found = audit_job(tmp_path / "job", run, data_root)
    assert federation.panic is None and set(found["sites"]) == {"site-1", "site-2"}
    assert found["missing"] == {"site-3": "the site took no part in training"}


WRONG = [
    (("models", "global", "loss", "auc"), 1.5),
    (("models", "global", "loss", "auc"), True),
    (("models", "global", "loss", "auc"), float("nan")),
    (("models", "global", "loss", "low"), 0.9),
    (("models", "global", "loss"), [0.5]),
    (("models", "global", "calibrated"), None),
    (("models", "global", "member_loss"), float("inf")),
    (("models", "global"), {}),
    (("models",), {}),
    (("members", "images"), 7),
    (("members", "patients"), 0),
    (("others",), {"images": 4, "patients": 2, "names": ["Smith"]}),
    (("references",), 9),
    (("references",), "2"),
]


@pytest.mark.parametrize(("path", "value"), WRONG, ids=lambda v: str(v)[:40])
def test_a_report_that_makes_no_sense_is_refused(made, path, value):
    model = load_super_model(made / "super_model")
    counts = model.manifest["images"]["site-1"]
    interval = {"auc": 0.6, "low": 0.5, "high": 0.7}
    row = {"member_loss": 0.1, "other_loss": 0.2, "loss": interval, "calibrated": interval}
    sizes = [{"images": counts[part], "patients": counts[part]} for part in ("train", "test")]
    good = {"members": sizes[0], "others": sizes[1], "references": 2, "models": dict.fromkeys(sorted(ROWS), row)}
    assert audit_problem(good, model.manifest, model.settings, "site-1", "test") is None
    bad = copy.deepcopy(good)
    place = bad
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert audit_problem(bad, model.manifest, model.settings, "site-1", "test")
    assert audit_problem([], model.manifest, model.settings, "site-1", "test")


def test_epsilons_filters_and_names_are_shown_and_escaped(run):
    """Statistics and training (`dp`) beside each other; what stands in a folder that others made is text."""
    results = json.loads((run / "results.json").read_text())
    results["privacy"] = {"site-1": {"epsilon": 2.0, "delta": 1e-5, "releases": 3}}
    results["dp"] = {"site-1": {"epsilon": 70333.0, "delta": 1e-5}, "site-2": "rubbish", "site-3": {"epsilon": "x"}}
    results["task"] = "<script>alert(1)</script>"
    (run / "results.json").write_text(json.dumps(results))
    config = run / "job" / "fedsm" / "app" / "config"
    config.mkdir(parents=True)
    filters = [{"tasks": ["fedsm_train"], "filters": [{"path": "nvflare.filters.<b>SVTPrivacy", "args": {}}]}]
    (config / "config_fed_client.json").write_text(json.dumps({"task_result_filters": filters}))
    assert main(["privacy", "audit", str(run)]) == 0
    content = json.loads((run / FILE).read_text())
    assert [(e["of"], e["epsilon"]) for e in content["privacy"]["site-1"]] == [
        ("the statistics of its images", 6.0), ("the training of its networks", 70333.0),
    ]  # fmt: skip
    assert list(content["privacy"]) == ["site-1"] and content["filters"] == ["<b>SVTPrivacy"]
    page = (run / PAGE).read_text()
    assert "<script>alert" not in page and "<b>SVT" not in page and "&lt;b&gt;SVTPrivacy" in page
    assert "so large that it promises nothing" in page and "403 times" in page, "e^6 = 403.4"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kit", "kit"], "--kit is for --env prod"),
        (["--env", "prod"], "--env prod needs --kit and --sites"),
        (["--env", "poc", "--data", "x"], "--data is for --env local"),
        (["--sites", "site-9"], "took no part"),
        (["--data", "nowhere"], "is no folder"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(run, capsys, options, words):
    assert main(["privacy", "audit", str(run), *options]) == 2
    error = capsys.readouterr().err
    assert words in error and len(error.splitlines()) == 1 and not (run / FILE).exists()


def test_without_the_images_the_page_says_so(run, capsys):
    (run / "run.json").write_text("{}")
    assert main(["privacy", "audit", str(run)]) == 1
    assert "not on this machine" in capsys.readouterr().err
    page = (run / PAGE).read_text()
    assert "Not shown: the attacks" in page and "not attacked: site-1" in page


def test_with_secure_sums_the_server_saw_no_update_alone(run):
    """The page follows the settings that the run was made with."""
    results = json.loads((run / "results.json").read_text())
    results["settings"] |= {"secure_sum": {}, "norm_check": "off", "min_sites": 3}
    results["settings"]["tracks"]["personal"] = {"kind": "softpull_at_site"}
    (run / "results.json").write_text(json.dumps(results))
    assert main(["privacy", "audit", str(run)]) == 0
    found = json.loads((run / FILE).read_text())
    assert "no site's alone" in found["learn"]["server"][0]
    networks = [row for row in found["sent"] if row["phase"] == "train"]
    assert networks and all(row["what"].endswith(", under masks") for row in networks)
    assert not any("masks" in row["what"] for row in found["sent"] if row["phase"] != "train")


def test_words_follow_the_intervals():
    """The whole interval above 0.5: a warning that names the site; else no claim that there is nothing."""
    interval = {"auc": 0.83, "low": 0.7, "high": 0.92}
    model = {"member_loss": 0.1, "other_loss": 0.3, "loss": interval, "calibrated": None}
    counts = {"images": 9, "patients": 9}
    attacks = {"site-1": {"members": counts, "others": counts, "references": 0, "models": {"global": model}}}
    run = {"task": "t", "method": "m", "rounds": 1, "sites": ["site-1"], "run_id": None}
    content = {"run": run, "sent": [], "told": [], "sites": {}, "privacy": {}, "filters": [], "missing": {}, "seed": 0}
    content |= {"learn": {"server": [], "sites": [], "readers": []}, "attacks": attacks}
    page = audit_page(content)
    assert "names the training image 83% of the time (a coin: 50%)" in page and "better than chance<" in page
    interval["low"] = 0.45
    page = audit_page(content)
    assert "This is no proof that nobody can" in page.replace("\n", " ") and "83% of the time" not in page


def write_random_site(folder, count: int, seed: int) -> None:
    """Noise with discs that have nothing to do with it: they can only be learnt by heart."""
    rng = np.random.default_rng(seed)
    grid = np.mgrid[:32, :32]
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True)
    for i in range(count):
        centre = rng.uniform(8, 24, 2)
        disc = np.hypot(grid[0] - centre[0], grid[1] - centre[1])
        mask = (disc < 8).astype(np.uint8) + (disc < 4).astype(np.uint8)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / "images" / f"case_{i:02d}.png")
        Image.fromarray(mask).save(folder / "masks" / f"case_{i:02d}.png")


@pytest.mark.slow
def test_an_overfitted_local_model_is_caught(tmp_path, capsys):
    """Trained on images that can only be learnt by heart. With a learning rate of nothing there is nothing to find."""
    for seed, site in enumerate(SITES):
        write_random_site(tmp_path / "data" / site, 24, seed)
    given = {"method": "local", "overrides": ["task.unet.channels=[16,32,64]"], "size": 32, "local_epochs": 20}
    aucs: dict[str, dict[str, list[float]]] = {}
    for name, lr in (("by heart", 5e-3), ("not at all", 1e-12)):
        run = finished_run(tmp_path / name, tmp_path / "data", rounds=1, lr=lr, **given)
        answer, err = ask(capsys, "privacy", "audit", run)
        models = [found["models"]["personal_own"] for found in answer["data"]["audit"]["attacks"].values()]
        aucs[name] = {attack: [model[attack]["auc"] for model in models] for attack in ("loss", "calibrated")}
        if name == "by heart":
            assert min(model["loss"]["low"] for model in models) > 0.5 and "above chance" in err, aucs
            assert "better than chance<" in (run / PAGE).read_text()
    assert min(aucs["by heart"]["loss"]) > 0.8 and min(aucs["by heart"]["calibrated"]) > 0.8, aucs
    assert 0.3 < np.mean(aucs["not at all"]["loss"]) < 0.7, aucs
