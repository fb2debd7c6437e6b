"""A wrong project.yml is refused before anything is made, with a line for each problem."""

import copy
from pathlib import Path

import pytest
import yaml

from app_fedsm.cli.main import main
from app_fedsm.provisioning.project_check import check_project

POC = Path(__file__).parents[2] / "poc_workspace"
SERVER, SITE_1, SITE_2, SITE_3, ADMIN, LEAD, ORG_ADMIN, MEMBER = range(8)


@pytest.fixture
def project() -> dict:
    return yaml.safe_load((POC / "project_localhost.yml").read_text())


def change(index, **values):
    def damage(project):
        project["participants"][index].update(values)

    return damage


def remove(*indices):
    def damage(project):
        kept = [p for i, p in enumerate(project["participants"]) if i not in indices]
        project["participants"] = kept

    return damage


def relay(connect_to="relay-1", **listener):
    """A relay that site-1 connects to; `listener`: what is wrong with where it listens."""

    def damage(project):
        place = {"default_host": "localhost", "port": 8010, "connection_security": "mtls"} | listener
        place = {key: value for key, value in place.items() if value is not None}
        entry = {"name": "relay-1", "type": "relay", "org": "consortium", "listening_host": place}
        project["participants"].append(entry)
        project["participants"][SITE_1]["connect_to"] = {"name": connect_to}

    return damage


def repeat(index):
    def damage(project):
        project["participants"].append(copy.deepcopy(project["participants"][index]))

    return damage


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda p: p.pop("api_version"), "api_version is None; write `api_version: 3`"),
        (lambda p: p.update(name="a b"), "name: 'a b' names no folder"),
        (lambda p: p.update(name="x" * 64), "63 at most"),
        (change(SITE_1, name="hos.1"), "participant 'hos.1': a site's name has letters"),
        (change(SITE_1, name="-1"), "participant '-1': a site's name has letters"),
        (change(SITE_1, name="server"), "participant 'server': a site's name has letters"),
        (change(SITE_1, name="s" * 65), "the name has 65 characters; 64 at most"),
        (change(SITE_1, org="hospital 1"), "participant 'site-1': org 'hospital 1'; letters"),
        (change(SITE_1, org=None), "participant 'site-1': org None"),
        (change(SITE_1, type="robot"), "participant 'site-1': type 'robot' is none of server, client, relay, admin"),
        (change(SITE_1, byoc="no"), "participant 'site-1': byoc must be true or false, got 'no'"),
        (change(SITE_1, statsd="localhost"), "'site-1': statsd must be HOST:PORT, as localhost:9125, got 'localhost'"),
        (change(SITE_1, name=None), "participant number 2: it has no name"),
        (change(SITE_2, name="site-1"), "participant 'site-1': the name is there 2 times"),
        (change(LEAD, name="lead"), "participant 'lead': a user's name is an e-mail address"),
        (change(LEAD, role="boss"), "role 'boss' is none of project_admin, org_admin, lead, member"),
        (change(SERVER, fed_learn_port=80000), "participant 'localhost': fed_learn_port must be a number from 1 to"),
        (change(SERVER, fed_learn_port="8002"), "fed_learn_port must be a number from 1 to 65535, got '8002'"),
        (change(SERVER, admin_port=0), "participant 'localhost': admin_port must be a number from 1 to 65535"),
        (change(SERVER, default_host="a_b"), "participant 'localhost': 'a_b' is no host name"),
        (change(SERVER, host_names=["10.0.0.7", "x y"]), "participant 'localhost': 'x y' is no host name"),
        (change(SERVER, storage="jobs"), "participant 'localhost': storage must be an absolute path"),
        (change(SITE_1, listening_host={"port": 8002}), "'site-1': port 8002 of localhost is 'localhost''s"),
        (change(SITE_1, type="relay"), "participant 'site-1': a relay says where it listens; write `listening_host: {"),
        (relay(port=None), "participant 'relay-1': port of listening_host must be a number from 1 to 65535, got None"),
        (relay(connection_security=None), "'relay-1': connection_security of listening_host is None, and FLARE's"),
        (relay(port=8002), "participant 'relay-1': port 8002 of localhost is 'localhost''s"),
        (relay("relay-9"), "'site-1': connect_to names 'relay-9', which is no relay and not the server; there are loc"),
        (change(SITE_1, connect_to=3), "participant 'site-1': connect_to must be `{name: RELAY}`"),
        (remove(SERVER), "exactly one server is needed, found none"),
        (repeat(SERVER), "exactly one server is needed, found 'localhost', 'localhost'"),
        (remove(SITE_1, SITE_2), "at least 2 clients are needed, found 'site-3'"),
        (remove(ADMIN, LEAD), "no user may submit a job; add an admin with `role: lead`"),
        (lambda p: p["builders"].pop(0), "builders: WorkspaceBuilder is missing"),
        (lambda p: p.pop("builders"), "builders: CertBuilder is missing"),
    ],
)
def test_each_problem_is_one_line(project, damage, line):
    damage(project)
    found = [error for error in check_project(project).errors if line in error]
    assert len(found) == 1
    assert "\n" not in found[0]


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (change(SERVER, fed_lern_port=9), "participant 'localhost': key 'fed_lern_port' is not known here"),
        (change(SERVER, fed_learn_port=443), "fed_learn_port 443 needs root on the server"),
        (change(SERVER, host_names=["nowhere.invalid"]), "host 'nowhere.invalid' is not known on this machine"),
        (relay(connection_security="clear"), "participant 'relay-1': its listener is in clear"),
        (relay(default_host=None), "participant 'relay-1': listening_host has no default_host"),
        (lambda p: p["builders"][2].update(path="nvflare.lighter.impl.cert.CertBuilder"), "after 360 days; use app_f"),
    ],
)
def test_what_may_be_right_is_a_warning(project, damage, line):
    damage(project)
    checked = check_project(project)
    assert checked.errors == []
    assert [warning for warning in checked.warnings if line in warning] == checked.warnings != []


