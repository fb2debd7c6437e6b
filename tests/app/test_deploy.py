"""Docker, Kubernetes and Slurm: what `nvflare deploy prepare` makes of our kits and settings. Nothing of it is run."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from nvflare.app_opt.job_launcher.slurm.batch import _render_batch_script
from nvflare.app_opt.job_launcher.slurm.config import JobResources, LaunchPlan, SlurmConfig
from nvflare.app_opt.job_launcher.study_runtime import load_study_runtime_file

from app_fedsm.provisioning.kits import TEMPLATES
from app_fedsm.provisioning.provision import Kits, provision
from fedsm import __version__
from fedsm.core.components import SERVER_CLASSES, SITE_CLASSES
from tests.helpers.kubernetes_fields import unknown_fields

POC = Path(__file__).parents[2] / "poc_workspace"
IMAGE = f"fedsm:{__version__}"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Kits:
    folder = tmp_path_factory.mktemp("consortium")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        kits = provision(POC / "project_localhost.yml", folder / "kits")
    shutil.copyfile(POC / "docker" / "study_runtime.yaml", kits.sites["site-1"] / "local" / "study_runtime.yaml")
    return kits


def prepare(kit: Path, settings: str | Path, out: Path) -> Path:
    command = [sys.executable, "-m", "nvflare.cli", "deploy", "prepare", str(kit)]
    command += ["--config", str(POC / "docker" / settings), "--output", str(out)]  # an absolute path stays one
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def lint(kit: Path, made: Kits) -> None:
    """Every file parses, and none names a folder of this machine; Kubernetes objects have no unknown field."""
    here = (str(made.folder), str(POC.parent), sys.prefix)
    for path in kit.rglob("*"):
        if not path.is_file() or path.suffix in (".crt", ".key", ".pem"):
            continue
        text = path.read_text()
        assert not any(folder in text for folder in here), path
        if path.suffix in (".sh", ".slurm"):
            assert subprocess.run(["bash", "-n", str(path)]).returncode == 0, path
        elif path.suffix == ".json" or path.name.endswith((".json.default", ".json.sample")):
            json.loads(text)
        elif path.suffix == ".yaml" and path.parent.name == "templates":  # Helm's own language around YAML
            plain = "\n".join(line for line in text.splitlines() if not re.match(r"\s*{{", line))
            objects = [o for o in yaml.safe_load_all(re.sub(r"{{.*?}}", "x", plain)) if o]
            assert objects and [problem for o in objects for problem in unknown_fields(o)] == [], path
        elif path.suffix == ".yaml":
            yaml.safe_load(text)


@pytest.mark.parametrize("name", ["server", "site-1"])
def test_docker(made, tmp_path, name):
    kit = prepare(made.sites.get(name, made.server), "docker.yaml", tmp_path / "out")
    lint(kit, made)
    script = (kit / "startup" / "start_docker.sh").read_text()
    assert f'DOCKER_IMAGE=${{NVFL_P_IMAGE:-"{IMAGE}"}}' in script
    resources = json.loads((kit / "local" / "resources.json.default").read_text())
    ours = SITE_CLASSES if name == "site-1" else SERVER_CLASSES
    assert set(ours) < set(resources["class_allow_list"]), "prepare deletes resources.json and takes the .default"
    assert "docker_launcher" in {c["id"] for c in resources["components"]}
    assert json.loads((kit / "local" / "authorization.json").read_text())["permissions"]["lead"]["submit_job"] == "any"
    if name == "site-1":
        assert (kit / "local" / "fedsm_site.yaml").read_text() == (TEMPLATES / "fedsm_site.yaml").read_text()
        assert resources["client"]["communication_timeout"] >= 3600
    else:
        manager = next(c for c in resources["components"] if c["id"] == "job_manager")
        assert manager["args"]["uri_root"].startswith("/var/tmp/nvflare/workspace/"), "inside the mounted kit"


@pytest.mark.parametrize("name", ["server", "site-1"])
def test_kubernetes(made, tmp_path, name):
    kit = prepare(made.sites.get(name, made.server), "k8s.yaml", tmp_path / "out")
    lint(kit, made)
    values = yaml.safe_load((kit / "helm_chart" / "values.yaml").read_text())
    assert f"{values['image']['repository']}:{values['image']['tag']}" == IMAGE
    assert values["command"] == ["/usr/local/bin/python3"]
    resources = json.loads((kit / "local" / "resources.json.default").read_text())
    assert set(SITE_CLASSES if name == "site-1" else SERVER_CLASSES) < set(resources["class_allow_list"])
    launcher = next(c for c in resources["components"] if c["id"] == "k8s_launcher")
    assert launcher["args"]["namespace"] == yaml.safe_load((POC / "docker" / "k8s.yaml").read_text())["namespace"]


@pytest.mark.parametrize("name", ["server", "site-1"])
def test_slurm(made, tmp_path, name):
    """The prepared kit names its own folder, which the nodes share; so it is prepared where no other path is in it."""
    settings = yaml.safe_load((POC / "docker" / "slurm.yaml").read_text())
    if name == "server":
        del settings["parent"]  # as the file says
    (tmp_path / "slurm.yaml").write_text(yaml.safe_dump(settings))
    kit = prepare(made.sites.get(name, made.server), tmp_path / "slurm.yaml", tmp_path / "out")
    lint(kit, made)
    assert kit.stat().st_mode & 0o777 == 0o700
    assert (kit / "startup" / "parent.slurm").exists() == (name == "site-1")
    assert "umask 077" in (kit / "startup" / "sub_start.sh").read_text(), "what start_slurm.sh calls"
    resources = json.loads((kit / "local" / "resources.json.default").read_text())
    assert set(SITE_CLASSES if name == "site-1" else SERVER_CLASSES) < set(resources["class_allow_list"])
    arguments = next(c for c in resources["components"] if c["id"] == "slurm_launcher")["args"]
    assert arguments["workspace_path"] == str(kit)
    script = batch_script(arguments, name)
    assert arguments["python_path"] in script and settings["job_launcher"]["setup"] in script
    (tmp_path / "batch.sh").write_text(script)
    assert subprocess.run(["bash", "-n", str(tmp_path / "batch.sh")]).returncode == 0


def batch_script(arguments: dict, site: str) -> str:
    """What FLARE's launcher would hand to `sbatch` for a job."""
    config = SlurmConfig(**arguments)
    plan = LaunchPlan(
        job_id="job", site_name=site, run_dir=f"{config.workspace_path}/job", exe_module="nvflare.worker",
        module_args=("-m", config.workspace_path), resources=JobResources(gpus_per_node=1), study_env={},
        directives=config.sbatch_directives, sandbox=config.sandbox, image=None, setup=config.setup,
        study_secret_env={}, mounts=(), python_path=config.python_path, python_env="", forward_env=(),
    )  # fmt: skip
    return _render_batch_script(plan, plan.run_dir, config)[0]


