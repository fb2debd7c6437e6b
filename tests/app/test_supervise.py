"""When a supervised job goes on by itself, and when it does not. With real processes: `tests/deploy/test_faults.py`."""

import json
from contextlib import contextmanager

import pytest

from app_fedsm.cli.main import main
from app_fedsm.federation import remote
from app_fedsm.federation import session as sessions
from app_fedsm.federation.following import JobLost
from app_fedsm.federation.supervise import SiteOutside, SitesOutside, supervise
from fedsm.core.errors import UserError
from tests.helpers.small_jobs import SITES, small_settings

JOB = "0a0a0a0a-1111-4222-8333-444444444444"


@pytest.fixture
def run(tmp_path):
    """The folder of a job that was submitted."""
    note = {"job_id": JOB, "kit": "nowhere", "settings": small_settings(rounds=3).to_dict(), "byoc": False}
    (tmp_path / "run.json").write_text(json.dumps(note | {"sites": SITES, "resources": {}, "earlier": []}))
    return tmp_path


@pytest.fixture
def ends(monkeypatch):
    """A server that all sites are connected to; the job ends as this list says, one entry each time."""
    waiting: list = []

    @contextmanager
    def connect(login, timeout=15.0):
        yield None

    def finish(out, watch=None, patience=0.0):
        end = waiting.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr(sessions, "connect", connect)
    monkeypatch.setattr(sessions, "registered", lambda session: SITES)
    monkeypatch.setattr(remote, "finish", finish)
    monkeypatch.setattr(remote, "resume", lambda out: ("new", []))
    return waiting


def test_it_goes_on_after_each_fault_and_says_so(run, ends):
    ends += [JobLost("the server was killed"), remote.JobFailed("a process died", True), {"rounds": 3}]
    told = []
    assert supervise(run, 2, told.append) == {"rounds": 3}
    assert told == [
        "the server was killed: job new goes on from the last checkpoint (1 of at most 2 times)",
        "a process died: job new goes on from the last checkpoint (2 of at most 2 times)",
    ]


def test_not_once_too_often(run, ends):
    ends += [JobLost("killed"), JobLost("killed again"), {"rounds": 3}]
    with pytest.raises(JobLost, match="killed again"):
        supervise(run, 1, print)


@pytest.mark.parametrize("end", [remote.JobFailed("the disk is full"), UserError("no server answers")])
def test_what_going_on_cannot_mend_is_told(run, ends, end):
    ends += [end, {"rounds": 3}]
    with pytest.raises(type(end)):
        supervise(run, 5, print)
    assert ends == [{"rounds": 3}]


@pytest.mark.parametrize(
    ("events", "status", "goes_on"),
    [
        ([], "FINISHED:EXECUTION_EXCEPTION", True),
        ([], "FINISHED:ABORTED", False),
        ([{"event": "failed", "reason": "too few"}], "FINISHED:EXECUTION_EXCEPTION", False),
        ([{"event": "failed", "reason": "too few", "can_go_on": False}], "FINISHED:EXECUTION_EXCEPTION", False),
        ([{"event": "failed", "reason": "too few", "can_go_on": True}], "FINISHED:EXECUTION_EXCEPTION", True),
    ],
)
def test_which_failures_may_be_mended(run, monkeypatch, events, status, goes_on):
    """A job that a person aborted stays ended, and one that gave its own reason says whether it may go on."""

    @contextmanager
    def download(login, job_id, log):
        (run / "progress.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        yield None

    monkeypatch.setattr(remote, "follow", lambda *args: ({"status": status}, None))
    monkeypatch.setattr(remote, "download", download)
    with pytest.raises(remote.JobFailed) as failed:
        remote.finish(run)
    assert failed.value.can_go_on is goes_on


def test_a_site_is_outside_when_it_was_seen_so_twice_while_others_are_inside(monkeypatch):
    running: dict = {}
    monkeypatch.setattr(sessions, "running_at", lambda session: running)
    monkeypatch.setattr("app_fedsm.federation.supervise._LOOK", 0.0)
    look = SitesOutside(SITES, JOB)
    running |= {"site-1": {JOB}, "site-2": {""}, "stranger": {""}}  # site-3 is not connected
    look(None)
    running["site-2"] = {JOB}  # it was only slow to start
    look(None)
    running["site-2"] = {"another job"}
    look(None)
    with pytest.raises(SiteOutside, match="^site-2 came back"):
        look(None)
    running |= {"site-1": {""}, "site-2": {""}}  # the job ends: nobody is inside
    ending = SitesOutside(SITES, JOB)
    ending(None)
    ending(None)


def test_a_wrong_number_of_times(capsys):
    words = ["submit", "--kit", "k", "--sites", "a", "b", "--task", "retinal", "--out", "o", "--supervise", "-1"]
    with pytest.raises(SystemExit):
        main(words)
    assert "--supervise" in capsys.readouterr().err


def test_a_run_of_an_earlier_version_is_not_supervised(run):
    assert remote.load_job(run)["supervise"] == 0
    note = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(note | {"supervise": "9" * 9}))
    assert remote.load_job(run)["supervise"] == 0
