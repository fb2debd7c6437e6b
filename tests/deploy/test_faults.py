"""Real `kill -9` on a federation of real processes: a trainer, a client, the server. Nothing is lost."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from app_fedsm.cli.main import main
from app_fedsm.federation.following import RUNNING, events_of
from app_fedsm.federation.poc import Poc
from app_fedsm.federation.remote import hand_in, load_job
from app_fedsm.federation.session import Login, connect, running_at, runs
from app_fedsm.recipes import FedSMRecipe
from fedsm.core.errors import UserError
from tests.helpers.assertions import assert_equals_plain_loop
from tests.helpers.processes import free_port, kill_all, processes_of
from tests.helpers.small_jobs import SITES, SMALL, small_settings

pytestmark = pytest.mark.slow

ROUNDS = 6
# Short waits: a dead site costs its deadline, and the tests wait for it.
JOB = [*SMALL[:-2], "--selector", "gradient", "--round-timeout", "120", "--min-sites", "2"]


@pytest.fixture(scope="module")
def poc(tmp_path_factory, data_root):
    """A POC of three sites that all tests here use one after the other."""
    folder = tmp_path_factory.mktemp("faults") / "poc"
    try:
        assert main(["poc", "up", "--dir", str(folder), "--data", str(data_root), "--port", str(free_port())]) == 0
        yield Poc(folder)
    finally:
        kill_all(folder)


def up(poc: Poc) -> None:
    """Starts what is down; FLARE's watching shells would do it themselves in a while."""
    poc.start()


class Submitted:
    """`fedsm poc submit` in a process of its own, so that something can be killed meanwhile."""

    def __init__(self, poc: Poc, out: Path, rounds: int = ROUNDS, supervise: int = 0):
        self.poc, self.out = poc, out
        job = [*JOB, "--rounds", str(rounds), "--out", str(out), "--supervise", str(supervise)]
        self.err = out.with_suffix(".err")
        command = [sys.executable, "-m", "app_fedsm.cli.main", "poc", "submit", "--dir", str(poc.folder), *job]
        with self.err.open("w") as err:
            self.process = subprocess.Popen(command, stderr=err)

    def wait_for_round(self, number: int, seconds: float = 900) -> None:
        """Waits until the server has closed a round of the job that is followed now."""
        deadline = time.time() + seconds
        while time.time() < deadline:
            if (self.out / "run.json").is_file():
                with contextlib.suppress(UserError), connect(Login(self.poc.lead)) as session:  # a server just started
                    while time.time() < deadline:
                        events = events_of(session, load_job(self.out)["job_id"])
                        if any(e["event"] == "round" and e["round"] >= number for e in events):
                            return
                        time.sleep(0.2)
            time.sleep(0.2)
        raise AssertionError(f"round {number} was not closed in {seconds} s")

    def ended(self, seconds: float = 900) -> int:
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()


def history(out: Path) -> list[dict]:
    return json.loads((out / "results.json").read_text())["validation"]["history"]


def job_processes_of(poc: Poc, site: str) -> list[psutil.Process]:
    """The processes in which a site runs jobs."""
    return [p for p in processes_of(poc.kits / site) if "worker_process" in " ".join(p.cmdline())]


def wait_until(holds: Callable[[], bool], seconds: float = 900) -> None:
    deadline = time.time() + seconds
    while not holds():
        assert time.time() < deadline
        time.sleep(0.2)


def trainer_of(poc: Poc, site: str) -> psutil.Process:
    """The process that trains for a site: a child of its job's process."""
    children = [c for job in job_processes_of(poc, site) for c in job.children(recursive=True)]
    (trainer,) = (c for c in children if "trainer_process" in " ".join(c.cmdline()))
    return trainer


def test_a_killed_trainer_costs_its_site_one_round(poc, tmp_path):
    run = Submitted(poc, tmp_path / "run")
    run.wait_for_round(2)
    trainer_of(poc, "site-2").kill()
    assert run.ended() == 0
    missed = [row["round"] for row in history(run.out) if "site-2" in row["missing"]]
    assert len(missed) <= 1, "one round at the most; between two rounds none"
    assert (run.out / "super_model" / "personal.site-2.safetensors").is_file()
    assert not [site for row in history(run.out) for site in row["missing"] if site != "site-2"]


def test_a_client_that_dies_for_good(poc, tmp_path):
    """Its rounds are closed without it; its personal model and its place stay."""
    run = Submitted(poc, tmp_path / "run")
    run.wait_for_round(2)
    kill_all(poc.kits / "site-3")
    assert run.ended() == 0
    rows = history(run.out)
    assert len(rows) == ROUNDS and "site-3" in rows[-1]["missing"] and rows[-1]["answered"] == ["site-1", "site-2"]
    assert (run.out / "super_model" / "personal.site-3.safetensors").is_file()
    up(poc)


def test_a_client_that_comes_back_is_taken_in_by_resume(poc, tmp_path, capsys):
    """FLARE does not let it into the running job: `fedsm resume` stops that one and goes on with all three."""
    rounds = 60  # more than are done until the site is back
    run = Submitted(poc, tmp_path / "run", rounds)
    run.wait_for_round(2)
    assert main(["resume", str(run.out)]) == 2 and "no site waits" in capsys.readouterr().err
    kill_all(poc.kits / "site-1")
    up(poc)  # at once, or later: the job waits for the site's answer, or goes on without it
    run.process.kill()  # whoever watched has gone: the job goes on
    job = load_job(run.out)["job_id"]
    with connect(Login(poc.lead)) as session:
        assert runs(session, job) and job not in running_at(session)["site-1"], "FLARE itself does not let it in"
    assert main(["resume", str(run.out)]) == 0
    rows = history(run.out)
    assert [row["round"] for row in rows] == list(range(1, rounds + 1)) and rows[-1]["answered"] == SITES