def test_a_misspelt_field_of_a_kubernetes_object_is_found():
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}
    assert unknown_fields(service | {"spec": {"ports": [{"port": 1}]}}) == []
    assert unknown_fields(service | {"spec": {"ports": [{"prot": 1}]}}) == [".spec.ports.prot"]
    assert unknown_fields(service | {"kind": "Servise"}) == ["no kind Servise of v1"]
    assert unknown_fields(service | {"metadata": {}}) == ["metadata.name is missing"]


@pytest.mark.parametrize("launcher", ["docker", "k8s"])
def test_a_job_container_sees_the_data(launcher):
    study = load_study_runtime_file(str(POC / "docker" / "study_runtime.yaml"), launcher)["default"]
    (mount,) = study.datasets
    assert mount.mount_path == "/data/default/training"
    assert "data: /data/default/training" in (POC / "docker" / "study_runtime.yaml").read_text()


def test_the_image_has_our_wheel_and_our_pins():
    lines = (POC / "docker" / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("FROM ")] == ["FROM python:3.11-slim"]
    assert any(line.startswith("COPY dist/fedsm-*.whl") for line in lines)
    assert any(line.startswith("COPY requirements.txt") for line in lines)
    for name in ("docker.yaml", "k8s.yaml"):
        settings = yaml.safe_load((POC / "docker" / name).read_text())
        assert settings["parent"]["docker_image"] == IMAGE
