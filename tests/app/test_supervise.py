"""When a supervised job goes on by itself, and when it does not. With real processes: `tests/deploy/test_faults.py`."""

import json
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
from nvflare.fuel.flare_api.api_spec import NoConnection, SubmitTokenConflict

from app_fedsm.cli.main import main
from app_fedsm.federation import following, remote
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
    """A server that all sites are connected to; the job ends as this list says, one entry each time. An entry that is a
    list says how the attempts to go on fail first."""
    waiting: list = []
    attempts: list = []

    @contextmanager
    def connect(login, timeout=15.0):
        yield None

    def finish(out, watch=None, patience=0.0):
        end = waiting.pop(0)
        if waiting and isinstance(waiting[0], list):
            attempts.extend(waiting.pop(0))
        if isinstance(end, Exception):
            raise end
        return end

    def resume(out, anew=False):
        if attempts:
            raise attempts.pop(0)
        return "anew" if anew else "new", []

    monkeypatch.setattr(sessions, "connect", connect)
    monkeypatch.setattr(sessions, "registered", lambda session: SITES)
    monkeypatch.setattr(remote, "finish", finish)
    monkeypatch.setattr(remote, "resume", resume)
    monkeypatch.setattr("app_fedsm.federation.supervise.POLL_SECONDS", 0.0)
    return waiting


def test_it_goes_on_after_each_fault_and_says_so(run, ends):
    ends += [JobLost("the server was killed"), remote.JobFailed("a process died", True), {"rounds": 3}]
    told = []
    assert supervise(run, 2, told.append) == {"rounds": 3}
    assert told == [
        "the server was killed: job new goes on from the last checkpoint (1 of at most 2 times)",
        "a process died: job new goes on from the last checkpoint (2 of at most 2 times)",
    ]


def test_what_goes_away_while_it_goes_on_is_waited_for_again(run, ends):
    """The server is killed a second time, or a site, between the first fault and the new job."""
    stopping = [remote.NotYet("1 of 3 sites"), remote.StillRuns("it is being stopped")]
    ends += [SiteOutside("site-1 came back"), [sessions.NoServer("killed again"), *stopping], {"rounds": 3}]
    told = []
    assert supervise(run, 1, told.append) == {"rounds": 3}
    assert told == ["site-1 came back: job new goes on from the last checkpoint (1 of at most 1 times)"]


def test_a_site_that_came_back_and_went_again_changes_nothing(run, ends):
    """It is followed as before, and none of the times is used up."""
    ends += [SiteOutside("site-1 came back"), [remote.StillRuns("it runs")], JobLost("killed"), {"rounds": 3}]
    told = []
    assert supervise(run, 1, told.append) == {"rounds": 3}
    assert len(told) == 1 and "(1 of at most 1 times)" in told[0]


def test_a_job_that_runs_on_after_the_server_was_silent_is_followed(run, ends, monkeypatch):
    """No stop was asked for when the connection broke, and the site that was outside is in no job's way."""
    monkeypatch.setattr(remote, "STOP_SECONDS", 0.0)
    ends += [SiteOutside("site-1 came back"), [sessions.NoServer("silent"), remote.StillRuns("runs")], {"rounds": 3}]
    told = []
    assert supervise(run, 1, told.append) == {"rounds": 3} and not told


def test_a_job_that_was_lost_before_its_first_checkpoint_starts_again(run, ends):
    ends += [JobLost("killed"), remote.JobFailed("no checkpoint", no_checkpoint=True), {"rounds": 3}]
    told = []
    assert supervise(run, 2, told.append) == {"rounds": 3}
    assert told[1] == "no checkpoint: job anew starts from the first round (2 of at most 2 times)"