@pytest.mark.parametrize("when", ["between rounds", "during a round"])
def test_the_server_is_killed(poc, tmp_path, data_root, when):
    """`fedsm resume` goes on from the last checkpoint, to the weights of a run that nobody disturbed."""
    run = Submitted(poc, tmp_path / "run")
    run.wait_for_round(2)
    if when == "during a round":
        time.sleep(0.7)
    kill_all(poc.kits / "server")
    up(poc)
    assert run.ended() == 2 and "it was lost when the server was started again" in run.err.read_text()
    with connect(Login(poc.lead)) as session:
        assert session.get_job_meta(load_job(run.out)["job_id"])["status"] == RUNNING, "FLARE itself never says so"
    assert main(["resume", str(run.out)]) == 0
    assert [row["round"] for row in history(run.out)] == list(range(1, ROUNDS + 1))
    assert_equals_plain_loop(run.out, data_root, rounds=ROUNDS)


def test_a_supervised_job_needs_no_human_hand(poc, tmp_path, data_root):
    """The server is killed, then a site and another site's job process: the job goes on by itself each time.

    The kills come after closed rounds, so no site misses one, and the weights are those of an undisturbed run.
    """
    rounds = 80  # more than are done until the restarted site is noticed
    run = Submitted(poc, tmp_path / "run", rounds, supervise=5)
    run.wait_for_round(2)
    kill_all(poc.kits / "server")
    up(poc)
    first = load_job(run.out)["job_id"]
    wait_until(lambda: load_job(run.out)["job_id"] != first)
    run.wait_for_round(4)
    kill_all(poc.kits / "site-1")
    up(poc)
    assert run.ended(1800) == 0
    told = run.err.read_text()
    assert "lost when the server was started again: job" in told and "site-1 came back" in told, told[-3000:]
    rows = history(run.out)
    assert [row["round"] for row in rows] == list(range(1, rounds + 1)) and rows[-1]["answered"] == SITES
    assert (run.out / "super_model" / "personal.site-1.safetensors").is_file()


def test_a_supervised_job_after_a_killed_server_has_the_weights_of_an_undisturbed_one(poc, tmp_path, data_root):
    run = Submitted(poc, tmp_path / "run", supervise=1)
    run.wait_for_round(2)
    kill_all(poc.kits / "server")
    up(poc)
    assert run.ended() == 0 and "(1 of at most 1 times)" in run.err.read_text()
    assert_equals_plain_loop(run.out, data_root, rounds=ROUNDS)


def test_a_supervised_job_survives_the_death_of_a_sites_job_process(poc, tmp_path, data_root):
    """FLARE ends the whole job then."""
    run = Submitted(poc, tmp_path / "run", supervise=1)
    run.wait_for_round(2)
    for process in job_processes_of(poc, "site-2"):
        process.kill()
    assert run.ended() == 0 and "(1 of at most 1 times)" in run.err.read_text()
    assert history(run.out)[-1]["answered"] == SITES


def test_a_job_that_is_handed_in_twice_is_one_job(poc, tmp_path):
    """By FLARE's token, also when the second one has other sites. So a cut-off submission can be repeated."""
    settings, login = small_settings(rounds=1), Login(poc.lead)
    jobs = []
    for number, sites in enumerate((SITES, SITES, SITES[:2])):
        FedSMRecipe("twice", settings=settings, sites=sites).export(str(tmp_path / str(number)))
        with connect(login) as session:
            jobs.append(hand_in(session, tmp_path / str(number) / "twice", "after-nothing"))
    assert len(set(jobs)) == 1
    with connect(login) as session:
        session.abort_job(jobs[0])


def test_a_site_joins_and_leaves_for_good(poc, tmp_path, monkeypatch):
    """`resume --join` takes it in; `forget` takes it out, on the server's disk as well, and the others go on."""
    out, lead = tmp_path / "run", str(poc.lead)
    job = [*JOB, "--rounds", "2", "--out", str(out), "--kit", lead, "--sites", "site-1", "site-2"]
    assert main(["submit", *job]) == 0
    assert json.loads((out / "results.json").read_text())["sites"] == ["site-1", "site-2"]

    assert main(["resume", str(out), "--rounds", "4", "--join", "site-3"]) == 0
    assert json.loads((out / "results.json").read_text())["sites"] == SITES
    assert [row["answered"] for row in history(out)] == [["site-1", "site-2"]] * 2 + [SITES] * 2
    assert (out / "super_model" / "personal.site-3.safetensors").is_file()

    jobs = load_job(out)
    assert main(["forget", "site-3", str(out), "-o", str(tmp_path / "copy"), "--yes"]) == 2, "in place only"
    monkeypatch.chdir(tmp_path)
    assert main(["forget", "site-3", out.name, "--yes"]) == 0, "also by a relative path"
    kept = poc.kits / "server" / "fedsm_runs" / jobs["job_id"]
    assert not [old for old in jobs["earlier"] if (kept.parent / old).exists()]
    for folder in (out, kept):
        assert list(folder.rglob("*personal.site-1*")) and not list(folder.rglob("*personal.site-3*"))
    with connect(Login(poc.lead)) as session:
        stored = {job["job_id"] for job in session.list_jobs() or []}
    assert not stored & {jobs["job_id"], *jobs["earlier"]}, "no copy is left in the server's store"

    assert main(["resume", str(out), "--rounds", "5"]) == 0
    assert history(out)[-1]["answered"] == ["site-1", "site-2"]
    assert json.loads((out / "super_model" / "manifest.json").read_text())["sites"] == ["site-1", "site-2"]
