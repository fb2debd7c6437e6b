"""`fedsm provision`, with the real `nvflare provision`: what is in the kits, and that they stay what they were."""

import datetime
import json
import shutil
import tempfile
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

from app_fedsm.cli.main import main
from app_fedsm.provisioning.kits import TEMPLATES, fill_site
from app_fedsm.provisioning.provision import Kits, provision
from fedsm.client.site_settings import load_site_settings
from fedsm.core.components import NOT_ALLOWED, SERVER_CLASSES, SITE_CLASSES
from fedsm.core.errors import UserError

POC = Path(__file__).parents[2] / "poc_workspace"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Kits:
    """The kits of poc_workspace/project_localhost.yml."""
    folder = tmp_path_factory.mktemp("consortium")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        return provision(POC / "project_localhost.yml", folder / "kits")


@pytest.fixture
def again(made, tmp_path) -> Path:
    """A copy of the whole workspace, to be changed."""
    shutil.copytree(made.folder.parents[1], tmp_path / "kits")
    return tmp_path / "kits"


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def component(resources: dict, name: str) -> dict:
    return next(c for c in resources["components"] if c["id"] == name)["args"]


def certificate(kit: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(next((kit / "startup").glob("*.crt")).read_bytes())


@pytest.mark.process
def test_a_kit_for_everybody(made):
    assert made.folder.name == "prod_00"
    assert list(made.sites) == ["site-1", "site-2", "site-3"]
    assert "lead@consortium.example.org" in made.users
    for kit in (made.server, *made.sites.values(), *made.users.values()):
        assert (kit / "startup" / "rootCA.pem").is_file()


@pytest.mark.process
@pytest.mark.parametrize("name", ["resources.json", "resources.json.default"])
def test_installed_code_may_run_at_server_and_sites(made, name):
    """The classes that our jobs name, and no others: see `fedsm.core.components`."""
    for kit, ours in ((made.server, SERVER_CLASSES), *((kit, SITE_CLASSES) for kit in made.sites.values())):
        flares = [path for path in DEFAULT_CLASS_ALLOW_LIST if path not in NOT_ALLOWED]
        assert read(kit / "local" / name)["class_allow_list"] == [*flares, *ours]


@pytest.mark.process
def test_a_sites_resources(made):
    resources = read(made.sites["site-1"] / "local" / "resources.json")
    manager = component(resources, "resource_manager")
    assert (manager["num_of_gpus"], manager["mem_per_gpu_in_GiB"]) == (0, 0)
    assert resources["client"]["communication_timeout"] >= 3600
    assert resources["client"]["retry_timeout"] == 30, "FLARE's other settings stay"


@pytest.mark.process
def test_the_server_stores_nothing_in_the_temporary_directory(made):
    resources = read(made.server / "local" / "resources.json")
    jobs = component(resources, "job_manager")["uri_root"]
    snapshots = resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"]
    assert Path(jobs) == made.server.resolve() / "storage" / "jobs"
    assert Path(snapshots) == made.server.resolve() / "storage" / "snapshots"
    assert not any(str(Path(tempfile.gettempdir()) / "nvflare") in text for text in (jobs, snapshots))
    assert made.storage == made.server.resolve() / "storage"
    assert resources["servers"][0]["admin_timeout"] == 60.0


@pytest.mark.process
def test_six_hospitals_a_named_storage_and_no_certificate_that_outlives_the_root(tmp_path):
    project = yaml.safe_load((POC / "project.yml").read_text())
    project["builders"][2]["args"] = {"root_valid_days": 30, "valid_days": 60}
    (tmp_path / "project.yml").write_text(yaml.safe_dump(project))
    kits = provision(tmp_path / "project.yml", tmp_path / "kits")
    assert len(kits.sites) == 6
    assert kits.storage == Path("/var/lib/fedsm")
    assert component(read(kits.server / "local" / "resources.json"), "job_manager")["uri_root"] == "/var/lib/fedsm/jobs"
    root = x509.load_pem_x509_certificate((kits.server / "startup" / "rootCA.pem").read_bytes())
    assert certificate(kits.server).not_valid_after_utc == root.not_valid_after_utc


@pytest.mark.process
def test_certificates_last_for_years(made):
    now = datetime.datetime.now(datetime.UTC)
    for kit in (made.server, *made.sites.values(), *made.users.values()):
        left = certificate(kit).not_valid_after_utc - now
        assert datetime.timedelta(days=1824) < left < datetime.timedelta(days=1826), kit.name
        root = x509.load_pem_x509_certificate((kit / "startup" / "rootCA.pem").read_bytes())
        assert root.not_valid_after_utc - now > datetime.timedelta(days=3649)


@pytest.mark.process
def test_who_may_bring_code(made):
    rights = {name: read(kit / "local" / "authorization.json")["permissions"] for name, kit in made.sites.items()}
    assert rights["site-1"]["lead"]["byoc"] == "any"
    assert {role: r.get("byoc", "none") for role, r in rights["site-3"].items()} == dict.fromkeys(
        rights["site-3"], "none"
    )
    for role in rights["site-1"]:
        with_code, without = dict(rights["site-1"][role]), dict(rights["site-3"][role])
        with_code.pop("byoc", None), without.pop("byoc", None)
        assert with_code == without, "the two policies differ in nothing else"


@pytest.mark.process
def test_who_may_submit_and_who_may_look_into_a_hospital(made):
    rights = read(made.sites["site-1"] / "local" / "authorization.json")["permissions"]
    submit = {role: r.get("submit_job", "none") for role, r in rights.items()}
    assert submit == {"project_admin": "any", "org_admin": "none", "lead": "any", "member": "none"}
    shell = {r.get("shell_commands", "none") for r in rights.values()}
    assert shell == {"o:site", "none"}, "the site's log names its files: people of its own organisation only"


@pytest.mark.process
def test_a_fresh_site_is_told_to_set_its_data_path(made, monkeypatch):
    monkeypatch.delenv("FEDSM_DATA", raising=False)
    kit = made.sites["site-1"]
    with pytest.raises(UserError, match="no data path; write `data:"):
        load_site_settings(kit / "local", kit, "site-1", 1)


@pytest.mark.process
def test_every_line_of_the_site_template_can_be_taken(tmp_path):
    text = (TEMPLATES / "fedsm_site.yaml").read_text()
    keys = (
        "data",
        "cache_dir",
        "cache_budget",
        "state_dir",
        "device",
        "threads",
        "workers",
        "patient_pattern",
        "splits",
        "max_statistics",
        "min_patients",
        "min_sum",
    )
    for key in keys:
        assert f"# {key}: " in text
        text = text.replace(f"# {key}: ", f"{key}: ")
    (tmp_path / "fedsm_site.yaml").write_text(text.replace("device: cuda", "device: cpu"))
    settings = load_site_settings(tmp_path, tmp_path, "site-1", 1)
    assert (settings.data, settings.threads, settings.rules.patient_pattern) == (Path("/data/retina"), 4, r"^(P\d+)_")


@pytest.mark.process
def test_a_second_call_keeps_certificates_and_what_the_sites_wrote(made, again, capsys):
    first = again / "fedsm_localhost" / "prod_00"
    written = first / "site-1" / "local" / "fedsm_site.yaml"
    written.write_text("data: /data/retina\n")
    gpus = first / "site-2" / "local" / "resources.json"
    gpus.write_text(gpus.read_text().replace('"num_of_gpus": 0', '"num_of_gpus": 2'))
    (first / "site-2" / "local" / "custom").mkdir()
    (first / "site-2" / "local" / "custom" / "own.py").write_text("")
    (first / "site-2" / "local" / "resources.json.default").write_text("{}")

    project = yaml.safe_load((POC / "project_localhost.yml").read_text())
    project["participants"].append({"name": "site-4", "type": "client", "org": "hospital_4"})
    (again / "project.yml").write_text(yaml.safe_dump(project))
    assert main(["provision", str(again / "project.yml"), "-o", str(again)]) == 0

    second = again / "fedsm_localhost" / "prod_01"
    for name in ("localhost", *made.sites, *made.users):
        assert certificate(second / name) == certificate(made.folder / name)
    roots = {(second / name / "startup" / "rootCA.pem").read_bytes() for name in ("localhost", "site-4")}
    assert roots == {(made.server / "startup" / "rootCA.pem").read_bytes()}
    assert (second / "site-1" / "local" / "fedsm_site.yaml").read_text() == "data: /data/retina\n"
    assert component(read(second / "site-2" / "local" / "resources.json"), "resource_manager")["num_of_gpus"] == 2
    assert (second / "site-2" / "local" / "custom" / "own.py").is_file()
    assert "class_allow_list" in read(second / "site-2" / "local" / "resources.json.default"), "FLARE's file is anew"
    assert (second / "site-4" / "local" / "fedsm_site.yaml").is_file()
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines() if "->" in line and "need not be sent" not in line] == [
        "site-4"
    ]
    assert "was copied" in said


