"""Workarounds in `app_fedsm.provisioning`: what `nvflare provision` makes of a project, and `nvflare poc` without one.

Symptoms, FLARE 2.9.0:
- `project_check.py`: a misspelt key is taken in silence, and the port is FLARE's default.
- `kits.py`, `close_kit`, and `app_fedsm.federation.poc`: a project's state holds the key of the root and of everybody,
  and the kits' folders hold what FLARE will write; others of the machine may read both.
- `kits.py`, storage: jobs and snapshots lie in the system's temporary directory, which a restart wipes.
- `kit/authorization.json`: the project admin may run shell commands at every hospital.
- `kits.py`, `.default`: `nvflare deploy prepare` takes `resources.json.default` and deletes `resources.json`.
- `kit/site_resources.yaml`: a kit says nothing of the 300 s of `test_long_results.py`.
With the workarounds: `tests/app/test_provision.py`, `tests/app/test_project_check.py`, `tests/app/test_deploy.py` and
`tests/attacks/test_file_modes.py`.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nvflare.fuel.sec.authz import Authorizer, AuthzContext, Person
from nvflare.security.security import COMMAND_CATEGORIES

pytestmark = pytest.mark.process

PROJECT = """api_version: 3
name: check
participants:
  - {name: localhost, type: server, org: lead, fed_lern_port: 9102, host_names: [localhost]}
  - {name: site-1, type: client, org: hospital}
  - {name: admin@lead.org, type: admin, org: lead, role: project_admin}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {config_folder: config, scheme: http}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""
DOCKER = "runtime: docker\nparent: {docker_image: 'image:1'}\n"


def nvflare(folder: Path, *words: str) -> None:
    environment = os.environ | {"HOME": str(folder), "NVFLARE_POC_WORKSPACE": str(folder / "poc")}
    command = [sys.executable, "-m", "nvflare.cli", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, umask=0o022
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """What `nvflare provision` makes, with the usual umask: the folder with `state` and `prod_00`."""
    folder = tmp_path_factory.mktemp("consortium")
    (folder / "project.yml").write_text(PROJECT)
    nvflare(folder, "provision", "-p", "project.yml", "-w", "ws")
    return folder / "ws" / "check"


@pytest.fixture
def kits(made) -> Path:
    return made / "prod_00"


def test_a_misspelt_port_is_flares_default_and_nobody_says_so(kits):
    (server,) = json.loads((kits / "localhost/startup/fed_server.json").read_text())["servers"]
    assert server["service"]["target"] == "localhost:8002"


def assert_others_may_read(state: Path) -> None:
    assert "PRIVATE KEY" in state.read_text()
    assert state.stat().st_mode & 0o004 and all(folder.stat().st_mode & 0o001 for folder in state.parents[:2])


def test_others_may_read_the_key_of_the_root(made):
    assert_others_may_read(made / "state" / "cert.json")


def test_others_may_read_the_key_of_a_pocs_root(tmp_path):
    nvflare(tmp_path, "poc", "prepare", "-n", "1", "--force")
    assert_others_may_read(next(tmp_path.glob("poc/*/state/cert.json")))


def test_others_may_look_into_a_kit_and_its_scripts_set_no_umask(kits):
    for name in ("localhost", "site-1"):
        assert (kits / name).stat().st_mode & 0o005
        assert not any("umask" in script.read_text() for script in (kits / name / "startup").glob("*.sh"))


def test_jobs_lie_in_the_temporary_directory(kits):
    resources = json.loads((kits / "localhost/local/resources.json.default").read_text())
    (manager,) = [c for c in resources["components"] if c["id"] == "job_manager"]
    snapshots = resources["snapshot_persistor"]["args"]["storage"]["args"]
    for folder in (manager["args"]["uri_root"], snapshots["root_dir"]):
        assert Path(folder).is_relative_to("/tmp")


def test_a_site_is_not_told_how_long_to_wait_for_a_large_result(kits):
    resources = json.loads((kits / "site-1/local/resources.json.default").read_text())
    assert "communication_timeout" not in resources["client"]
    server = json.loads((kits / "localhost/local/resources.json.default").read_text())
    assert server["servers"][0]["admin_timeout"] == 10.0


@pytest.mark.parametrize("command", ["cat", "grep", "ls"])
def test_the_project_admin_may_use_the_shell_of_another_organisation(kits, command):
    authorizer = Authorizer("hospital", COMMAND_CATEGORIES)
    problem = authorizer.load_policy(json.loads((kits / "site-1/local/authorization.json.default").read_text()))
    assert not problem
    admin = Person("admin@lead.org", "lead", "project_admin")
    assert authorizer.authorize(AuthzContext(command, admin)) == (True, "")


def test_deploy_prepare_deletes_the_sites_own_resources(kits, tmp_path):
    kit = shutil.copytree(kits / "site-1", tmp_path / "site-1")
    resources = json.loads((kit / "local/resources.json.default").read_text())
    resources["class_allow_list"].append("fedsm.flare.executor.FedSMExecutor")
    (kit / "local" / "resources.json").write_text(json.dumps(resources))
    (tmp_path / "docker.yaml").write_text(DOCKER)
    nvflare(tmp_path, "deploy", "prepare", str(kit), "--config", "docker.yaml", "--output", "out")
    assert not (tmp_path / "out/local/resources.json").exists()
    assert "fedsm" not in (tmp_path / "out/local/resources.json.default").read_text()
