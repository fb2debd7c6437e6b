"""Studies: every session is opened in the right one, and what is wrong is one line before anything starts."""

import contextlib
import json
from types import SimpleNamespace

import pytest
import yaml
from nvflare.fuel.flare_api import api_spec
from nvflare.recipe import PocEnv, ProdEnv

from app_fedsm.cli.main import main
from app_fedsm.federation import session as sessions
from app_fedsm.provisioning.kits import keep_local
from app_fedsm.provisioning.poc_builder import poc_project
from app_fedsm.provisioning.project_check import check_project
from app_fedsm.recipes import FedSMRecipe
from app_fedsm.runs.hints import in_words
from fedsm.core.errors import UserError
from tests.helpers.folders import ROOT
from tests.helpers.small_jobs import SMALL, small_settings

JOB_ID = "0f0e0d0c-0b0a-4908-8706-050403020100"


class Server:
    """What FLARE's session shows of a server with two studies; notes the study of every login."""

    def __init__(self):
        self.logins = []
        self.studies = {"default": ["site-1", "site-2", "site-3"], "trial": ["site-1", "site-2"]}

    def open(self, user, kit, study, **given):
        self.logins.append(study)
        if study not in self.studies:
            raise api_spec.AuthenticationError(f"unknown study '{study}'", auth_code="AUTH_UNKNOWN_STUDY")
        self.study = study
        return self

    def get_connected_client_list(self):
        return [SimpleNamespace(name=site) for site in self.studies["default"]]

    def get_client_job_status(self, names):
        if names[0] not in self.studies[self.study]:
            raise api_spec.InvalidTarget(f"site '{names[0]}' is not enrolled in study '{self.study}'")
        return [{"client_name": names[0], "status": "No Jobs"}]

    def list_jobs(self):
        return []

    def get_job_meta(self, job_id):
        return {"status": "FINISHED:COMPLETED"}

    def submit_job(self, folder):
        return JOB_ID

    def close(self):
        pass


@pytest.fixture
def kit(tmp_path):
    kit = tmp_path / "lead@a.org"
    (kit / "startup").mkdir(parents=True)
    (kit / "startup" / "fed_admin.json").write_text(json.dumps({"admin": {"host": "localhost", "port": 1}}))
    return kit


@pytest.fixture
def server(monkeypatch):
    server = Server()
    monkeypatch.setattr("nvflare.fuel.flare_api.flare_api.new_secure_session", server.open)
    return server


def test_a_session_sees_the_sites_of_its_study(server, kit, capsys):
    with sessions.connect(sessions.Login(kit, "trial")) as session:
        assert sessions.registered(session) == ["site-1", "site-2"]
    assert main(["status", "--kit", str(kit), "--study", "trial"]) == 0
    assert "study trial: 2 sites connected: site-1, site-2" in capsys.readouterr().out
    assert main(["status", "--kit", str(kit)]) == 0 and "3 sites" in capsys.readouterr().out
    assert server.logins == ["trial", "trial", "default"]


def test_a_run_remembers_its_study(server, kit, tmp_path, capsys):
    out = tmp_path / "run"
    sites = ["--sites", "site-1", "site-2", "--out", str(out), "--no-wait"]
    assert main(["submit", "--kit", str(kit), "--study", "trial", *SMALL, *sites]) == 0
    assert json.loads((out / "run.json").read_text())["study"] == "trial"
    assert main(["status", str(out)]) == 0 and main(["status", str(out), "--study", "trial"]) == 0
    assert set(server.logins) == {"trial"}
    opened = len(server.logins)
    capsys.readouterr()
    for command in (["status"], ["fetch"], ["resume"], ["forget", "site-1"]):
        assert main([*command, str(out), "--study", "other"]) == 2
        assert "is of study 'trial', not of 'other'" in (err := capsys.readouterr().err) and err.count("\n") == 1
    assert len(server.logins) == opened, "the server was not asked"


def test_the_next_command_has_the_study(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsm.evaluation.tables.dice_table", lambda results: "")
    for run, there in (({"study": "trial"}, True), ({"study": "default"}, False), ({}, False)):
        (tmp_path / "run.json").write_text(json.dumps({"kit": "kit"} | run))
        assert ("--study trial" in in_words(tmp_path, {"sites": ["site-1"]})) == there


@pytest.mark.parametrize("study", ["nosuch", "No Such"])
def test_a_study_that_does_not_exist_is_one_line_and_nothing_starts(server, kit, tmp_path, capsys, study):
    here = ["--kit", str(kit), "--study", study]
    sites, out = ["--sites", "site-1", "site-2"], tmp_path / "run"
    for command in (["submit", *here, *sites, *SMALL, "--out", str(out)], ["status", *here]):
        assert main(command) == 2
        err = capsys.readouterr().err
        assert study in err and err.count("\n") == 1
        assert study != "nosuch" or "`nvflare study list --startup-kit" in err
    assert not out.exists()
    recipe = FedSMRecipe(settings=small_settings())
    with pytest.raises((UserError, ValueError), match=study):  # FLARE's own check of the name is a ValueError
        recipe.execute(ProdEnv(str(kit), study=study))


def test_a_site_outside_the_study_is_refused_before_anything_is_written(server, kit, tmp_path, capsys):
    here = ["--kit", str(kit), "--study", "trial", "--sites", "site-1", "site-3", "--out", str(tmp_path / "run")]
    assert main(["submit", *here, *SMALL]) == 2
    assert "not connected to the server, or not in study 'trial': site-3" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_simulator_knows_no_studies(tmp_path, capsys):
    (tmp_path / "run.json").write_text("{}")
    assert main(["resume", str(tmp_path), "--study", "trial"]) == 2
    assert "knows no studies" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path), str(tmp_path), "--study", "trial"]) == 2
    assert "--study is for --env poc or prod" in capsys.readouterr().err


