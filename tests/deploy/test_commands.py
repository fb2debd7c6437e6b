"""What the commands of federations refuse, and what they put into a job: no process is started here."""

import json

import pytest
from nvflare.fuel.flare_api.api_spec import AuthorizationError

from app_fedsm.cli.main import main
from app_fedsm.cli.submission import parse_gpus
from app_fedsm.federation import remote
from app_fedsm.federation.following import refusals
from fedsm.core.errors import UserError


def test_gpus_are_asked_of_the_sites_resource_managers(tmp_path):
    asked = parse_gpus(["1:8", "site-2=2"], ["site-1", "site-2"])
    assert asked == {"@default": {"num_of_gpus": 1, "mem_per_gpu_in_GiB": 8}, "site-2": {"num_of_gpus": 2}}
    assert main(["job", "export", "--task", "retinal", "--out", str(tmp_path), "--gpus", "1:8", "--gpus", "b=2"]) == 0
    meta = json.loads((tmp_path / "fedsm_retinal" / "meta.json").read_text())
    assert meta["resource_spec"] == {
        "@default": {"num_of_gpus": 1, "mem_per_gpu_in_GiB": 8},
        "b": {"num_of_gpus": 2},
    }


@pytest.mark.parametrize(("text", "words"), [("many", "write"), ("1:big", "write"), ("elsewhere=1", "no site")])
def test_bad_gpus_are_one_line(text, words):
    with pytest.raises(UserError, match=words):
        parse_gpus([text], ["site-1"])


def test_refusals_name_the_site_and_the_reason():
    detail = [
        "server: OK",
        "site-1: OK",
        "site-3: ERROR: user 'lead' is not authorized for\n 'byoc'",
        "site-2: no reply",
    ]
    assert refusals({"job_deploy_detail": detail}) == [
        "site-3 refused the job: ERROR: user 'lead' is not authorized for 'byoc'",
        "site-2 refused the job: no reply",
    ]
    assert refusals({}) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status"], "--kit"),
        (["status", "no_such"], "holds no run"),
        (["fetch", "no_such"], "no job that was submitted"),
        (["poc", "down", "--dir", "no_such"], "no POC"),
        (["poc", "submit", "--dir", "no_such", "--task", "retinal", "--out", "o"], "poc up"),
        (["submit", "--kit", ".", "--sites", "a", "b", "--task", "retinal", "--out", "o"], "no user's startup kit"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1
    assert not (tmp_path / "o" / "run.json").exists()


def test_the_run_of_a_federation_is_not_resumed_in_the_simulator(tmp_path, capsys):
    (tmp_path / "run.json").write_text(json.dumps({"job_id": "x"}))
    assert main(["run", "--resume", "--out", str(tmp_path)]) == 2
    assert "fedsm resume" in capsys.readouterr().err


def test_a_finished_job_is_not_asked_for_fewer_rounds(tmp_path, capsys):
    """The server is not asked, and the results stay where they are."""
    from tests.helpers.small_jobs import small_settings

    job_id = "0f0e0d0c-0b0a-4908-8706-050403020100"
    run = {"job_id": job_id, "kit": "nowhere", "settings": small_settings(rounds=3).to_dict(), "byoc": False}
    (tmp_path / "run.json").write_text(json.dumps(run | {"sites": ["site-1"], "resources": {}, "earlier": []}))
    (tmp_path / "results.json").write_text(json.dumps({"rounds": 3, "sites": ["site-1"]}))
    assert main(["resume", str(tmp_path), "--rounds", "2"]) == 2
    err = capsys.readouterr().err
    assert "3 rounds are done already, more than --rounds 2" in err and err.count("\n") == 1
    assert (tmp_path / "results.json").is_file()


def test_a_job_goes_to_its_sites_alone(tmp_path):
    """FLARE sends a job to whoever is connected, unless its deploy map says more."""
    from app_fedsm.recipes import FedSMRecipe
    from tests.helpers.small_jobs import small_settings

    FedSMRecipe("named", settings=small_settings(), sites=["site-1", "site-3"]).export(str(tmp_path))
    FedSMRecipe("anybody", settings=small_settings()).export(str(tmp_path))
    maps = [json.loads((tmp_path / job / "meta.json").read_text())["deploy_map"] for job in ("named", "anybody")]
    assert maps == [{"app": ["server", "site-1", "site-3"]}, {"app": ["@ALL"]}]


def test_a_user_who_may_not_submit_is_told_who_may(tmp_path):
    """FLARE's own words say the same thing twice, with the folder of the job in between."""

    class MembersSession:
        def submit_job(self, folder):
            said = f"submit_job {folder}: user 'member@a.org' is not authorized for 'submit_job'"
            raise AuthorizationError(f"user not authorized for the action '{said}'")

    with pytest.raises(UserError) as refused:
        remote.hand_in(MembersSession(), tmp_path)
    assert "this kit's user may not submit jobs" in str(refused.value) and "`lead`" in str(refused.value)