def test_a_relay_is_taken(project):
    relay()(project)
    checked = check_project(project)
    assert checked.errors == checked.warnings == []
    assert [entry["name"] for entry in checked.of_type("relay")] == ["relay-1"]


@pytest.mark.parametrize("name", ["project.yml", "project_localhost.yml"])
def test_our_own_projects_are_right(name):
    checked = check_project(yaml.safe_load((POC / name).read_text()))
    assert checked.errors == []
    assert all("is not known on this machine" in warning for warning in checked.warnings)


def test_the_command_says_all_problems_and_makes_nothing(project, tmp_path, capsys):
    change(LEAD, role="boss")(project)
    change(SITE_1, org="hospital 1")(project)
    file, out = tmp_path / "project.yml", tmp_path / "kits"
    file.write_text(yaml.safe_dump(project))
    assert main(["provision", str(file), "-o", str(out)]) == 2
    *problems, last = capsys.readouterr().err.splitlines()  # one line each: they were one, with `?` between them
    assert last == f"fedsm: error: {file}: 2 problems, nothing was made"
    assert {line.partition(": ")[0] for line in problems} == {
        "FAIL participant 'site-1'",
        "FAIL participant 'lead@consortium.example.org'",
    }
    assert not out.exists()


@pytest.mark.parametrize("text", [None, "", "[1, 2]", "a: [", "\xff"])
def test_a_file_that_is_no_project_is_one_line(tmp_path, capsys, text):
    file = tmp_path / "project.yml"
    if text is not None:
        file.write_bytes(text.encode("latin-1"))
    assert main(["provision", str(file), "-o", str(tmp_path / "kits")]) == 2
    said = capsys.readouterr().err
    assert str(file) in said
    assert said.count("\n") == 1
