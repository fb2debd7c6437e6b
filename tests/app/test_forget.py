"""`fedsm forget`: a site leaves for good, from checkpoint and super model, and the run goes on without it."""

import json
import os
import shutil

import pytest
import torch

from app_fedsm.cli.main import main
from fedsm.core.model_store import FOLDER, OnDisk
from fedsm.selectors.gaussian import gaussian_classes
from fedsm.server.checkpoint import Checkpoints
from fedsm.super_model.artefact import load_super_model
from fedsm.tracks import build_inference_selector, server_tracks
from tests.helpers.federation import JOB, Federation, results_of
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import last_weights

REST = ["site-1", "site-3"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data_root):
    """A finished run of one round with each kind of selector."""
    made = {}
    for selector in ("statistics", "gradient"):
        folder = tmp_path_factory.mktemp(selector)
        Federation(folder, data_root, small_settings(rounds=1, selector=selector), SITES).run()
        made[selector] = folder / "server" / JOB
    return made


def copied(runs, selector: str, tmp_path):
    return shutil.copytree(runs[selector], tmp_path / "run")


def bytes_of(folder) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_statistics_are_those_of_the_others_to_the_bit(runs, tmp_path, capsys):
    """The sums that stay, and the classes made of them, are what they were and would be without the site."""
    run = copied(runs, "statistics", tmp_path)
    before = last_weights(run)
    OnDisk(run / FOLDER).put("personal.site-2", before["personal.site-2"])  # left by a server that was killed
    assert main(["forget", "site-2", str(run), "--yes"]) == 0
    assert not (run / FOLDER).exists()
    assert capsys.readouterr().out.strip() == str(run)

    after = last_weights(run)
    assert set(after) == set(before) - {"personal.site-2"}
    expected = {k: v for k, v in before["selector.sums"].items() if not k.startswith("site-2/")}
    assert after["selector.sums"].keys() == expected.keys()
    assert all(torch.equal(after["selector.sums"][k], v) for k, v in expected.items())

    model = load_super_model(run / "super_model")
    assert model.manifest["sites"] == REST and model.manifest["forgotten"] == ["site-2"]
    assert set(model.networks) == {"global", "selector", *(f"personal.{s}" for s in REST)}
    sums = [{k: expected[f"{site}/{k}"] for k in ("n", "sum", "outer")} for site in REST]
    for key, value in gaussian_classes(sums).items():
        assert torch.equal(model.networks["selector"][key], value), key
    held = b"".join(bytes_of(run / "checkpoints").values()) + b"".join(bytes_of(run / "super_model").values())
    assert before["personal.site-2"]["model.0.conv.unit0.conv.weight"].numpy().tobytes() not in held
    assert not list(run.glob("*.earlier")) and not list(run.glob("*.new"))
    assert (run / "results.json").read_bytes() == (runs["statistics"] / "results.json").read_bytes()


def test_a_trained_selector_loses_its_output(runs, tmp_path):
    """The softmax over those that stay: p_k / (1 - p_2). So do the best round's weights and Adam's moments."""
    run = copied(runs, "gradient", tmp_path)
    settings, images = small_settings(rounds=1, selector="gradient"), torch.rand(4, 3, 32, 32)
    old = load_super_model(run / "super_model").networks["selector"]
    p = build_inference_selector(settings, 3, old, torch.device("cpu")).probabilities(images)
    assert main(["forget", "site-2", str(run), "--yes"]) == 0
    new = load_super_model(run / "super_model").networks["selector"]
    q = build_inference_selector(settings, 2, new, torch.device("cpu")).probabilities(images)
    assert torch.allclose(q, p[:, [0, 2]] / p[:, [0, 2]].sum(1, keepdim=True), atol=1e-6)
    checkpoints = Checkpoints(run / "checkpoints")
    state = checkpoints.load()
    server_tracks(settings, REST)["selector"].load_files(last_weights(run))
    best = checkpoints.load_weights(state["best"]["selector"]["file"])
    assert {v.shape[0] for k, v in best.items() if k.startswith("head.2.")} == {2}


