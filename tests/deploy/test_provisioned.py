"""Provisioned, mutually authenticated sites: code installed or sent, rights, certificates, no path leaves a site."""

import json
import shutil
import socket
import ssl
import time
import zipfile
from pathlib import Path

import pytest
import yaml

from app_fedsm.cli.main import main
from app_fedsm.federation import session as sessions
from app_fedsm.federation.remote import load_job
from app_fedsm.provisioning.provision import provision
from fedsm.core.errors import UserError
from tests.helpers.assertions import assert_equals_plain_loop, assert_same_means
from tests.helpers.folders import ROOT
from tests.helpers.processes import Running, free_port, with_wheel, without_fedsm
from tests.helpers.small_jobs import SITES, SMALL

pytestmark = pytest.mark.slow

LEAD, MEMBER = "lead@consortium.example.org", "member@hospital-2.example.org"
JOB = [*SMALL, "--rounds", "3", "--selector", "gradient", "--sites", *SITES]


def make_kits(folder: Path):
    """Kits of our own localhost project on a free port; site-3 takes no code inside jobs."""
    project = yaml.safe_load((ROOT / "poc_workspace" / "project_localhost.yml").read_text())
    (server,) = (p for p in project["participants"] if p["type"] == "server")
    server["fed_learn_port"] = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "project.yml").write_text(yaml.safe_dump(project))
    return provision(folder / "project.yml", folder / "kits")


@pytest.fixture(scope="module")
def consortium(tmp_path_factory, data_root):
    """A server and three sites, code installed from our wheel; and what a site without it needs."""
    folder = tmp_path_factory.mktemp("consortium")
    kits = make_kits(folder)
    bare = without_fedsm(folder)
    running = Running(kits, kits.users[LEAD])
    running.bare, running.installed, running.folder = bare, with_wheel(folder, bare), folder
    running.tell_data(data_root)
    try:
        for kit in [kits.server, *kits.sites.values()]:
            running.start(kit, running.installed)
        running.wait_for(SITES)
        yield running
    finally:
        running.stop_all()


def submit(consortium, out: Path, *more: str, user: str = LEAD) -> int:
    return main(["submit", "--kit", str(consortium.kits.users[user]), *JOB, "--out", str(out), *more])


def test_installed_code_where_one_site_forbids_byoc(consortium, data_root):
    """The job carries no code; the weights are those of the plain loop, hence of the simulator and of the POC."""
    out = consortium.folder / "installed_run"
    assert submit(consortium, out) == 0
    assert not list((out / "job").rglob("*.py")), "no code in the job"
    with sessions.connect(sessions.Login(consortium.lead)) as session:
        told = session.get_job_logs(load_job(out)["job_id"], "server")
    assert "fedsm round=3 site=site-1 accepted" in str(told), "a lead reads the server's log of the own job"
    assert_equals_plain_loop(out, data_root, rounds=3)


def test_evaluation_at_the_sites(consortium, data_root):
    """The super model travels as configuration, which site-3 takes though it forbids code; only reports come back."""
    model, folder = str(consortium.folder / "installed_run" / "super_model"), consortium.folder
    prod = ["--env", "prod", "--kit", str(consortium.lead), "--sites", *SITES]
    assert main(["evaluate", model, *prod, "-o", str(folder / "evaluation")]) == 0
    assert main(["evaluate", model, str(data_root), "-o", str(folder / "at_home")]) == 0
    found, at_home = (json.loads((folder / name / "evaluation.json").read_text()) for name in ("evaluation", "at_home"))
    assert found["missing"] == {}
    assert_same_means(at_home, found)


def test_no_data_path_leaves_a_site(consortium, data_root):
    """Neither in the server's folder, nor in the stored jobs (zipped), nor in the job or the download."""
    places = [consortium.kits.server, consortium.kits.storage, consortium.folder / "installed_run"]
    places.append(consortium.folder / "evaluation")
    looked = 0
    for path in (p for place in places for p in place.rglob("*") if p.is_file()):
        contents = [path.read_bytes()]
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                contents += [archive.read(name) for name in archive.namelist()]
        for content in contents:
            looked += 1
            assert str(data_root).encode() not in content, path
    assert looked > 20


def test_a_site_that_forbids_byoc_says_so_to_the_submitter(consortium, capsys):
    """site-3 refuses the job; the others go on, and the submitter reads who refused and why."""
    assert submit(consortium, consortium.folder / "refused_run", "--byoc") == 0
    told = capsys.readouterr().err
    assert "site-3 refused the job" in told and "byoc" in told.lower()


def test_byoc(consortium, data_root):
    """No process has our package: the code comes with the job. site-3's own administrator allows it first, and takes
    the guard on job ids away, which is in the package."""
    running = consortium
    for kit in [running.kits.server, *running.kits.sites.values()]:
        running.stop(kit)
    site = running.kits.sites["site-3"] / "local"
    for name in ("authorization.json", "resources.json"):
        shutil.copyfile(running.kits.sites["site-1"] / "local" / name, site / name)
    for kit in [running.kits.server, *running.kits.sites.values()]:
        running.start(kit, running.bare)
    running.wait_for(SITES)
    out = running.folder / "byoc_run"
    assert submit(running, out, "--byoc") == 0
    assert_equals_plain_loop(out, data_root, rounds=3)


def test_without_the_right_nobody_submits(consortium, tmp_path, capsys):
    assert submit(consortium, tmp_path / "run", user=MEMBER) == 2
    assert "the server refused the job" in capsys.readouterr().err
    assert not (tmp_path / "run" / "run.json").exists()


def port_of(kit: Path) -> int:
    """The server's port, as a user's kit names it."""
    return json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]["port"]


def test_foreign_certificates_are_refused(consortium, tmp_path):
    """A user and a site of another consortium, whose kits are pointed at this server's port, get nowhere."""
    other, port = make_kits(tmp_path), port_of(consortium.lead)
    wrong = port_of(other.users[LEAD])
    stranger, site = other.users[LEAD], other.sites["site-1"].rename(other.folder / "site-9")
    for path in (stranger / "startup" / "fed_admin.json", site / "startup" / "fed_client.json"):
        text = path.read_text()
        assert str(wrong) in text
        path.write_text(text.replace(str(wrong), str(port)))
    with pytest.raises(UserError), sessions.connect(sessions.Login(stranger), timeout=10):
        pass
    running = Running(other, consortium.lead)
    try:
        running.start(site, consortium.installed)
        deadline = time.time() + 60
        while time.time() < deadline and not (site / "log.txt").is_file():
            time.sleep(0.5)
        time.sleep(10)  # it tries, again and again
        assert (site / "log.txt").is_file(), "the site did start"
        assert set(consortium.wait_for(SITES)) == set(SITES)
    finally:
        running.stop(site)


def test_nobody_without_a_certificate_gets_through(consortium):
    """TLS without a client certificate: the server breaks it off; with the kit's own it answers."""

    def ask(certificate: bool) -> bytes:
        kit = consortium.kits.sites["site-1"] / "startup"
        context = ssl.create_default_context(cafile=kit / "rootCA.pem")
        if certificate:
            context.load_cert_chain(kit / "client.crt", kit / "client.key")
        plain = socket.create_connection(("localhost", port_of(consortium.lead)), timeout=10)
        with plain, context.wrap_socket(plain, server_hostname="localhost") as tls:
            tls.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return tls.recv(100)

    assert ask(certificate=True).startswith(b"HTTP/1.1")
    try:
        answer = ask(certificate=False)
    except (ssl.SSLError, ConnectionError):
        answer = b""  # it depends on who is faster whether the line is just closed
    assert answer == b""
