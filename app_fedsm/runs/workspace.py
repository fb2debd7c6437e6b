"""Prepares a simulator workspace for a FedSM job: writes where the data are, and allows our classes.

FLARE's simulator copies `<workspace>/local/` to every site. Since 2.9 it enforces the class allow list there as a
hospital does, and without one it lets only FLARE's own classes run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import runpy
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from fedsm.core.components import NOT_ALLOWED, SERVER_CLASSES, SITE_CLASSES
from fedsm.core.errors import UserError

SITE_FILE = "fedsm_site.yaml"  # `fedsm.client.site_settings.FILE_NAME`, without its torch; a test holds them in step


def prepare_workspace(
    workspace: Path, root: Path, threads: int, state: Path | None = None, cache: Path | None = None
) -> Path:
    """Writes `local/fedsm_site.yaml` and `local/resources.json`.

    Args:
        workspace: the simulator's workspace (`-w`).
        root: the data root, with one folder per site.
        threads: sites that run at the same time; they share the machine's cores.
        state: where the sites keep Adam's moments; default: their workspaces, which the simulator's next start wipes.
        cache: where they keep decoded images; default: beside the state.

    Returns:
        the `local/` folder.
    """
    local = workspace / "local"
    local.mkdir(parents=True, exist_ok=True)
    site = {"data_root": str(root.resolve()), "threads": max(1, (os.cpu_count() or 1) // threads)}
    if state:
        site["state_dir"] = str(state.resolve())
    if cache:
        site["cache_dir"] = str(cache.resolve())
    (local / SITE_FILE).write_text(yaml.safe_dump(site))
    flares = [name for name in _flare_classes() if name not in NOT_ALLOWED]
    allowed = {"format_version": 2, "class_allow_list": [*flares, *SERVER_CLASSES, *SITE_CLASSES]}
    (local / "resources.json").write_text(json.dumps(allowed, indent=1))
    return local


def _flare_classes() -> tuple[str, ...]:
    """FLARE's own list of classes that jobs may name, from its file alone: importing nvflare takes seconds."""
    spec = importlib.util.find_spec("nvflare")
    if spec is None or spec.origin is None:
        raise UserError("nvflare is not installed in this Python", remedy="pip install nvflare")
    policy = Path(spec.origin).parent / "app_common" / "default_component_policy.py"
    return runpy.run_path(str(policy))["DEFAULT_CLASS_ALLOW_LIST"]


def is_plain(path: Path | str) -> bool:
    """Whether FLARE's simulator can work in a path: it splits the commands of its workers at blanks (2.9)."""
    try:
        return shlex.split(str(path)) == [str(path)]
    except ValueError:  # a single quotation mark
        return False


@contextlib.contextmanager
def plain_path(workspace: Path) -> Iterator[Path]:
    """A path to a workspace that FLARE's simulator can use.

    Where the workspace's own path has blanks or quotation marks, a temporary link without them is used.

    Raises:
        UserError: the temporary folder or Python itself has such a path.
    """
    if not is_plain(sys.executable):
        raise UserError(
            f"FLARE's simulator cannot start {sys.executable}", remedy="move Python to a path without blanks"
        )
    if is_plain(workspace):
        yield workspace
        return
    with tempfile.TemporaryDirectory(prefix="fedsm_") as folder:
        link = Path(folder) / "run"  # to the folder above: the simulator removes its workspace, and no link
        if not is_plain(link / workspace.name):
            raise UserError(f"FLARE's simulator cannot work in {workspace}", remedy="choose an --out without blanks")
        link.symlink_to(workspace.parent, target_is_directory=True)
        yield link / workspace.name
