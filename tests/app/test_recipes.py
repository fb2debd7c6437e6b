"""Recipes in FLARE's environments: the same job by `export`, SimEnv, PocEnv and ProdEnv, or an error in one line."""

import json
import shutil
from pathlib import Path

import pytest
from nvflare.recipe import PocEnv, ProdEnv, SimEnv
from nvflare.recipe.spec import ExecEnv

from app_fedsm.recipes import EvaluationRecipe, FedSMRecipe, ForgetRecipe
from fedsm.core.errors import UserError
from tests.helpers.assertions import assert_equals_plain_loop
from tests.helpers.small_jobs import SITES, SMALL_OPTIONS, small_settings


def test_keywords_are_the_settings():
    recipe = FedSMRecipe("mine", task="retinal", method="fedavg", num_rounds=7, min_clients=3, size=64, lr=3e-3)
    settings = recipe.settings
    assert (settings.rounds, settings.min_sites, settings.size, settings.lr) == (7, 3, 64, 3e-3)
    assert (recipe.name, settings.method) == ("mine", "fedavg")
    assert FedSMRecipe(task="retinal").name == "fedsm_retinal"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "needs a task"),
        ({"task": "retinal", "nun_rounds": 3}, "nun_rounds"),
        ({"task": "retinal", "num_rounds": "many"}, "rounds"),
        ({"task": "retinal", "num_rounds": 3, "rounds": 4}, "same setting"),
        ({"task": "retinal", "min_clients": 0}, "min_sites"),
        ({"task": "retinal", "settings": small_settings()}, "not both"),
        ({"task": "heart"}, "unknown task 'heart'"),
        ({"task": "retinal", "num_round": 3}, "unknown keyword 'num_round' of FedSMRecipe; did you mean 'num_rounds'?"),
    ],
)
def test_bad_keywords_are_one_line(given, words):
    with pytest.raises(UserError, match=words) as error:
        FedSMRecipe(**given)
    assert "\n" not in str(error.value)


class Writer(ExecEnv):
    """An environment as FLARE's are: it is given the job, and never comes to the recipe's own `export`."""

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder

    def deploy(self, job) -> str:
        job.export_job(str(self.folder))
        return job.name

    get_job_status = abort_job = get_job_result = lambda self, job_id, timeout=0.0: None


def _recipes(model: Path) -> dict:
    settings = small_settings()
    return {
        "byoc": FedSMRecipe("byoc", settings=settings, byoc=True),
        "sites": FedSMRecipe("sites", settings=settings, sites=SITES[:2]),
        "resume": FedSMRecipe("resume", settings=settings, resume_from="job:1", from_round=2),
        "evaluate": EvaluationRecipe("evaluate", model=model, sites=SITES),
        "forget": ForgetRecipe("forget", site=SITES[0], run="job:1", witness=SITES[1]),
    }


