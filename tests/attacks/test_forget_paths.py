"""Row 2: a lead's job without any code must not delete a folder on the server, by a path as run or as site."""

import shutil

import pytest

from app_fedsm.cli.main import main
from fedsm.core.errors import UserError
from fedsm.flare.forget_controller import ForgetController
from fedsm.server.checkpoint_dirs import hand_over, remove_earlier
from fedsm.server.forget import Forgetting
from tests.helpers.attack_jobs import FOLDER, LEAD, bytes_of, forge, kept, run_job
from tests.helpers.small_jobs import small_settings


@pytest.fixture
def victim(tmp_path):
    """A folder on the server's disk that is none of ours."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").write_text("precious")
    return tmp_path / "victim"


def forget(server, data_root, site: str, run: str):
    return run_job(server, data_root, "forget-1", LEAD, controller=ForgetController(site, run))


def test_a_path_as_run_and_as_site_deletes_nothing(tmp_path, data_root, victim):
    """The attack as it was seen: a run's folder by its path, in whose checkpoint a site's name is an absolute path."""
    local = small_settings(rounds=1, method="local")
    assert run_job(tmp_path, data_root, "job-1", LEAD, settings=local).panic is None
    run = shutil.copytree(kept(tmp_path, "job-1"), tmp_path / "forged")
    path = max((run / FOLDER).glob("round_*.json"))
    for name in ("site-2", "personal.site-2"):
        path.write_text(path.read_text().replace(f'"{name}"', f'"{name.replace("site-2", str(victim))}"'))
    (run / "site_state").mkdir()
    job = forget(tmp_path, data_root, str(victim), str(run / FOLDER))
    assert (victim / "precious").is_file()
    assert "is no site's name" in job.panic
    assert "never a path on the server" in forget(tmp_path, data_root, "site-1", str(run / FOLDER)).panic
    assert "is no" in forget(tmp_path, data_root, "site-1", f"job:{run}").panic


@pytest.mark.parametrize("site", ["/", "..", "../job-2", ".hidden", "-rf", "a/b", "site-1\n", "server", "", "x" * 65])
def test_a_site_that_is_a_path_is_refused(server, data_root, site):
    before = bytes_of(kept(server, "job-1"))
    job = forget(server, data_root, site, "job:job-1")
    assert "is no site's name" in job.panic and job.panic.count("\n") == 0
    assert bytes_of(kept(server, "job-1")) == before


@pytest.mark.parametrize("run", ["job:..", "job:../victim", "job:/etc", "job:job-1/../job-1", "job:"])
def test_a_job_that_is_a_path_is_refused(server, data_root, run):
    assert "is no job's id" in forget(server, data_root, "site-2", run).panic


def test_no_link_leads_out(server, data_root, victim, tmp_path):
    """Neither a job's folder nor its checkpoints nor a weight file may be a link to elsewhere."""
    shutil.copytree(kept(server, "job-1"), victim / "run")
    before = bytes_of(victim)
    kept(server, "job-2").symlink_to(victim / "run")
    assert "is a link" in forget(server, data_root, "site-2", "job:job-2").panic

    kept(server, "job-3").mkdir()
    shutil.copyfile(kept(server, "job-1") / "owner.json", kept(server, "job-3") / "owner.json")
    (kept(server, "job-3") / FOLDER).symlink_to(victim / "run" / FOLDER)
    assert "leads out of" in forget(server, data_root, "site-2", "job:job-3").panic

    weights = kept(server, "job-1") / FOLDER / "weights"
    file = next(weights.glob("*.global.safetensors"))
    file.unlink()
    file.symlink_to(next((victim / "run" / FOLDER / "weights").glob("*.global.safetensors")))
    assert "leads out of" in forget(server, data_root, "site-2", "job:job-1").panic
    assert bytes_of(victim) == before


def test_leaving_and_handing_over_follow_no_link(server, victim, tmp_path):
    from fedsm.server.owner import Submitter

    lead = Submitter(LEAD["submitter_name"], "org", "lead")
    place, root, run = kept(server, "job-1"), server / "server", tmp_path / "run"
    shutil.copyfile(place / "owner.json", victim / "owner.json")
    kept(server, "job-2").symlink_to(victim)
    with pytest.raises(UserError, match="is a link"):
        remove_earlier(kept(server, "job-2") / FOLDER, place, root, lead)
    (place / "secret").symlink_to(victim / "precious")
    run.mkdir()
    hand_over(place, run)
    assert not (run / "secret").exists() and not (run / "owner.json").exists()
    assert (run / "accepted.jsonl").is_file()
    shutil.rmtree(run / FOLDER)
    (run / FOLDER).symlink_to(victim)
    with pytest.raises(UserError, match="leads out of"):
        hand_over(place, run)
    assert sorted(p.name for p in victim.iterdir()) == ["owner.json", "precious"]


def test_a_tampered_run_of_a_user_deletes_nothing_either(server, victim, capsys):
    """`fedsm forget` on a folder from elsewhere, whose checkpoint lists a path as a site."""
    run = kept(server, "job-1")
    forge(run / FOLDER, sites=[str(victim), "site-1", "site-2", "site-3"])
    with pytest.raises(UserError, match="is no site's name"):
        Forgetting(run, "site-2")
    assert main(["forget", str(victim), str(run), "--yes"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (victim / "precious").is_file()


def test_the_way_that_is_meant_still_works(server, data_root):
    job = forget(server, data_root, "site-2", "job:job-1")
    assert job.panic is None and (job.run_folder / "forgotten.json").is_file()