def test_the_run_goes_on_without_it_though_its_client_is_there(runs, tmp_path, data_root):
    run = copied(runs, "gradient", tmp_path)
    assert main(["forget", "site-2", str(run), "--yes"]) == 0
    settings = small_settings(rounds=2, selector="gradient")
    federation = Federation(tmp_path, data_root, settings, SITES, resume_from=str(run / "checkpoints")).run()
    assert federation.panic is None
    results = results_of(federation)
    assert results["sites"] == REST
    assert results["validation"]["history"][1]["answered"] == REST
    assert results["validation"]["history"][1]["missing"] == {}


def test_out_leaves_the_run_as_it_is(runs, tmp_path):
    run, out = copied(runs, "statistics", tmp_path), tmp_path / "out"
    before = bytes_of(run)
    assert main(["forget", "site-2", str(run), "-o", str(out)]) == 0, "a copy needs no --yes"
    assert bytes_of(run) == before
    assert load_super_model(out / "super_model").manifest["sites"] == REST
    assert main(["forget", "site-2", str(run), "-o", str(out)]) == 2, "it is not empty"


@pytest.mark.parametrize("at", range(6))
def test_a_kill_between_two_steps_can_be_made_good(runs, tmp_path, monkeypatch, at):
    """Every rename in turn fails as a kill there would: the old ones are still there or the new ones are, and the same
    command ends the work."""
    run = copied(runs, "statistics", tmp_path)
    calls, real = iter(range(99)), os.replace

    def replace(source, target):
        if str(source).count(str(run)) and "weights" not in str(source) and next(calls) == at:
            raise KeyboardInterrupt
        return real(source, target)

    monkeypatch.setattr("os.replace", replace)
    code = main(["forget", "site-2", str(run), "--yes"])
    monkeypatch.undo()
    if code != 0:
        assert code == 130
        assert (run / "super_model").exists() or (run / "super_model.earlier").exists()
        assert main(["forget", "site-2", str(run), "--yes"]) == 0
    assert load_super_model(run / "super_model").manifest["sites"] == REST
    assert Checkpoints(run / "checkpoints").load()["record"]["sites"] == REST


def test_what_cannot_be_done_is_one_line_and_changes_nothing(runs, tmp_path, capsys, monkeypatch):
    run = copied(runs, "statistics", tmp_path)
    before = bytes_of(run)

    def refused(*arguments, words: str) -> None:
        assert main(["forget", *arguments]) == 2
        assert words in capsys.readouterr().err
        assert bytes_of(run) == before

    refused("site-9", str(run), "--yes", words="site 'site-9' is not part of the run")
    refused("site-1", str(tmp_path / "no"), "--yes", words="holds no checkpoint")
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    refused("site-1", str(run), words="give --yes, or -o OUT")

    manifest = run / "checkpoints" / "round_000001.json"
    state = json.loads(manifest.read_text())
    state["settings"]["tracks"]["personal"]["lam"] = 0.4
    manifest.write_text(json.dumps(state))
    before = bytes_of(run)
    refused("site-1", str(run), "--yes", words="lam must be in [1/K, 1] = [0.5, 1] for 2 sites")


def test_scaffold_refuses_by_name(tmp_path, data_root, capsys):
    """Only the site knows its share of the control."""
    Federation(tmp_path, data_root, small_settings(rounds=1, method="scaffold"), SITES).run()
    assert main(["forget", "site-2", str(tmp_path / "server" / JOB), "--yes"]) == 2
    assert "SCAFFOLD's control c holds a share of site 'site-2'" in capsys.readouterr().err


def test_a_person_is_asked(runs, tmp_path, monkeypatch, capsys):
    run = copied(runs, "statistics", tmp_path)
    before = bytes_of(run)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert main(["forget", "site-2", str(run)]) == 1
    assert "nothing was changed" in capsys.readouterr().err and bytes_of(run) == before
    monkeypatch.setattr("builtins.input", lambda question: "yes")
    assert main(["forget", "site-2", str(run)]) == 0


def test_help(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["forget", "--help"])
    assert caught.value.code == 0 and "example:" in capsys.readouterr().out
