"""What a site must remember between rounds, on its own disk.

One file per round: `<state_dir>/<run id>/round_000007.safetensors` holds Adam's moments as they were after round 7, and
with another `wire` than float32 what rounding has left out of the updates so far (`core/wire.py`). The last two rounds
are kept, and those that the server keeps to go back to (`fedsm.core.rounds`), so that a server that goes on from an
earlier checkpoint finds the state that belongs to it.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedsm.core.errors import UserError
from fedsm.core.files import replacing
from fedsm.core.names import below, check_run_id
from fedsm.core.rounds import rounds_to_keep
from fedsm.core.tensors import Tensors
from fedsm.core.text import one_line

_KEEP = 2
_NAME = re.compile(r"round_(\d+)\.safetensors")


class LocalState:
    """The state of one run at one site.

    Args:
        folder: the site's `state_dir`.
        run_id: the run's name; a resumed run has the same one.

    Raises:
        UserError: no run id, or a link that leads out of the folder.
    """

    def __init__(self, folder: Path, run_id: str):
        self._folder = below(folder, folder / check_run_id(run_id, "the server's task"))

    def _files(self) -> dict[int, Path]:
        found = {_NAME.fullmatch(path.name): path for path in self._folder.glob("round_*.safetensors")}
        return {int(name[1]): path for name, path in found.items() if name}  # without copies that a person made

    def load(self, before: int) -> tuple[int, dict[str, Tensors]]:
        """The newest state of a round before `before`.

        Returns:
            that round's number and track name -> its state; (0, {}) where there is none, or none that can be read.
        """
        for number, path in sorted(self._files().items(), reverse=True):
            if number >= before:
                continue
            try:
                tensors = load_file(path)
            except (OSError, SafetensorError):
                continue  # killed while the disk was full: the round before it is better than nothing
            state: dict[str, Tensors] = {}
            for key, value in tensors.items():
                track, _, name = key.partition("/")
                state.setdefault(track, {})[name] = value
            return number, state
        return 0, {}

    def save(self, number: int, state: dict[str, Tensors]) -> None:
        """Writes the state after a round, whole or not at all; drops older rounds, and rounds after a rollback.

        Raises:
            UserError: the disk is full or read-only. What was there is as it was.
        """
        try:
            self._save(number, state)
        except (OSError, SafetensorError) as e:
            message = "the site cannot write its state: its disk is full or read-only"
            raise UserError(
                f"{self._path(number)} cannot be written ({one_line(e)}), so the round is lost and the state of the one"
                " before is kept",
                remedy="make room, or set another state_dir in fedsm_site.yaml",
                public=message,
            ) from e

    def _path(self, number: int) -> Path:
        return self._folder / f"round_{number:06d}.safetensors"

    def _save(self, number: int, state: dict[str, Tensors]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        flat = {f"{t}/{k}": v.contiguous() for t, tensors in state.items() for k, v in tensors.items()}
        with replacing(self._path(number)) as partial:
            save_file(flat or {"empty/empty": torch.zeros(0)}, partial)
        files = self._files()
        keep = rounds_to_keep(files, number, _KEEP)  # by count: a site may have missed rounds
        for other, path in files.items():
            if other not in keep:
                path.unlink(missing_ok=True)
