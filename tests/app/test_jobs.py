"""The job folders are what the recipe exports; BYOC carries the whole package."""

import filecmp
import json
from pathlib import Path

import pytest

import fedsm
from app_fedsm.cli.main import main
from app_fedsm.config.build import available, build_settings
from app_fedsm.jobs import paper_jobs, write_job
from fedsm.tracks import check_tracks, server_tracks
from tests.helpers.folders import JOBS
from tests.helpers.small_jobs import small_settings


def files_of(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts}


@pytest.mark.parametrize("name", paper_jobs())
def test_job_folder_is_in_step_with_the_recipe(tmp_path, name):
    """`make jobs` writes them again."""
    write_job(name, paper_jobs()[name], tmp_path)
    fresh, kept = tmp_path / name, JOBS / name
    assert files_of(fresh) == files_of(kept)
    assert not filecmp.cmpfiles(fresh, kept, files_of(fresh), shallow=False)[1]
    assert [file for file in files_of(kept) if "custom" in file] == ["app/custom/README.md"], "the job carries no code"


def test_there_is_a_job_for_every_method_and_task():
    expected = {f"{m.replace('-', '_')}_{t}" for m in available("methods") for t in available("tasks")}
    assert {p.name for p in JOBS.iterdir() if p.is_dir()} == set(paper_jobs()) == expected
    assert {"fedsm_retinal", "fedsm_prostate"} <= expected


