"""A finished run of seconds: the real controller and sites in this process, as `fedsm run` leaves its folder."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers.federation import Federation
from tests.helpers.small_jobs import SITES, small_settings


def finished_run(folder: Path, data: Path, **given) -> Path:
    """Runs a small job; returns the folder with results.json and super_model/.

    Args:
        folder: scratch folder.
        data: the data root.
        given: settings, see `small_settings`.
    """
    federation = Federation(folder, data, small_settings(**({"rounds": 3} | given)), SITES).run()
    assert federation.panic is None
    (federation.run_folder / "run.json").write_text(json.dumps({"data": str(data)}))
    return federation.run_folder
