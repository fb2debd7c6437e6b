"""What a site's training has cost in privacy so far, over all jobs: a list in its state folder.

`dp_ledger.json` holds for each run and each kind of step how many noisy steps were planned to leave the site, and what
one of them cost. A round's steps are added before its first batch, and the file is on the disk before training begins:
a process that is killed in the round, or later, forgets nothing, and what was added is never taken back. Two jobs at
once wait for each other, so that the rest of a budget is spent once. Nothing in a job can name, shorten or move it.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedsm.core.errors import UserError
from fedsm.core.files import write_json
from fedsm.core.limits import is_number, is_whole
from fedsm.core.privacy_loss import NoisySteps
from fedsm.selectors.releases import locked

FILE_NAME = "dp_ledger.json"
_MOST_STEPS = 10**12
_MOST_NOISE = 1e9

log = logging.getLogger(__name__)

History = list[tuple[str, NoisySteps]]  # run -> steps


class PrivacyLedger:
    """The list of one site.

    Args:
        folder: the site's state folder.
        site: named in errors.
    """

    def __init__(self, folder: Path, site: str):
        self.path = folder / FILE_NAME
        self._site = site

    def reserve(self, run: str, steps: NoisySteps, check: Callable[[History], None]) -> History:
        """Adds steps of a run, before they are taken.

        Args:
            run: the run's id, by which the job's own share is told from the others'.
            steps: what the run is about to do.
            check: called with the list as it would be; what it raises leaves the list as it was.

        Returns:
            the list with these steps.

        Raises:
            UserError: the list cannot be read, locked or written; or as `check` raised it.
        """
        with locked(self.path.with_suffix(".lock"), self._site):
            entries = self._read()
            same = next((e for e in entries if _key(e) == (run, steps.noise, steps.rate)), None)
            if same is None:
                same = {"run": run, "noise_multiplier": steps.noise, "sample_rate": steps.rate, "steps": 0}
                entries.append(same)
            same["steps"] += steps.count
            same["when"] = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            history = _history(entries)
            check(history)
            self._write(entries)
        return history

    def history(self) -> History:
        """The list as it is.

        Raises:
            UserError: it cannot be read.
        """
        return _history(self._read())

    def _read(self) -> list[dict[str, Any]]:
        try:
            entries = json.loads(self.path.read_text(encoding="utf-8"))["entries"]
            if not isinstance(entries, list) or not all(map(_is_entry, entries)):
                raise ValueError("no list of noisy steps")
            return entries
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
            raise UserError(
                f"cannot be read ({' '.join(str(e).split())})",
                site=self._site,
                file=self.path,
                remedy="restore it from a backup: it says how much of its privacy budget the site has spent",
                public="the site's privacy ledger cannot be read: a person there must restore it",
            ) from e

    def _write(self, entries: list[dict[str, Any]]) -> None:
        try:
            write_json(self.path, {"entries": entries})
            folder = os.open(self.path.parent, os.O_RDONLY)  # the rename itself, against a power cut
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as e:
            raise UserError(
                f"cannot be written ({e.strerror or e}), so nothing is trained",
                site=self._site,
                file=self.path,
                remedy="make room, or set another state_dir in fedsm_site.yaml and move the file there",
                public="the site cannot write its privacy ledger, so it trains nothing",
            ) from e


def _key(entry: dict[str, Any]) -> tuple[str, float, float]:
    return entry["run"], entry["noise_multiplier"], entry["sample_rate"]


def _history(entries: list[dict[str, Any]]) -> History:
    return [(e["run"], NoisySteps(float(e["noise_multiplier"]), float(e["sample_rate"]), e["steps"])) for e in entries]


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("run"), str)
        and is_number(entry.get("noise_multiplier"), 1e-9, _MOST_NOISE)
        and is_number(entry.get("sample_rate"), 1e-12, 1)
        and is_whole(entry.get("steps"), 0, _MOST_STEPS)
    )