@pytest.mark.parametrize("which", ["byoc", "sites", "resume", "evaluate", "forget"])
def test_an_environment_gets_what_export_writes(which, tmp_path, monkeypatch):
    """FLARE's `Recipe.run` gives an environment the job itself: what only the recipe adds would be lost."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "manifest.json").write_text("{}")
    _recipes(model)[which].export(str(tmp_path / "exported"))
    monkeypatch.setattr("app_fedsm.recipes.prepare_environment", lambda *given: None)
    _recipes(model)[which].run(Writer(tmp_path / "deployed"))
    files = [_files(tmp_path / place / which) for place in ("exported", "deployed")]
    assert files[0] == files[1]
    names = set(files[0])
    assert ("app/custom/fedsm/__init__.py" in names) == (which == "byoc")
    assert ("app_server/config/super_model/manifest.json" in names) == (which == "evaluate")
    places = json.loads(files[0]["meta.json"])["deploy_map"]
    assert places == {
        "sites": {"app": ["server", *SITES[:2]]},
        "evaluate": {"app": SITES, "app_server": ["server"]},
        "forget": {"app": ["server", SITES[1]]},
    }.get(which, {"app": ["@ALL"]})


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _environment(kind: str, root: Path, kit: Path) -> ExecEnv:
    data = {"extra": {"data": str(root)}}
    return {
        "no data": lambda: SimEnv(num_clients=3),
        "no such data": lambda: SimEnv(num_clients=3, extra={"data": "no_such_folder"}),
        "too many": lambda: SimEnv(num_clients=9, **data),
        "too few": lambda: SimEnv(num_clients=1, **data),
        "blanks": lambda: SimEnv(num_clients=3, workspace_root=str(root / "a b"), **data),
        "poc without data": lambda: PocEnv(num_clients=3),
        "poc's project": lambda: PocEnv(num_clients=3, project_conf_path=str(kit / "x.yml"), **data),
        "no kit": lambda: ProdEnv(str(kit)),
        "prod with data": lambda: ProdEnv(str(kit), extra={"data": str(root)}),
        "other": lambda: Writer(root),
    }[kind]()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("no data", "SimEnv has no data; give SimEnv.*FEDSM_DATA"),
        ("no such data", "no_such_folder"),
        ("too many", "holds no site 'site-4'"),
        ("too few", "SimEnv has 1 sites, and the job needs 2"),
        ("blanks", "cannot work in"),
        ("poc without data", "PocEnv has no data"),
        ("poc's project", "leave project_conf_path out"),
        ("no kit", "is no user's startup kit"),
        ("prod with data", "ProdEnv takes no data"),
        ("other", "Writer is not known here"),
    ],
)
def test_what_an_environment_cannot_do_is_one_line_and_nothing_starts(kind, words, tmp_path, data_root, monkeypatch):
    monkeypatch.delenv("FEDSM_DATA", raising=False)
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path / "poc"))
    kit = tmp_path / "kit"
    kit.mkdir()
    with pytest.raises(UserError, match=words) as error:
        FedSMRecipe(settings=small_settings()).execute(_environment(kind, data_root, kit))
    assert "\n" not in str(error.value)
    assert not list(kit.iterdir()) and not (tmp_path / "poc").exists()


@pytest.mark.parametrize(("resume_from", "env"), [("job:1", "sim"), ("checkpoints", "poc"), ("checkpoints", "prod")])
def test_a_resume_that_an_environment_cannot_do(resume_from, env, tmp_path, data_root):
    data = {"num_clients": 3, "extra": {"data": str(data_root)}}
    environment = {"sim": lambda: SimEnv(**data), "poc": lambda: PocEnv(**data), "prod": lambda: ProdEnv(str(tmp_path))}
    with pytest.raises(UserError):
        FedSMRecipe(settings=small_settings(), resume_from=resume_from).execute(environment[env]())


def test_simulations_of_other_data_share_no_splits(tmp_path, data_root, monkeypatch):
    """FLARE has one folder for all simulations, and a site's name may be that of another data root."""
    told = []
    monkeypatch.setattr("app_fedsm.flare_job.prepare_workspace", lambda *given: told.append(given[3]))
    monkeypatch.setattr("nvflare.job_config.api.FedJob.simulator_run", lambda *given: 0)
    shutil.copytree(data_root, tmp_path / "other")
    for name, data in (("first", data_root), ("more", data_root), ("third", tmp_path / "other")):
        (tmp_path / name).mkdir()
        job = FedSMRecipe(name, settings=small_settings())._job
        job.data = data
        job.simulator_run(str(tmp_path / name), 3)
    first, again, other = told
    assert first == again != other and {path.parent for path in told} == {tmp_path / "site_state"}


@pytest.mark.slow
def test_sim_env_equals_the_plain_loop_and_resumes(tmp_path, data_root):
    env = {"num_clients": 3, "workspace_root": str(tmp_path), "extra": {"data": str(data_root)}}
    given = SMALL_OPTIONS | {"selector": "gradient"}
    run = FedSMRecipe("first", num_rounds=2, **given).execute(SimEnv(**env))
    folder = Path(run.get_result()) / "server" / "simulate_job"
    assert_equals_plain_loop(folder, data_root, rounds=2)
    more = FedSMRecipe("more", num_rounds=3, **given, resume_from=str(folder / "checkpoints"))
    folder = Path(more.execute(SimEnv(**env)).get_result()) / "server" / "simulate_job"
    assert_equals_plain_loop(folder, data_root, rounds=3)
    evaluation = EvaluationRecipe(model=folder / "super_model", sites=SITES)
    folder = Path(evaluation.execute(SimEnv(**env)).get_result()) / "server" / "simulate_job"
    assert set(json.loads((folder / "evaluation.json").read_text())["images"]) == set(SITES)
