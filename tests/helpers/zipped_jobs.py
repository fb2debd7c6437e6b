"""A job as FLARE receives it."""

from __future__ import annotations

import io
import json
import zipfile


def zipped_job(meta: dict) -> bytes:
    """A job `job` without any code, with more in its meta than it needs."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        needed = {"deploy_map": {"app": ["@ALL"]}, "resource_spec": {}, "min_clients": 1}
        archive.writestr("job/meta.json", json.dumps(needed | meta))
        archive.writestr("job/app/config/", "")
        for side in ("server", "client"):
            archive.writestr(f"job/app/config/config_fed_{side}.json", "{}")
    return content.getvalue()
