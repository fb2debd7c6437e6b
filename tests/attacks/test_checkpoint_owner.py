"""Row 3: one user must not take another's models, nor delete or change their checkpoint."""

import json
import shutil

import pytest

from fedsm.core.errors import UserError
from fedsm.flare.forget_controller import ForgetController
from tests.helpers.attack_jobs import ADMIN, LEAD, OTHER, bytes_of, kept, run_job
from tests.helpers.federation import results_of
from tests.helpers.small_jobs import small_settings

MORE = {"settings": small_settings(rounds=2), "resume_from": "job:job-1"}


def test_the_owner_is_the_submitter_and_is_not_handed_out(trained):
    owner = kept(trained, "job-1") / "owner.json"
    assert json.loads(owner.read_text()) == {"name": "lead@a.org", "org": "org", "role": "lead", "study": "default"}
    assert owner.stat().st_mode & 0o777 == 0o600
    assert not (trained / "server" / "job-1" / "owner.json").exists(), "it is in no download"


def test_another_users_checkpoint_is_neither_read_nor_removed(server, data_root):
    before = bytes_of(kept(server, "job-1"))
    job = run_job(server, data_root, "job-2", OTHER, **MORE)
    taken = [p for p in (server / "server" / "job-2", kept(server, "job-2")) for p in p.rglob("*.safetensors")]
    assert taken == []
    assert kept(server, "job-1").is_dir() and bytes_of(kept(server, "job-1")) == before
    assert job.panic.startswith("job job-1: its checkpoint is not other@b.org's") and job.panic.count("\n") == 0
    assert "lead@a.org" not in job.panic, "whose it is, is not told"


def test_another_user_forgets_no_site(server, data_root):
    before = bytes_of(kept(server, "job-1"))
    forgetting = ForgetController("site-2", "job:job-1")
    job = run_job(server, data_root, "job-2", OTHER, controller=forgetting)
    assert bytes_of(kept(server, "job-1")) == before
    assert "is not other@b.org's" in job.panic


def test_a_job_of_ones_own_in_front_opens_no_door(server, data_root):
    """`job:MINE,YOURS` takes mine if it left a checkpoint, and is refused for yours if it did not."""
    job = run_job(server, data_root, "job-2", OTHER, **(MORE | {"resume_from": "job:job-9,job-1"}))
    assert kept(server, "job-1").is_dir() and not list(kept(server, "job-2").rglob("*.safetensors"))
    assert "job job-1: its checkpoint is not" in job.panic


def test_a_job_with_the_id_of_anothers_takes_no_folder(server, data_root):
    """A lead may write any id into a job (a kit's guard refuses it earlier): the folder of that id is another's."""
    before = bytes_of(kept(server, "job-1"))
    with pytest.raises(UserError, match="is kept for another user"):
        run_job(server, data_root, "job-1", OTHER)
    assert bytes_of(kept(server, "job-1")) == before


@pytest.mark.parametrize("content", [None, "", "[]", '{"name": ""}', '{"name": 3}'])
def test_without_an_owner_nobody_but_the_operator_decides(server, data_root, content):
    """Checkpoints of version 0.1 have no owner: refused, with what the operator can do."""
    owner = kept(server, "job-1") / "owner.json"
    owner.unlink() if content is None else owner.write_text(content)
    job = run_job(server, data_root, "job-2", LEAD, **MORE)
    assert kept(server, "job-1").is_dir() and not list(kept(server, "job-2").rglob("*.safetensors"))
    assert "the server does not know whose checkpoint this is" in job.panic and "job-1/owner.json" in job.panic
    owner.write_text('{"name": "lead@a.org"}')
    assert run_job(server, data_root, "job-3", LEAD, **MORE).panic is None


def test_a_job_whose_submitter_flare_does_not_name_is_refused(server, data_root):
    for nobody in (None, {}, LEAD | {"submitter_name": ""}):
        with pytest.raises(UserError, match="does not say who submitted"):
            run_job(server, data_root, "job-2", nobody, **MORE)
    assert kept(server, "job-1").is_dir() and not kept(server, "job-2").exists()


def test_the_owner_goes_on_and_the_old_place_is_left(server, data_root):
    job = run_job(server, data_root, "job-2", LEAD, **MORE)
    assert job.panic is None and len(results_of(job)["validation"]["history"]) == 2
    assert not kept(server, "job-1").exists() and kept(server, "job-2").is_dir()


def test_a_project_admin_may_and_removes_nothing(server, data_root):
    assert run_job(server, data_root, "job-2", ADMIN, **MORE).panic is None
    assert kept(server, "job-1").is_dir(), "it stays the lead's"
    forgetting = ForgetController("site-2", "job:job-1")
    assert run_job(server, data_root, "job-3", ADMIN, controller=forgetting).panic is None
    assert json.loads((kept(server, "job-1") / "owner.json").read_text())["name"] == "lead@a.org"


@pytest.mark.parametrize("user", [LEAD, ADMIN])
def test_a_job_of_another_study_goes_on_from_no_checkpoint(server, data_root, user):
    """FLARE shows nobody the jobs of another study; the same user's checkpoints would lead around that."""
    before = bytes_of(kept(server, "job-1"))
    for controller in (None, ForgetController("site-2", "job:job-1")):
        more = MORE if controller is None else {"controller": controller}
        job = run_job(server, data_root, "job-2", user | {"study": "trial"}, **more)
        assert job.panic == "job job-1: its checkpoint is not of study 'trial'"
        shutil.rmtree(kept(server, "job-2"), ignore_errors=True)
    assert bytes_of(kept(server, "job-1")) == before


def test_a_path_is_taken_in_the_simulator_only(server, data_root):
    checkpoints = str(kept(server, "job-1") / "checkpoints")
    job = run_job(server, data_root, "job-2", LEAD, **(MORE | {"resume_from": checkpoints}))
    assert job.panic == "a federation's job names earlier jobs as job:ID,ID, never a path on the server"