def test_the_server_is_killed_between_the_end_of_the_job_and_the_download(run, monkeypatch):
    """Also while the download runs, which FLARE tells as some other error. The result is on the server's disk."""
    errors: list = [sessions.NoServer("killed"), RuntimeError("broken off"), None]

    @contextmanager
    def connect(login, timeout=15.0):
        yield Mock(download_job_result=download)

    def download(job_id, folder):
        if error := errors.pop(0):
            raise error
        (workspace := run / "download" / "workspace").mkdir(parents=True)
        (workspace / "results.json").write_text('{"rounds": 3}')
        return str(workspace.parent)

    monkeypatch.setattr(sessions, "connect", connect)
    monkeypatch.setattr(remote, "follow", lambda *args: ({"status": "FINISHED:COMPLETED"}, None))
    monkeypatch.setattr(remote, "POLL_SECONDS", 0.0)
    assert remote.finish(run, patience=60.0) == {"rounds": 3} and not errors


def test_a_job_that_was_lost_while_it_was_sent_out(run, monkeypatch):
    """FLARE lists it as DISPATCHED for ever. Its sites may take minutes to start it, so it is not given up at once."""
    now = 1.0
    monkeypatch.setattr(following, "time", Mock(monotonic=lambda: now))
    monkeypatch.setattr(sessions, "runs", lambda session, job_id: False)
    check = following._LostJobCheck(JOB)
    check.server_was_away = True
    check.check(None, "DISPATCHED")
    now = 60.0
    check.check(None, "DISPATCHED")
    now = 200.0
    with pytest.raises(JobLost, match="lists it as dispatched"):
        check.check(None, "DISPATCHED")


def test_a_running_job_is_stopped_before_a_new_one_starts_even_if_it_says_nothing(run, monkeypatch):
    """A server under load may not answer in time what the job's events are. Two jobs of one run would go on from one
    checkpoint."""
    stopped = []

    @contextmanager
    def connect(login, timeout=15.0):
        yield None

    monkeypatch.setattr(sessions, "connect", connect)
    monkeypatch.setattr(
        sessions, "running_at", lambda session: {site: {JOB} for site in SITES[:-1]} | {SITES[-1]: {""}}
    )
    monkeypatch.setattr(sessions, "runs", lambda session, job_id: True)
    monkeypatch.setattr(remote, "events_of", lambda session, job_id: [])
    monkeypatch.setattr(remote, "_stop", lambda session, job_id: stopped.append(job_id))
    monkeypatch.setattr(remote, "submit", lambda *args: "new")
    assert remote.resume(run) == ("new", []) and stopped == [JOB]


@pytest.mark.parametrize("sites_changed", [False, True])
def test_a_submission_that_was_cut_off_is_found_again(run, monkeypatch, sites_changed):
    """The server had stored the job when it was killed. The next attempt gets that job, also if other sites are there
    then: FLARE calls it a conflict."""
    stored: dict[str, str] = {}

    def submit_job(folder, token):
        if token in stored and sites_changed:
            raise SubmitTokenConflict("other content", existing_job_id=stored[token])
        if token in stored:
            return stored[token]
        stored[token] = f"{len(stored) + 1}a0a0a0a-1111-4222-8333-444444444444"
        raise NoConnection("killed")

    session = Mock(submit_job=submit_job)
    monkeypatch.setattr("nvflare.fuel.flare_api.flare_api.new_secure_session", lambda *given, **more: session)
    monkeypatch.setattr(sessions, "user_of", lambda kit: "lead")
    monkeypatch.setattr(sessions, "address", lambda kit: "here:1")
    monkeypatch.setattr(sessions, "running_at", lambda session: {site: {""} for site in SITES})
    monkeypatch.setattr(sessions, "runs", lambda session, job_id: False)
    monkeypatch.setattr(remote, "events_of", lambda session, job_id: [])
    with pytest.raises(sessions.NoServer):
        remote.resume(run)
    assert remote.load_job(run)["job_id"] == JOB
    assert remote.resume(run)[0] == remote.load_job(run)["job_id"] == next(iter(stored.values()))
    with pytest.raises(sessions.NoServer):
        remote.resume(run)  # the next fault of the run is another submission
    assert len(stored) == 2


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
        ([], "FINISHED:ABNORMAL", True),
        ([], "FINISHED:FAILED_TO_RUN", False),
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
        yield run / "empty"

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