def test_jobs_have_the_defaults_of_the_command_but_where_they_say_so(capsys):
    """`jobs/fedsm_nuclei` once had another selector than `fedsm run --task nuclei`, and nobody said so."""
    jobs = paper_jobs()
    plain = {name: build_settings(job.task.name, job.method).tracks for name, job in jobs.items()}
    different = {name for name, job in jobs.items() if job.tracks != plain[name]}
    said = (JOBS / "README.md").read_text().partition("with one difference: ")[2].partition(" train")[0]
    assert {f"`{name}`" for name in different} == set(said.split(" and "))
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "in jobs/ use the paper's, gradient" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("task", "lam"), [("retinal", 0.7), ("prostate", 0.3)])
def test_the_paper_s_settings(tmp_path, task, lam):
    server = json.loads((JOBS / f"fedsm_{task}" / "app/config/config_fed_server.json").read_text())
    settings = server["workflows"][0]["args"]["settings"]
    assert (settings["size"], settings["rounds"], settings["task"]["lam"]) == (256, 150, lam)
    assert settings["task"]["selector_net"] == {"head": "fc"}
    assert settings["tracks"]["selector"] == {"kind": "selector_gradient"}
    assert main(["job", "export", "--task", task, "--selector", "gradient", "--out", str(tmp_path)]) == 0
    fresh = (tmp_path / f"fedsm_{task}" / "app/config/config_fed_server.json").read_text()
    assert json.loads(fresh) == server, "the same as by hand"


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("softpull", {"pull": "uniform", "norm": "pulled", "alone": 0.0}),
        ("softpull_at_site", {"norm": "pulled", "alone": 0.0}),
        ("finetune", {"lr_factor": 0.1}),
        ("apfl", {"alpha": 0.5, "adapt": "yes", "eta_alpha": 1}),
        ("per-fedavg", {"variant": "fo", "inner_lr": 1, "adapt_steps": 1}),
        ("pfedme", {"prox": 0.015, "inner_steps": 5, "inner_lr": 10, "outer_lr": 60, "beta": 1}),
        ("ditto", {"prox": 0.1}),
        ("fedbn", {}),
        ("fedrep", {"head_steps": 1}),
    ],
)
def test_personal_replaces_the_kind_of_the_personal_track(kind, options):
    """And a job says all that it is trained with: a default that changes later must not change its meaning."""
    settings = build_settings("prostate", "fedsm", personal=kind)
    assert settings.tracks == {
        "global": {"kind": "fedavg"}, "personal": {"kind": kind} | options,
        "selector": {"kind": "selector_statistics", "descriptor": "image"},
    }  # fmt: skip
    check_tracks(settings, [f"site-{i}" for i in range(6)])
    track = server_tracks(small_settings(personal=kind, task="prostate"), ["a", "b", "c", "d"])["personal"]
    assert getattr(track, "lam", 0.3) == 0.3, "softpull keeps the task's"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--personal", "magic"], "unknown personal kind 'magic'; known: apfl, ditto,"),
        (["--personal", "selector_fedavg"], "unknown personal kind"),
        (["--personal", "ditto", "--method", "fedavg"], "method 'fedavg' has no personal track"),
        (["--selector", "fedavg", "--method", "fedavg"], "method 'fedavg' has no selector track"),
        (["--personal", "ditto", "--lam", "0.5"], "personal kind 'ditto' has no lam"),
        (["--personal", "pfedme", "--method", "local"], "method 'local' is a kind of personal model itself"),
        (["--selector", "gradient", "--method", "fedsm-extra"], "is made by its own selector"),
        (["--blend", "--method", "fedsm-ensemble"], "the mixture selector has no threshold"),
        (["--blend", "--selector", "extra"], "the direct selector has no threshold"),
        (["--blend", "--method", "fedavg"], "method 'fedavg' has no selector track"),
    ],
)
@pytest.mark.parametrize("command", [["job", "export"], ["run", "--data", "x"]])
def test_a_personal_kind_that_does_not_fit_is_one_line(tmp_path, capsys, command, options, words):
    assert main([*command, "--task", "retinal", "--out", str(tmp_path / "out"), *options]) == 2
    err = capsys.readouterr().err
    assert err.startswith("fedsm: error: ") and err.count("\n") == 1 and words in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--method", "fedsm-extra", "--rounds", "20"], "own rounds (50) must be fewer than all rounds (20)"),
        (["--set", "tracks.selector.descriptor=foo"], "descriptor must be one of image, image+random, encoder"),
        (["--set", "tracks.global.kind=ditto"], "'global' cannot be of kind 'ditto'; it can be fedavg, fedprox, sca"),
        (["--set", "tracks.personal.kind=selector_fedavg"], "'personal' cannot be of kind 'selector_fedavg'"),
        (["--set", "tracks.mine.kind=fedavg"], "'mine' cannot be of kind 'fedavg'; tracks are global, personal"),
        (["--method", "fedprox", "--set", "tracks.global.mu=-1"], "mu must be a number of at least 0"),
        (["--lam", "0"], "lam must be in [1/K, 1], got 0"),
        (["--set", "task.unet.norm=FOO"], "no network of these settings"),
    ],
)
def test_what_no_number_of_sites_can_train_is_not_exported(tmp_path, capsys, options, words):
    assert main(["job", "export", "--task", "retinal", "--out", str(tmp_path / "out"), *options]) == 2
    assert words in (err := capsys.readouterr().err) and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_lam_for_many_sites_is_exported(tmp_path):
    assert main(["job", "export", "--task", "retinal", "--lam", "0.05", "--out", str(tmp_path)]) == 0


def test_no_blend_may_be_asked_of_any_method():
    """As an experiment's `blend: no`, which YAML reads as a word."""
    assert build_settings("retinal", "fedavg", blend="no").blend is False
    assert build_settings("retinal", "fedsm", blend="yes").blend is True


def test_what_a_method_has_anyway_may_be_asked_for():
    for method, asked in (("fedsm-extra", {"selector": "extra"}), ("fedsm-ensemble", {"personal": "softpull"})):
        assert build_settings("retinal", method, **asked) == build_settings("retinal", method)


def test_byoc_carries_every_file_of_the_package(tmp_path):
    arguments = ["job", "export", "--task", "retinal", "--byoc", "--name", "carried", "--out", str(tmp_path)]
    assert main(arguments) == 0
    package = Path(fedsm.__file__).parent
    assert files_of(tmp_path / "carried/app/custom/fedsm") == files_of(package)
    for name in files_of(package):
        assert (tmp_path / "carried/app/custom/fedsm" / name).read_bytes() == (package / name).read_bytes()
