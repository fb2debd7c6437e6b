"""Reads the folders of runs for the report, and gives each run a short name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsm.core.errors import UserError
from fedsm.core.names import check_run_id, check_site_names
from fedsm.core.plain_json import read_json
from fedsm.core.settings import JobSettings
from fedsm.core.text import printable
from fedsm.evaluation.row_scores import FILE as IMAGE_SCORES
from fedsm.evaluation.row_scores import Sites, from_plain

CENTRALIZED = "centralized"


@dataclass
class Run:
    """A finished run.

    Attributes:
        name: the end of its folder's path, long enough to tell the runs apart.
        folder: its folder; never shown.
        results: its results.json.
        data: the data root that it was trained on, if this machine still has it.
    """

    name: str
    folder: Path
    results: dict
    data: Path | None

    @property
    def sites(self) -> list[str]:
        return self.results["sites"]

    @property
    def settings(self) -> JobSettings:
        return JobSettings.from_dict(self.results["settings"])

    @property
    def is_centralized(self) -> bool:
        return self.results["method"] == CENTRALIZED

    def history(self) -> list[dict]:
        """One row per round; for a centralized run one row per epoch, with only a score."""
        rows = self.results["validation"]["history"]
        if self.is_centralized:
            return [{"round": i + 1, "score": {"global": score}} for i, score in enumerate(rows)]
        return rows

    def stored_evaluation(self) -> dict | None:
        """The evaluation.json in the run's folder (`fedsm evaluate RUN DATA -o RUN`), if it belongs to this run."""
        try:
            evaluation = _read(self.folder / "evaluation.json")
            same = evaluation["super_model"]["run_id"] == self.results.get("run_id") and evaluation["part"] == "test"
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return evaluation if same else None

    def stored_rows(self) -> Sites | None:
        """The run's Dice of single images (written by `fedsm evaluate RUN DATA -o RUN` and by experiments), if any."""
        try:
            return from_plain(read_json(self.folder / IMAGE_SCORES), self.results.get("run_id"))
        except (OSError, ValueError):
            return None


def open_runs(folders: list[Path], data: Path | None) -> list[Run]:
    """Reads the runs.

    Args:
        folders: the runs' folders.
        data: the data root; None: that of each run.

    Raises:
        UserError: a folder without results, or given twice.
    """
    folders = [folder.resolve() for folder in folders]
    if len(set(folders)) < len(folders):
        raise UserError(
            f"{next(f for f in folders if folders.count(f) > 1)} is given twice", remedy="name each run once"
        )
    return [_open(folder, name, data) for folder, name in zip(folders, short_names(folders), strict=True)]


def short_names(folders: list[Path]) -> list[str]:
    """The shortest ends of the paths that differ, without a common last part (`A/seed-0`, `B/seed-0`: A, B)."""
    while len(folders) > 1 and len({f.name for f in folders}) == 1:
        folders = [f.parent for f in folders]
    for length in range(1, max(len(f.parts) for f in folders)):
        names = ["/".join(f.parts[-length:]) for f in folders]
        if len(set(names)) == len(names):
            break
    return names


def _read(path: Path) -> dict:
    """JSON whose texts can be shown: no control characters, and nothing that UTF-8 cannot hold."""

    def shown(value: Any) -> Any:
        if isinstance(value, dict):
            return {printable(key): shown(item) for key, item in value.items()}
        if isinstance(value, list):
            return [shown(item) for item in value]
        return printable(value) if isinstance(value, str) else value

    return shown(read_json(path))


def _open(folder: Path, name: str, data: Path | None) -> Run:
    try:
        results = _read(folder / "results.json")
        results["test"], results["validation"]["history"], results["sites"], results["settings"]  # noqa: B018
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UserError(
            f"{folder} holds no finished run (results.json: {e})", remedy="name a folder that `fedsm run` wrote"
        ) from e
    check_site_names(results["sites"], str(folder / "results.json"))
    if results.get("run_id") is not None:
        check_run_id(results["run_id"], str(folder / "results.json"))
    if data is None:
        try:
            data = Path(read_json(folder / "run.json")["data"])
        except (OSError, ValueError, KeyError, TypeError):
            data = None
    return Run(printable(name), folder, results, data if data and data.is_dir() else None)
