"""The server's checkpoints: each is written whole or not at all.

    checkpoints/
      round_000007.json            what the run was after round 7, and which files hold its tensors
      weights/r000007.global.safetensors, r000007.personal.site-1.safetensors, ...

Weight files are written first and never changed; the JSON that names them is put in place last, in one rename. So
whenever the process is killed, the newest JSON is complete. The best model of a track is a weight file of an earlier
round that stays because it is named. `fedsm.core.rounds` decides which rounds stay: the newest, and one from before
the norm guard's window, to go back to (`--from-round`).

A network that is what it was after the round before gets another name for the file of that round (a hard link), and so
does one that is in a file already (`core/model_store.py`). It then takes no room and no writing.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from fedsm.core.errors import UserError
from fedsm.core.files import PARTIAL, replacing, write_json
from fedsm.core.mapped import map_tensors
from fedsm.core.model_store import FromFile, link_or_copy, stored
from fedsm.core.names import below
from fedsm.core.plain_json import read_json
from fedsm.core.rounds import rounds_to_keep
from fedsm.core.tensors import Tensors
from fedsm.server.checkpoint_check import check_state

FOLDER = "checkpoints"


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: `checkpoints/` of the run.
        keep: how many of the newest rounds stay.
    """

    def __init__(self, folder: Path, keep: int = 2):
        self.folder = folder
        self._weights = folder / "weights"
        self._keep = keep
        self._last: dict[str, str] = {}  # stem -> its file of the last checkpoint that was written

    def save(self, number: int, files: dict[str, Tensors], state: dict) -> None:
        """Writes the state after round `number` and drops what is no longer needed.

        Args:
            number: the round.
            files: stem -> tensors, of all tracks.
            state: plain values; `state["best"]` maps a model to `{"file", "round", "score"}`.

        Raises:
            UserError: it cannot be written; the last good one is untouched.
        """
        try:
            self._weights.mkdir(parents=True, exist_ok=True)
            names = {stem: self.file_name(number, stem) for stem in files}
            for stem, tensors in files.items():
                self._save(names[stem], tensors, self._last.get(stem))
            write_json(self._manifest(number), {"round": number, "files": names} | state)
        except (OSError, SafetensorError) as e:
            self._clean(self._manifests())  # half a checkpoint would only take space on a full disk
            last = self._manifests()[-1:]
            kept = f"the last good one is {last[0]}" if last else "there is none yet"
            raise UserError(
                f"the checkpoint of round {number} cannot be written ({e}), {kept}", remedy="make room"
            ) from e
        self._last = names
        self._prune(number)

    def _save(self, name: str, tensors: Tensors, last: str | None) -> None:
        """Writes one network, or links the file that holds it already."""
        if (model := stored(tensors)) is not None:
            same: Path | None = model.path
        else:
            same = self._weights / last if last and last != name and _holds(self._weights / last, tensors) else None
        if same is None:
            self.save_weights(name, tensors)
            return
        with replacing(self._weights / name) as partial:
            link_or_copy(same, partial)

    def save_weights(self, name: str, tensors: Tensors) -> None:
        """Writes one weight file, whole or not at all."""
        with replacing(self._weights / name) as partial:
            save_file({k: v.contiguous() for k, v in tensors.items()}, partial)

    @staticmethod
    def file_name(number: int, stem: str) -> str:
        """The name of a weight file."""
        return f"r{number:06d}.{stem}.safetensors"

    def load(self, number: int | None = None) -> dict | None:
        """A checkpoint's plain values (with `round` and `files`), or None where there is none at all.

        Args:
            number: the round; default: the newest.

        Raises:
            UserError: there is none of that round, it cannot be read, or a name in it is invalid.
        """
        manifests = self._manifests()
        if not manifests:
            return None
        path = manifests[-1] if number is None else self._manifest(number)
        if path not in manifests:
            kept = ", ".join(str(n) for n in self.rounds())
            raise UserError(
                f"there is no checkpoint of round {number} in {self.folder}", remedy=f"it holds rounds {kept}"
            )
        try:
            state = read_json(path)
        except (OSError, ValueError) as e:
            raise UserError(
                f"checkpoint {path} cannot be read: {e}", remedy="remove it to go on from the one before"
            ) from e
        return check_state(state, path)

    def rewind(self, number: int) -> None:
        """Drops the checkpoints after a round, so that a run goes on from there.

        Raises:
            UserError: there is none of that round; nothing was dropped.
        """
        if self.load(number) is None:
            raise UserError(f"no checkpoint to resume from in {self.folder}")
        for path in self._manifests():
            if _number(path) > number:
                path.unlink()

    def rounds(self) -> list[int]:
        """The rounds that there are checkpoints of."""
        return [_number(path) for path in self._manifests()]

    def load_weights(self, name: str) -> Tensors:
        """The tensors of a weight file that a checkpoint names.

        Raises:
            UserError: missing, truncated or not a plain file name.
        """
        return self._read(name, lambda path: FromFile(load_file(path), path))

    def map_weights(self, name: str) -> Tensors:
        """The same, to be read only: their memory can be given back (`core/mapped.py`)."""
        return self._read(name, map_tensors)

    def _read(self, name: str, read: Callable[[Path], Tensors]) -> Tensors:
        path = self.path_of(name)
        try:
            return read(path)
        except (OSError, SafetensorError) as e:
            raise UserError(
                f"weights {path} cannot be read: {e}", remedy="restore the file or resume from another run"
            ) from e

    def path_of(self, name: str) -> Path:
        """Where a weight file lies.

        Raises:
            UserError: no plain file name, or a link that leads out of the folder.
        """
        if Path(name).name != name:
            raise UserError(f"checkpoint in {self.folder} names the file {name!r}, which is no plain file name")
        return below(self.folder, self._weights / name)

    def adopt(self, other: Checkpoints, number: int | None = None) -> None:
        """Copies another run's checkpoints up to a round, so that this run can go on from them without that run.

        Later ones, which a run that goes back leaves behind, are dropped when this run has written its own.

        Args:
            other: the other run's.
            number: the round to go on from; default: the newest.

        Raises:
            UserError: there is none, or it cannot be copied. An older one that cannot be is left out.
        """
        state = other.load(number)
        if state is None:
            raise UserError(f"no checkpoint to resume from in {other.folder}")
        if other.folder.resolve() == self.folder.resolve():
            return
        self._take_over(other, state)
        self._last = dict(state["files"])
        for earlier in (n for n in other.rounds() if n < state["round"]):
            with contextlib.suppress(UserError):
                if (older := other.load(earlier)) is not None:
                    self._take_over(other, older)

    def _take_over(self, other: Checkpoints, state: dict) -> None:
        self.take(other, named(state))
        write_json(self._manifest(state["round"]), state)

    def take(self, other: Checkpoints, names: set[str]) -> None:
        """Copies weight files of another run.

        Raises:
            UserError: one cannot be copied.
        """
        self._weights.mkdir(parents=True, exist_ok=True)
        for name in names:
            source, target = other.path_of(name), self._weights / name
            if not target.exists():
                try:
                    with replacing(target) as partial:
                        shutil.copyfile(source, partial)
                except OSError as e:
                    raise UserError(f"weights {source} cannot be copied: {e}", remedy="resume from another run") from e

    def _manifests(self) -> list[Path]:
        return sorted(self.folder.glob("round_*.json"))

    def _manifest(self, number: int) -> Path:
        return self.folder / f"round_{number:06d}.json"

    def _prune(self, newest: int) -> None:
        keep = rounds_to_keep(self.rounds(), newest, self._keep)
        for path in self._manifests():
            if _number(path) not in keep:
                path.unlink()
        self._clean(self._manifests())

    def _clean(self, manifests: list[Path]) -> None:
        """Removes what these checkpoints do not name; nothing if one of them cannot be read."""
        try:
            needed = set().union(*(named(json.loads(p.read_text())) for p in manifests))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # a person may repair it, and will need its weights
        partial = self.folder.glob(f"*{PARTIAL}")
        for path in [*partial, *(p for p in self._weights.glob("*") if p.name not in needed)]:
            path.unlink()


def _holds(path: Path, tensors: Tensors) -> bool:
    """Whether a weight file holds just these tensors. The first that differs ends the comparison."""
    try:
        with safe_open(path, framework="pt") as file:
            if set(file.keys()) != tensors.keys():
                return False
            return all(_equal(file.get_tensor(key), value) for key, value in tensors.items())
    except (OSError, SafetensorError):
        return False


def _equal(kept: torch.Tensor, value: torch.Tensor) -> bool:
    """Bit by bit, so that NaN equals itself and -0 is not 0."""
    if (kept.shape, kept.dtype) != (value.shape, value.dtype):
        return False
    ours, theirs = (t.contiguous().view(-1).view(torch.uint8) for t in (kept, value))
    return torch.equal(ours, theirs)


def _number(manifest: Path) -> int:
    return int(manifest.stem.removeprefix("round_"))


def named(state: dict) -> set[str]:
    """The weight files that a checkpoint needs."""
    return set(state["files"].values()) | {b["file"] for b in state.get("best", {}).values()}
