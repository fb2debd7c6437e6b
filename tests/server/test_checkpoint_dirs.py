"""Checkpoints of a federation's job outlive the job's own folder."""

import pytest

from fedsm.core.errors import UserError
from fedsm.core.task_names import SIMULATED_JOB
from fedsm.server.checkpoint import FOLDER
from fedsm.server.checkpoint_dirs import RUNS, checkpoint_dir, checkpoints_of, hand_over, remove_earlier
from fedsm.server.owner import Submitter

LEAD = Submitter("lead@a.org", "a", "lead")


def keep(root, job_id: str):
    """The place of a job with one checkpoint."""
    place = checkpoint_dir(root, root / job_id, job_id, LEAD)
    (place / FOLDER / "weights").mkdir(parents=True)
    (place / FOLDER / "round_000001.json").write_text(job_id)
    (place / FOLDER / "weights" / "w.safetensors").write_text("tensors")
    return place


def test_the_simulator_keeps_them_in_the_jobs_folder(tmp_path):
    assert checkpoint_dir(tmp_path, tmp_path / "run", SIMULATED_JOB, None) == tmp_path / "run"
    hand_over(tmp_path / "run", tmp_path / "run")  # nothing to do


def test_the_newest_job_that_left_a_checkpoint_is_gone_on_from(tmp_path):
    keep(tmp_path, "job-1")
    checkpoint_dir(tmp_path, tmp_path / "job-2", "job-2", LEAD)  # it never came to a checkpoint
    assert checkpoints_of("job:job-2,job-1", tmp_path, LEAD) == tmp_path / RUNS / "job-1" / FOLDER
    assert checkpoints_of("/some/folder", tmp_path, None).as_posix() == "/some/folder"
    with pytest.raises(UserError, match="no checkpoint of job job-3"):
        checkpoints_of("job:job-3,job-2", tmp_path, LEAD)
    with pytest.raises(UserError, match="no job's id"):
        checkpoints_of("job:../../etc", tmp_path, LEAD)


def test_what_is_kept_is_handed_over_again_and_again(tmp_path):
    place, run = keep(tmp_path, "job-1"), tmp_path / "job-1"
    hand_over(place, run)
    (place / FOLDER / "round_000001.json").unlink()
    (place / FOLDER / "round_000001.json").write_text("later")
    hand_over(place, run)
    assert (run / FOLDER / "round_000001.json").read_text() == "later"
    weights = [folder / FOLDER / "weights" / "w.safetensors" for folder in (run, place)]
    assert weights[0].samefile(weights[1]), "no copy"


def test_an_earlier_job_is_left_only_when_all_is_taken_over(tmp_path):
    old, new = keep(tmp_path, "job-1"), checkpoint_dir(tmp_path, tmp_path / "job-2", "job-2", LEAD)
    remove_earlier(old / FOLDER, new, tmp_path, LEAD)
    assert old.exists(), "the new one has no checkpoint yet"
    (new / FOLDER).mkdir()
    (new / FOLDER / "round_000001.json").touch()
    remove_earlier(old / FOLDER, new, tmp_path, LEAD)
    assert not old.exists()
    elsewhere = tmp_path / "elsewhere" / FOLDER
    elsewhere.mkdir(parents=True)
    remove_earlier(elsewhere, new, tmp_path, LEAD)
    assert elsewhere.exists(), "what is not kept by us is not ours to remove"
