"""What FedSM adds to a startup kit: the files of `app_fedsm/provisioning/kit/`, put into the kit's `local/` folder.

A file without `.default` or `.sample` at its end belongs to the site: FLARE prefers it, and we never write over it.
`resources.json.default` gets the same content, because `nvflare deploy prepare` (Docker, Kubernetes) uses that one and
deletes `resources.json`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from importlib.resources import files
from pathlib import Path

import yaml

from fedsm.client.site_settings import FILE_NAME
from fedsm.core.components import JOB_ID_GUARD, NOT_ALLOWED, SERVER_CLASSES, SITE_CLASSES
from fedsm.core.private_files import close_to_others

TEMPLATES = Path(str(files("app_fedsm.provisioning") / "kit"))
AUTHORIZATION, NO_BYOC = "authorization.json", "authorization.no_byoc.json"
RESOURCES = "resources.json"
_UMASK = "umask 077  # what FLARE keeps here holds weights: jobs, results, logs\n"
_NOT_THE_SITES = (".default", ".sample")  # FLARE's own and our examples: written anew each time


def fill_site(kit: Path, byoc: bool = True) -> None:
    """Makes a site's kit ready for FedSM jobs; files that the site has already stay.

    Args:
        kit: the kit's folder, as `nvflare provision` or `nvflare poc prepare` left it.
        byoc: whether jobs may bring their code.
    """
    local = kit / "local"
    _write_resources(local, _changed_resources(local, "site_resources.yaml", SITE_CLASSES, byoc))
    _put(local, AUTHORIZATION if byoc else NO_BYOC, AUTHORIZATION)
    _put(local, NO_BYOC, f"{NO_BYOC}.sample")
    _put(local, "privacy.json", "privacy.json.sample")
    _put(local, FILE_NAME, FILE_NAME)


def fill_server(kit: Path, storage: Path, byoc: bool = True) -> Path:
    """Makes the server's kit ready for FedSM jobs; files that are there already stay.

    Args:
        kit: the kit's folder.
        storage: where jobs, results and snapshots are kept; FLARE's own choice is the temporary directory.
        byoc: whether jobs may bring their code.

    Returns:
        the storage that is used: another one if `resources.json` was there already.
    """
    local = kit / "local"
    resources = _changed_resources(local, "server_resources.yaml", SERVER_CLASSES, byoc)
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
    _component(resources, "job_manager")["args"]["uri_root"] = str(storage / "jobs")
    _write_resources(local, resources)
    _put(local, AUTHORIZATION if byoc else NO_BYOC, AUTHORIZATION)
    _put(local, NO_BYOC, f"{NO_BYOC}.sample")
    used = json.loads((local / RESOURCES).read_text(encoding="utf-8"))
    return Path(_component(used, "job_manager")["args"]["uri_root"]).parent


def keep_local(earlier: Path, kit: Path) -> None:
    """Copies the site's own files from an earlier kit's `local/` to a new kit.

    What FLARE has just made from the project file stays new: the studies, the way to a relay, the relay's listener. A
    site may have added settings to those files; these are kept.
    """
    for path in sorted((earlier / "local").rglob("*")):
        if path.is_file() and path.suffix not in _NOT_THE_SITES and "__pycache__" not in path.parts:
            name = path.relative_to(earlier)
            (kit / name).parent.mkdir(parents=True, exist_ok=True)
            if not (kit / name).exists():
                shutil.copy2(path, kit / name)
                continue
            with contextlib.suppress(ValueError, TypeError):  # an earlier file that is no JSON object
                merged = json.loads(path.read_text(encoding="utf-8")) | json.loads((kit / name).read_text())
                (kit / name).write_text(json.dumps(merged, indent=2) + "\n", encoding="utf-8")


def close_kit(kit: Path) -> None:
    """Makes a participant's kit private: its key, and all that FLARE writes when started with the kit's scripts.

    FLARE itself writes with the umask of the user who starts it, so the scripts set one. They are not changed where
    FLARE signed them (`signature.json`, in kits for encrypted or confidential computing).
    """
    startup = kit / "startup"
    for script in () if (startup / "signature.json").exists() else startup.glob("*.sh"):
        first, _, rest = script.read_text(encoding="utf-8").partition("\n")
        if first.startswith("#!") and not rest.startswith(_UMASK):
            script.write_text(f"{first}\n{_UMASK}{rest}", encoding="utf-8")
    close_to_others(kit)


def _put(local: Path, template: str, name: str) -> None:
    if name.endswith(_NOT_THE_SITES) or not (local / name).exists():
        shutil.copyfile(TEMPLATES / template, local / name)


def _changed_resources(local: Path, changes: str, classes: tuple[str, ...], byoc: bool) -> dict:
    """FLARE's `resources.json.default` with our changes, and our classes allowed for FLARE's that take any path.

    The guard needs the installed package, which a kit for jobs that bring their code may not have. There it would be
    of no use: code can do anything.
    """
    resources = json.loads((local / f"{RESOURCES}.default").read_text(encoding="utf-8"))
    wanted = yaml.safe_load((TEMPLATES / changes).read_text(encoding="utf-8"))
    allowed = [name for name in resources["class_allow_list"] if name not in NOT_ALLOWED]
    resources["class_allow_list"] = allowed + [name for name in classes if name not in allowed]
    for name, args in wanted.get("components", {}).items():
        _component(resources, name)["args"].update(args)
    if not byoc and JOB_ID_GUARD not in resources["components"]:
        resources["components"].append(JOB_ID_GUARD)
    resources.get("client", {}).update(wanted.get("client", {}))
    for server in resources.get("servers", []):
        server.update(wanted.get("servers", {}))
    return resources


def _component(resources: dict, name: str) -> dict:
    return next(c for c in resources["components"] if c["id"] == name)


def _write_resources(local: Path, resources: dict) -> None:
    text = json.dumps(resources, indent=2) + "\n"
    (local / f"{RESOURCES}.default").write_text(text, encoding="utf-8")
    if not (local / RESOURCES).exists():
        (local / RESOURCES).write_text(text, encoding="utf-8")
