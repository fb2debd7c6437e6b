"""Rows 1 to 4 and 6 with real processes: provisioned kits, mTLS, code inside jobs forbidden and that enforced.

All attacks of rows 2 to 4 are submitted at once, each to one site, and looked at one by one: most of a job's time is
the start of its processes.
"""

import json
import shutil

import pytest

from app_fedsm.cli.main import main
from app_fedsm.federation import session as sessions
from app_fedsm.federation.remote import load_job
from app_fedsm.recipes import EvaluationRecipe, FedSMRecipe, ForgetRecipe
from fedsm.core.errors import UserError
from fedsm.server.checkpoint import FOLDER
from tests.helpers.attack_jobs import bytes_of, forge
from tests.helpers.real_kits import LEAD, OTHER, RealFederation, change_server_config
from tests.helpers.small_jobs import SITES, SMALL, small_settings

pytestmark = pytest.mark.slow
VICTIM = {"precious": b"precious", "round_000001.safetensors": b"another program's"}
HOSTILE = "site-3"
COPIED = "copied-job"  # the id under which a checkpoint of the lead's is put beside the real one


@pytest.fixture(scope="module")
def federation(tmp_path_factory, data_root):
    """The consortium, started."""
    running = RealFederation(tmp_path_factory.mktemp("real"), data_root)
    running.plan = running.turn_hostile(HOSTILE)
    with running.started():
        yield running


@pytest.fixture(scope="module")
def trained(federation):
    """The lead's run of one round; its folder and its job's id."""
    out = federation.folder / "run"
    submit = ["submit", "--kit", str(federation.users[LEAD]), *SMALL, "--sites", *SITES, "--out", str(out)]
    assert main([*submit, "--rounds", "1"]) == 0
    return out, load_job(out)["job_id"]


@pytest.fixture(scope="module")
def victim(federation):
    """A folder of the server's machine, or of a hospital's, that no job has anything to do with."""
    folder = federation.folder / "victim"
    folder.mkdir()
    for name, content in VICTIM.items():
        (folder / name).write_bytes(content)
    return folder


def training(folder, resume_from: str = "", byoc: bool = False):
    """A job that would go on for a second round."""
    settings = small_settings(rounds=2, min_sites=1)
    FedSMRecipe("attack", settings=settings, resume_from=resume_from, byoc=byoc, sites=SITES[:1]).export(str(folder))
    return folder / "attack"


def forgetting(folder, site: str, run: str):
    """A job that would forget a site, its arguments written by hand."""
    ForgetRecipe(site="any", run="job:any", witness=SITES[0]).export(str(folder))

    def change(config: dict) -> None:
        config["workflows"][0]["args"] = {"site": site, "run": run}

    change_server_config(folder / "forget_any", "app", change)
    return folder / "forget_any"


def calling(folder, target):
    """A job whose configuration calls a function of the package."""
    job = training(folder)

    def change(config: dict) -> None:
        args = {"tensors": {}, "filename": str(target)}
        config["components"].append({"id": "x", "path": "fedsm.server.checkpoint.save_file", "args": args})

    change_server_config(job, "app", change)
    return job


def evaluation(folder, run, run_id: str):
    """An evaluation of a super model with another run id."""
    model = shutil.copytree(run / "super_model", folder / "super_model")
    manifest = json.loads((model / "manifest.json").read_text())
    (model / "manifest.json").write_text(json.dumps(manifest | {"run_id": run_id}))
    EvaluationRecipe("evaluate", model=model, sites=SITES[:1]).export(str(folder))
    return folder / "evaluate"


@pytest.fixture(scope="module")
def attacks(federation, trained, victim):
    """Every attack to its end: name -> how it ended; and what the server kept for the lead before."""
    run, job_id = trained
    kept, scratch = federation.server_runs, federation.folder / "attacks"
    before = bytes_of(kept / job_id)
    forged = shutil.copytree(kept / job_id, scratch / "forged") / FOLDER
    forge(forged, run_id=str(victim), sites=[*SITES, str(victim)])
    forge(shutil.copytree(kept / job_id, kept / COPIED) / FOLDER, run_id=str(victim))
    jobs = {
        "code": (OTHER, training(scratch / "1", byoc=True)),
        "resume another's": (OTHER, training(scratch / "2", f"job:{job_id}")),
        "forget in another's": (OTHER, forgetting(scratch / "3", "site-2", f"job:{job_id}")),
        "forget a path": (LEAD, forgetting(scratch / "4", str(victim), str(forged))),
        "call a function": (LEAD, calling(scratch / "5", victim / "precious")),
        "resume a path": (LEAD, training(scratch / "6", str(forged))),
        "run id of a checkpoint": (LEAD, training(scratch / "7", f"job:{COPIED}")),
        "run id of a super model": (LEAD, evaluation(scratch / "8", run, str(victim))),
    }
    ids = {name: (user, federation.submit(user, job)) for name, (user, job) in jobs.items()}
    return {name: federation.finish(*submitted) for name, submitted in ids.items()} | {"before": before}