@pytest.mark.process
def test_host_names_that_the_certificate_lacks_are_refused(again, capsys):
    project = yaml.safe_load((POC / "project_localhost.yml").read_text())
    project["participants"][0]["host_names"] = ["localhost", "10.0.0.7"]
    (again / "project.yml").write_text(yaml.safe_dump(project))
    assert main(["provision", str(again / "project.yml"), "-o", str(again)]) == 2
    assert "certificate of the first call is for 127.0.0.1, localhost, not for 10.0.0.7" in capsys.readouterr().err
    assert not (again / "fedsm_localhost" / "prod_01").exists()


@pytest.mark.process
def test_a_relay_and_studies_come_with_the_second_call(again, capsys):
    """A relay's kit is closed as all are; a site that goes behind it learns the way, and the server the studies."""
    project = yaml.safe_load((POC / "project_localhost.yml").read_text())
    listener = {"default_host": "localhost", "port": 8010, "connection_security": "mtls"}
    relay = {"name": "relay-1", "type": "relay", "org": "hospital_1", "listening_host": listener}
    project["participants"].append(relay)
    project["participants"][1]["connect_to"] = {"name": "relay-1"}
    project["api_version"] = 4
    project["studies"] = {"trial": {"site_orgs": {"hospital_1": ["site-1"]}, "admins": ["lead@consortium.example.org"]}}
    (again / "project.yml").write_text(yaml.safe_dump(project))
    assert main(["provision", str(again / "project.yml"), "-o", str(again)]) == 0
    kits = again / "fedsm_localhost" / "prod_01"
    assert [path for path in [kits / "relay-1", *(kits / "relay-1").rglob("*")] if path.stat().st_mode & 0o077] == []
    assert "umask 077" in (kits / "relay-1" / "startup" / "sub_start.sh").read_text()
    left = certificate(kits / "relay-1").not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert left > datetime.timedelta(days=1824)
    assert read(kits / "relay-1" / "local" / "comm_config.json")["internal"]["resources"]["port"] == 8010
    assert read(kits / "site-1" / "local" / "relay__resources.json")["relay_config"]["address"] == "localhost:8010"
    assert list(read(kits / "localhost" / "local" / "study_registry.json")["studies"]) == ["trial"]
    said = capsys.readouterr().out
    assert "relay-1" in said and "the relay's operator (hospital_1)" in said and "studies: trial" in said

    relay["listening_host"]["port"] = 8011
    project["studies"]["second"] = project["studies"]["trial"]
    (again / "project.yml").write_text(yaml.safe_dump(project))
    assert main(["provision", str(again / "project.yml"), "-o", str(again)]) == 0
    kits = again / "fedsm_localhost" / "prod_02"
    assert read(kits / "site-1" / "local" / "relay__resources.json")["relay_config"]["address"] == "localhost:8011"
    assert set(read(kits / "localhost" / "local" / "study_registry.json")["studies"]) == {"trial", "second"}
    sent = [line for line in capsys.readouterr().out.splitlines() if "changed: send it again" in line]
    assert [line.split()[0] for line in sent] == ["localhost", "site-1", "relay-1"], "the others' kits are as before"


@pytest.mark.process
def test_what_nvflare_refuses_is_said(again, capsys):
    project = yaml.safe_load((POC / "project_localhost.yml").read_text())
    project["participants"][5]["role"] = "member"
    (again / "project.yml").write_text(yaml.safe_dump(project))
    assert main(["provision", str(again / "project.yml"), "-o", str(again)]) == 2
    assert "nvflare provision refused it" in (said := capsys.readouterr().err)
    assert "previous role is lead but is now member" in said


@pytest.mark.process
def test_filling_a_kit_twice_changes_nothing(made, tmp_path):
    kit = tmp_path / "site-1"
    shutil.copytree(made.sites["site-1"], kit)
    before = {p: p.read_bytes() for p in kit.rglob("*") if p.is_file()}
    fill_site(kit)
    assert {p: p.read_bytes() for p in kit.rglob("*") if p.is_file()} == before
