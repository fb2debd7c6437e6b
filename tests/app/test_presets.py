"""Presets: named sets of settings, in commands, recipes and experiments."""

import json

import pytest

from app_fedsm.cli.main import main
from app_fedsm.config.build import build_settings, load_preset
from app_fedsm.config.names import available
from app_fedsm.experiments.grid import load_experiment
from app_fedsm.recipes import FedSMRecipe
from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.tracks import KINDS, check_options
from tests.helpers.small_jobs import TINY, write_site

RECIPE = {"lr", "loss", "schedule", "warmup_rounds", "ema", "site_weights", "selection", "task.augment"}


def plain(settings: JobSettings) -> dict:
    """A job's settings but for the preset's name."""
    return settings.to_dict() | {"preset": ""}


@pytest.mark.parametrize("task", available("tasks"))
@pytest.mark.parametrize("method", available("methods"))
def test_paper_is_the_defaults_but_for_the_selection(task, method):
    default = build_settings(task, method)
    assert plain(build_settings(task, method, preset="paper")) == plain(default.replace(selection="algorithm2"))
    assert (default.preset, default.selection) == ("none", "best")


def test_paper_takes_a_task_s_augmentation_away(tmp_path):
    task = build_settings("nuclei", "fedsm").to_dict()["task"]
    (tmp_path / "mine.yaml").write_text(json.dumps(task | {"name": "mine", "augment": {"rotate": 10}}))
    mine = str(tmp_path / "mine.yaml")
    assert build_settings(mine, "fedsm").task.augment.rotate == 10
    assert not build_settings(mine, "fedsm", preset="paper").task.augment.model_fields_set


def test_best_sets_what_paper_sets():
    best, settings = load_preset("best"), build_settings("nuclei", "fedsm", preset="best")
    assert set(best) == RECIPE | {"tracks.personal.norm", "tracks.personal.alone"} and set(
        load_preset("paper")
    ) >= RECIPE - {"lr"}
    assert settings.preset == "best"
    for key in RECIPE - {"task.augment"}:
        assert getattr(settings, key) == best[key], key
    assert settings.task.augment.rotate == best["task.augment"]["rotate"]
    assert settings.tracks["personal"]["norm"] == "own" and settings.tracks["personal"]["alone"] == 0.25


def test_what_is_given_wins():
    given = {"lr": 0.5, "ema": 0.0, "overrides": ["task.augment.rotate=3", "loss=dice"]}
    settings = build_settings("nuclei", "fedsm", preset="best", **given)
    assert (settings.lr, settings.ema, settings.loss, settings.task.augment.rotate) == (0.5, 0.0, "dice", 3)
    assert settings.selection == "best" and settings.tracks["personal"]["norm"] == "own"


@pytest.mark.parametrize("preset", available("presets"))
@pytest.mark.parametrize("method", available("methods"))
def test_every_method_takes_every_preset(preset, method):
    """But the ensemble, which has no average over the rounds and says so."""
    settings = build_settings("nuclei", method, preset=preset)
    if method == "fedsm-ensemble" and settings.ema:
        with pytest.raises(UserError, match="set ema to 0"):
            check_options(settings)
        settings = settings.replace(ema=0.0)
    check_options(settings)


def test_options_of_tracks_go_to_the_methods_that_have_them(monkeypatch):
    """`tracks.personal.lam` to SoftPull; not to Ditto, nor to FedAvg, which has no personal track."""
    monkeypatch.setattr("app_fedsm.config.build.load_preset", lambda name: {"tracks.personal.lam": 0.9})
    assert build_settings("nuclei", "fedsm", preset="x").tracks["personal"]["lam"] == 0.9
    assert build_settings("nuclei", "fedsm", preset="x", lam=0.6).tracks["personal"]["lam"] == 0.6
    assert "lam" not in build_settings("nuclei", "fedsm", preset="x", personal="ditto").tracks["personal"]
    assert list(build_settings("nuclei", "fedavg", preset="x").tracks) == ["global"]