def test_code_inside_a_job_is_refused(attacks):
    """What the other tests stand on."""
    assert "BYOC not permitted" in attacks["code"].reason


def test_the_owner_is_whom_flare_authenticated(federation, trained):
    path = federation.server_runs / trained[1] / "owner.json"
    assert json.loads(path.read_text()) == {"name": LEAD, "org": "consortium", "role": "lead", "study": "default"}
    assert path.stat().st_mode & 0o777 == 0o600
    assert not list(trained[0].rglob("owner.json"))


def test_row_2_no_path_of_a_job_is_followed(attacks, victim):
    assert "is no site's name" in attacks["forget a path"].reason
    assert "never a path on the server" in attacks["resume a path"].reason
    assert bytes_of(victim) == VICTIM


def test_row_2_a_configuration_calls_no_function_of_the_package(attacks, victim):
    assert "'fedsm.server.checkpoint.save_file'" in attacks["call a function"].log
    assert "is not in allow_list" in attacks["call a function"].log
    assert bytes_of(victim) == VICTIM


def test_row_3_another_lead_gets_no_model_and_removes_none(federation, trained, attacks, tmp_path):
    job_id = trained[1]
    assert any(name.endswith("personal.site-1.safetensors") for name in attacks["before"])
    with (
        sessions.connect(sessions.Login(federation.users[OTHER])) as session,
        pytest.raises(Exception, match="not authorized"),
    ):
        session.download_job_result(job_id, str(tmp_path))
    for name in ("resume another's", "forget in another's"):
        assert f"job {job_id}: its checkpoint is not {OTHER}'s" in attacks[name].reason
        assert not list(attacks[name].workspace.rglob("*.safetensors"))
    assert bytes_of(federation.server_runs / job_id) == attacks["before"]


def test_row_4_a_run_id_that_is_a_path_reaches_no_hospital(attacks, victim):
    """By a checkpoint that the server keeps, and by the manifest of an evaluation."""
    assert "is no run id" in attacks["run id of a checkpoint"].reason
    assert "is no run id" in attacks["run id of a super model"].reason
    assert bytes_of(victim) == VICTIM


@pytest.mark.parametrize("chosen", ["startup", "fedsm_runs", "fedsm_state", "simulate_job"])
def test_a_job_does_not_choose_its_id(federation, attacks, tmp_path, chosen):
    """FLARE would empty the folder of that name at the server and every site, or our code take it for a simulation."""
    kits = [federation.kits.server, *federation.kits.sites.values()]
    before = [sorted(path.name for path in kit.iterdir()) for kit in kits]
    assert all("startup" in names for names in before)
    job = training(tmp_path)
    meta = json.loads((job / "meta.json").read_text())
    (job / "meta.json").write_text(json.dumps(meta | {"job_id": chosen}))
    with pytest.raises(UserError, match="leave job_id out of meta.json"):
        federation.submit(LEAD, job)
    assert [sorted(path.name for path in kit.iterdir()) for kit in kits] == before


def hostile_run(federation, name: str, plan: dict):
    """A run of two rounds in which site 3 is hostile: its folder and its results."""
    federation.plan.write_text(json.dumps(plan))
    out = federation.folder / name
    submit = ["submit", "--kit", str(federation.users[LEAD]), *SMALL, "--sites", *SITES, "--out", str(out)]
    try:
        assert main([*submit, "--rounds", "2"]) == 0
    finally:
        federation.plan.unlink()
    return out, json.loads((out / "results.json").read_text())


def test_row_1_a_hospital_cannot_answer_as_another(federation, attacks):
    """In every round site 3 says that it is site 1. It is refused by its own name; site 1 takes part in all rounds."""
    out, results = hostile_run(federation, "impostor", {"name": "site-1"})
    assert results["refused"] and {entry["site"] for entry in results["refused"]} == {HOSTILE}
    assert all("which is not its own" in entry["reason"] for entry in results["refused"])
    authors = [json.loads(line)["site"] for line in (out / "accepted.jsonl").read_text().splitlines()]
    assert authors == ["site-1", "site-2"] * 2


def test_row_6_a_million_images_weigh_twice_the_median(federation, attacks):
    """Site 3 has 10 training images, claims 10**6 and sends updates of the wrong sign: it weighs 2 x median(8, 6)."""
    out, results = hostile_run(federation, "bought", {"count": 10**6, "factor": -1.0})
    lines = [json.loads(line) for line in (out / "accepted.jsonl").read_text().splitlines()]
    assert {line["n_images"] for line in lines if line["site"] == HOSTILE} == {16.0}
    assert any(entry["site"] == HOSTILE and "it weighs as 16" in entry["reason"] for entry in results["warned"])
