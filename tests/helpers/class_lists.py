"""Which classes a kit lets a job name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

from fedsm.core.components import SERVER_CLASSES, SITE_CLASSES

_CALLS = (
    "fedsm.server.checkpoint.save_file", "fedsm.core.files.write_json", "fedsm.server.forget.Forgetting",
    "fedsm.server.forget.copy_rest", "fedsm.super_model.artefact.save_super_model", "fedsm.client.workers.build_worker",
    "fedsm.server.checkpoint_dirs.remove_earlier", "fedsm.data.cache.SiteCache",
)  # fmt: skip


class KitWorkspace:
    """What FLARE's authorizer asks of a workspace."""

    def __init__(self, kit: Path):
        self._kit = kit

    def get_resources_file_path(self) -> str:
        return str(self._kit / "local" / "resources.json")


def write_default_resources(kit: Path, allowed: Sequence[str] = ()) -> None:
    """The part of FLARE's own `local/resources.json.default` that provisioning changes."""
    (kit / "local").mkdir()
    storage = {"args": {"storage": {"args": {}}}}
    components = [{"id": name, "args": {}} for name in ("job_manager", "resource_manager")]
    default = {"class_allow_list": [*allowed], "components": components, "snapshot_persistor": storage}
    (kit / "local" / "resources.json.default").write_text(json.dumps(default))


def assert_allows_our_jobs_alone(kit: Path, *, server: bool) -> None:
    """A kit allows the classes that our jobs name there, and nothing else of the package."""
    ours, others = (SERVER_CLASSES, SITE_CLASSES) if server else (SITE_CLASSES, SERVER_CLASSES)
    allow = ComponentPathAuthorizer().authorize_component_config
    for path in ours:
        allow({"path": path}, workspace=KitWorkspace(kit))
    for path in (*_CALLS, *others):
        with pytest.raises(UnsafeComponentError):
            allow({"path": path}, workspace=KitWorkspace(kit))
