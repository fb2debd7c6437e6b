"""A consortium with studies, and with a relay that one of its sites is behind, in real processes over mTLS."""

import datetime
import json
import shutil
import subprocess
import sys

import psutil
import pytest

from app_fedsm.cli.main import main
from app_fedsm.federation import remote
from app_fedsm.federation import session as sessions
from app_fedsm.provisioning.kits import TEMPLATES
from app_fedsm.recipes import FedSMRecipe
from tests.helpers.assertions import assert_equals_plain_loop
from tests.helpers.processes import free_port, processes_of
from tests.helpers.real_kits import LEAD, RealFederation
from tests.helpers.small_jobs import SITES, SMALL, small_settings

pytestmark = pytest.mark.slow

BEHIND = "site-1"  # the relay


class Consortium(RealFederation):
    """Study `trial` has everybody, study `pair` two sites; site-1 connects to a relay."""

    def change(self, project: dict) -> None:
        self.relay_port = free_port()
        entries = {entry["name"]: entry for entry in project["participants"]}
        entries[BEHIND]["connect_to"] = {"name": "relay-1"}
        listener = {"default_host": "localhost", "port": self.relay_port, "connection_security": "mtls"}
        relay = {"name": "relay-1", "type": "relay", "org": "hospital_1", "listening_host": listener}
        project["participants"].append(relay)
        orgs = {entries[site]["org"]: [site] for site in SITES}
        project["api_version"] = 4
        project["studies"] = {
            "trial": {"site_orgs": orgs, "admins": [LEAD]},
            "pair": {"site_orgs": {org: orgs[org] for org in list(orgs)[:2]}, "admins": [LEAD]},
        }


@pytest.fixture(scope="module")
def consortium(tmp_path_factory, data_root):
    federation = Consortium(tmp_path_factory.mktemp("ways_in"), data_root)
    with federation.started():
        yield federation


@pytest.fixture(scope="module")
def run(consortium):
    """The folder of a job in study `trial`."""
    out = consortium.folder / "run"
    job = [*SMALL, "--rounds", "2", "--selector", "gradient", "--sites", *SITES, "--out", str(out)]
    assert main(["submit", "--kit", str(consortium.lead), "--study", "trial", *job]) == 0
    return out


def nvflare(consortium, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "nvflare.cli", "--format", "json", *arguments]
    return subprocess.run([*command, "--startup-kit", str(consortium.lead)], capture_output=True, text=True)


def test_a_site_behind_a_relay_takes_part(consortium, run, data_root):
    """The weights are those of the plain loop; the site has no connection to the server."""
    assert_equals_plain_loop(run, data_root, rounds=2)
    server = json.loads((consortium.lead / "startup" / "fed_admin.json").read_text())["admin"]["port"]
    ports = {
        site: {
            connection.raddr.port
            for process in processes_of(consortium.kits.sites[site])
            for connection in process.net_connections()
            if connection.status == psutil.CONN_ESTABLISHED
        }
        for site in SITES[:2]
    }
    assert consortium.relay_port in ports[BEHIND] and server not in ports[BEHIND]
    assert server in ports["site-2"]
    relay = consortium.kits.relays["relay-1"]
    assert [path for path in [relay, *relay.rglob("*")] if path.stat().st_mode & 0o077 and path.suffix != ".log"] == []


def test_a_job_of_another_study_is_not_seen(consortium, run, capsys):
    job_id = remote.load_job(run)["job_id"]
    lead = ["status", "--kit", str(consortium.lead)]
    assert main([*lead, "--study", "trial"]) == 0 and job_id in capsys.readouterr().out
    assert main([*lead, "--study", "pair"]) == 0
    told = capsys.readouterr().out
    assert job_id not in told and "2 sites connected: site-1, site-2" in told
    assert main(lead) == 0 and job_id not in capsys.readouterr().out
    pair = sessions.Login(consortium.lead, "pair")
    with sessions.connect(pair) as session, pytest.raises(Exception, match=job_id):
        session.get_job_meta(job_id)
    assert main(["fetch", str(run)]) == 0, "the run remembers its study"


def test_a_checkpoint_of_another_study_is_not_used(consortium, run, tmp_path):
    job_id = remote.load_job(run)["job_id"]
    settings = small_settings(rounds=3, selector="gradient", min_sites=2)
    FedSMRecipe("thief", settings=settings, resume_from=f"job:{job_id}", sites=SITES[:2]).export(str(tmp_path))
    login = sessions.Login(consortium.lead, "pair")
    with sessions.connect(login) as session:
        stolen = remote.hand_in(session, tmp_path / "thief")
    _, failure = remote.follow(login, stolen, 1, "job")
    with sessions.connect(login) as session:
        log = str(session.get_job_logs(stolen, "server"))
    assert f"job {job_id}: its checkpoint is not of study 'pair'" in f"{failure} {log}"


def test_who_may_not_and_what_does_not_exist(consortium, tmp_path, capsys):
    job = [*SMALL, "--sites", *SITES, "--out", str(tmp_path / "run")]
    for study, words in (("nosuch", "unknown study 'nosuch'"), ("pair", "not in study 'pair': site-3")):
        assert main(["submit", "--kit", str(consortium.lead), "--study", study, *job]) == 2
        assert words in (err := capsys.readouterr().err) and err.count("\n") == 1
    other = next(kit for name, kit in consortium.users.items() if name != LEAD and name.startswith("other"))
    assert main(["status", "--kit", str(other), "--study", "trial"]) == 2
    assert "is not mapped to study 'trial'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_sites_that_nobody_told_their_data(consortium, tmp_path, capsys, data_root):
    """`nvflare job submit` on kits as they came: the job fails, and the server's log and `fedsm status` say why."""
    for site in SITES:
        shutil.copyfile(TEMPLATES / "fedsm_site.yaml", consortium.kits.sites[site] / "local" / "fedsm_site.yaml")
    try:
        assert main(["job", "export", *SMALL, "--out", str(tmp_path)]) == 0
        done = nvflare(consortium, "job", "submit", "-j", str(tmp_path / "fedsm_retinal"))
        job_id = json.loads(done.stdout)["data"]["job_id"]
        ended = nvflare(consortium, "job", "wait", job_id, "--timeout", "600")
        assert ended.returncode == 1 and "FINISHED:EXECUTION_EXCEPTION" in ended.stdout + ended.stderr
        with sessions.connect(sessions.Login(consortium.lead)) as session:
            log = session.get_job_logs(job_id, "server")["logs"]["server"]
    finally:
        consortium.tell_data(data_root)
    (line,) = (line for line in log.splitlines() if "FATAL_SYSTEM_ERROR" in line)
    reason = "(site-1, site-2, site-3: the site has no data path yet: its IT writes `data: FOLDER` to"
    assert reason in line
    begin = next(line for line in log.splitlines() if "FedSMController" in line and "started" in line)
    began, said = (datetime.datetime.strptime(text[:19], "%Y-%m-%d %H:%M:%S") for text in (begin, line))
    assert (said - began).total_seconds() < 15
    capsys.readouterr()
    assert main(["status", "--kit", str(consortium.lead)]) == 0
    assert reason in capsys.readouterr().out
