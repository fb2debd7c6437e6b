"""Makes a simulator workspace ready for a FedSM job: where the data are, and that our classes may run.

FLARE's simulator copies `<workspace>/local/` to every site. Since 2.9 it enforces the class allow list there as a
hospital does, and without one it lets only FLARE's own classes run.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import yaml

from fedsm.client.site_settings import FILE_NAME
from fedsm.core.components import SERVER_CLASSES, SITE_CLASSES


def prepare_workspace(
    workspace: Path, root: Path, threads: int, state: Path | None = None, cache: Path | None = None
) -> Path:
    """Writes `local/fedsm_site.yaml` and `local/resources.json`.

    Args:
        workspace: the simulator's workspace (`-w`).
        root: the data root, with one folder a site.
        threads: sites that run at the same time; they share the machine's cores.
        state: where the sites keep Adam's moments; default: their workspaces, which the simulator's next start wipes.
        cache: where they keep decoded images; default: beside the state.

    Returns:
        the `local/` folder.
    """
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    local = workspace / "local"
    local.mkdir(parents=True, exist_ok=True)
    site = {"data_root": str(root.resolve()), "threads": max(1, (os.cpu_count() or 1) // threads)}
    if state:
        site["state_dir"] = str(state.resolve())
    if cache:
        site["cache_dir"] = str(cache.resolve())
    (local / FILE_NAME).write_text(yaml.safe_dump(site))
    allowed = {"format_version": 2, "class_allow_list": [*DEFAULT_CLASS_ALLOW_LIST, *SERVER_CLASSES, *SITE_CLASSES]}
    (local / "resources.json").write_text(json.dumps(allowed, indent=1))
    return local