def test_prod_env_submits_in_its_study(server, kit, monkeypatch):
    recipe = FedSMRecipe(settings=small_settings(), sites=["site-1", "site-2"])
    with contextlib.suppress(Exception):  # FLARE's own session comes after our check
        recipe.execute(ProdEnv(str(kit), study="trial"))
    assert server.logins == ["trial"]


def test_poc_env_makes_its_study(tmp_path):
    env = PocEnv(num_clients=2, study="trial")
    project = poc_project(["site-1", "site-2"], tmp_path, tmp_path, env.username, 8002, env.study)
    assert project["api_version"] == 4 and project["studies"]["trial"]["site_orgs"] == {"fedsm": ["site-1", "site-2"]}
    assert check_project(project).errors == []
    assert "studies" not in poc_project(["site-1"], tmp_path, tmp_path, env.username, 8002)


TRIAL = {"site_orgs": {"hospital_1": ["site-1"]}, "admins": ["lead@consortium.example.org"]}


@pytest.mark.parametrize(
    ("studies", "line"),
    [
        ([1], "studies must be a mapping"),
        ({"A b": TRIAL}, "invalid study name 'A b'"),
        ({"default": TRIAL}, "study name 'default' is reserved"),
        ({"trial": TRIAL | {"site_orgs": {"hospital_1": ["site-2"]}}}, "lists client 'site-2' under wrong org"),
        ({"trial": TRIAL | {"site_orgs": {"nobody": ["site-2"]}}}, "references unknown org 'nobody'"),
        ({"trial": TRIAL | {"site_orgs": {"hospital_1": [{}]}}}, "study 'trial' cannot be read"),
        ({"trial": TRIAL | {"admins": ["nobody@a.org"]}}, "references unknown admin 'nobody@a.org'"),
        ({"fine": TRIAL, 3: TRIAL}, "study 3 cannot be read"),
    ],
)
def test_wrong_studies_of_a_project_are_one_line(studies, line):
    project = yaml.safe_load((ROOT / "poc_workspace" / "project_localhost.yml").read_text())
    errors = check_project(project | {"api_version": 4, "studies": studies}).errors
    assert len(errors) == 1 and line in errors[0] and "\n" not in errors[0]
    both = {"first": 1, "second": 2}
    assert len(check_project(project | {"api_version": 4, "studies": both}).errors) == 2, "all at once"


def test_the_example_of_a_study_is_right():
    """As a reader would: without the `#`, and with the api_version that it names."""
    text = (ROOT / "poc_workspace" / "project.yml").read_text()
    start = text.index("# studies:")
    lines = text[start : text.index("\n\n", start)].splitlines()
    studies = yaml.safe_load("\n".join(line.removeprefix("# ") for line in lines))
    project = yaml.safe_load(text) | studies
    assert "requires api_version: 4" in check_project(project).errors[0]
    checked = check_project(project | {"api_version": 4})
    assert checked.errors == [] and checked.studies == ["glaucoma"]
    assert not [line for line in checked.warnings if "study" in line]


def test_a_study_nobody_can_use_is_a_warning():
    project = yaml.safe_load((ROOT / "poc_workspace" / "project_localhost.yml").read_text())
    checked = check_project(project | {"api_version": 4, "studies": {"empty": None}})
    assert checked.errors == [] and len(checked.warnings) == 2


def test_new_kits_have_the_projects_studies_and_what_a_site_added(tmp_path):
    files = {"study_registry.json": "studies", "comm_config.json": "internal"}
    for name, key in files.items():
        for kit, content in (("old", {key: "old", "max_message_size": 7}), ("new", {key: "new"})):
            (tmp_path / kit / "local").mkdir(parents=True, exist_ok=True)
            (tmp_path / kit / "local" / name).write_text(json.dumps(content))
    (tmp_path / "old" / "local" / "relay__resources.json").write_text("no JSON")
    (tmp_path / "new" / "local" / "relay__resources.json").write_text("{}")
    keep_local(tmp_path / "old", tmp_path / "new")
    for name, key in files.items():
        kept = json.loads((tmp_path / "new" / "local" / name).read_text())
        assert kept == {key: "new", "max_message_size": 7}
    assert (tmp_path / "new" / "local" / "relay__resources.json").read_text() == "{}"