def test_every_key_of_a_preset_means_something():
    """A track's option that no kind has would be left out everywhere, and nobody would know."""
    for preset in available("presets"):
        for key in load_preset(preset):
            if key.startswith("tracks."):
                _, track, option = key.split(".")
                assert any(option in k.options.model_fields for k in KINDS.values() if k.track == track), key


def test_an_unknown_preset_is_one_line(capsys, tmp_path):
    assert main(["job", "export", "--task", "nuclei", "--preset", "bets", "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "unknown preset 'bets'; did you mean 'best'? known: best, paper" in err and err.count("\n") == 1


def test_a_warm_up_longer_than_the_run_is_one_line(capsys, tmp_path):
    command = ["job", "export", "--task", "nuclei", "--preset", "best", "--rounds", "2", "--out", str(tmp_path)]
    assert main([*command, "--set", "warmup_rounds=2"]) == 2
    assert "must be fewer than rounds (2)" in capsys.readouterr().err


def test_in_a_job_folder_and_in_a_recipe(tmp_path):
    assert main(["job", "export", "--task", "nuclei", "--preset", "best", "--out", str(tmp_path)]) == 0
    config = json.loads((tmp_path / "fedsm_nuclei" / "app/config/config_fed_server.json").read_text())
    recipe = FedSMRecipe(task="nuclei", preset="best")
    assert config["workflows"][0]["args"]["settings"] == recipe.settings.to_dict()
    assert recipe.settings == build_settings("nuclei", "fedsm", preset="best")


def test_in_an_experiment():
    """A row's own preset wins over that of all, and what is chosen wins over both."""
    grid = load_experiment("best_ablation")
    by_name = {row.name: grid.runs(row, row.choices[1], 0, ["a", "b"])[0].settings for row in grid.rows}
    assert by_name["paper"].preset == "paper" and by_name["best"].preset == "best"
    assert {settings.lr for settings in by_name.values()} == {3e-2}
    paper, best = by_name["paper"].to_dict(), by_name["best"].to_dict()
    for name, key in {
        "Dice + cross entropy": "loss", "average over rounds": "ema", "equal site weights": "site_weights",
        "pull by similarity": "tracks", "own norm layers": "tracks",
        "shares of the others' models": "personal_mix",
    }.items():  # fmt: skip
        changed = {k for k, v in by_name[name].to_dict().items() if v != paper[k]}
        assert changed == {key}
    for name, key in {"Dice + cross entropy": "loss", "average over rounds": "ema"}.items():
        assert by_name[name].to_dict()[key] == best[key], "what `best` has"
    own_norms = by_name["own norm layers"].to_dict()["tracks"]["personal"]
    assert own_norms | {"alone": best["tracks"]["personal"]["alone"]} == best["tracks"]["personal"]
    assert by_name["foreign images, shares, mirrors"] == by_name["paper"], "another model of the same runs"
    assert by_name["Centralized best"].method == "centralized" and by_name["Centralized best"].ema == best["ema"]


def test_the_ablation_s_plan(tmp_path, capsys):
    """12 rows with runs of their own, two rates each."""
    for seed, site in enumerate(("a", "b", "c")):
        write_site(tmp_path / "data" / site, 8, seed)
    options = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--dry-run"]
    assert main(["experiment", "best_ablation", *options]) == 0
    plan = capsys.readouterr().out
    assert plan.count("start") == 12 * 2
    assert main(["experiment", "best_ablation", "--task", "nuclei", "--preset", "best", *options]) == 0


def test_results_say_it(tmp_path, data_root):
    """Of a centralized run, the quickest there is; of a federation: `test_equality_recipe.py`."""
    out = str(tmp_path / "out")
    given = ["--preset", "best", "--set", "warmup_rounds=1", "--data", str(data_root), "--out", out]
    assert main([*TINY, *given]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["preset"] == results["settings"]["preset"] == "best"
    assert results["settings"]["loss"] == "dice+ce"
    manifest = json.loads((tmp_path / "out" / "super_model" / "manifest.json").read_text())
    assert manifest["preset"] == "best"


def test_a_resumed_run_has_its_preset(tmp_path, capsys):
    assert main(["run", "--resume", "--preset", "best", "--out", str(tmp_path)]) == 2
    assert "leave out --preset" in capsys.readouterr().err
