"""The super model on disk: safetensors for each network and a manifest.

super_model/
  manifest.json
  MODEL_CARD.md
  record.json               signed, when the run has ended; see `record.py`
  global.safetensors  personal.<site>.safetensors ...  selector.safetensors
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from fedsm.core.errors import UserError
from fedsm.core.files import replacing_folder
from fedsm.core.limits import is_number, shown
from fedsm.core.names import below, check_plain_names, check_run_id, check_site_names
from fedsm.core.plain_json import read_json
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.core.trust import Trust
from fedsm.selectors.policy import read_policy
from fedsm.super_model.card import CARD, render_card
from fedsm.super_model.record import digest_of
from fedsm.super_model.verify import MANIFEST, signed_digests

FORMAT = "fedsm-super-model/1"
_AT_ONCE = 16  # networks of which a super model has so many are loaded together


@dataclass
class SuperModelFiles:
    """What a super model's folder holds: the settings it was trained with, its manifest and its tensors."""

    settings: JobSettings
    manifest: dict
    networks: Mapping[str, Tensors]


class Networks(Mapping[str, Tensors]):
    """The networks of a folder. Each is read, and its checksum verified, when it is first asked for.

    Args:
        folder: the super model's.
        listed: name -> its file and that file's SHA-256, as its manifest says.
    """

    def __init__(self, folder: Path, listed: dict[str, tuple[str, str]]):
        self._folder, self._listed = folder, listed
        self._loaded: dict[str, Tensors] = {}
        self._loading = threading.Lock()

    def __getitem__(self, name: str) -> Tensors:
        with self._loading:
            if name not in self._loaded:
                file, sha256 = self._listed[name]
                self._loaded[name] = _load_network(self._folder / file, sha256)
            return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._listed

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)


def save_super_model(
    folder: Path, settings: JobSettings, manifest: dict, networks: dict[str, Tensors], notes: dict[str, dict]
) -> None:
    """Writes a super model, whole or not at all; an existing one is replaced at the very end.

    Args:
        folder: `super_model/` of the run.
        settings: the job's settings, from which the architecture is built again.
        manifest: task, method, selector, sites, gamma, labels, versions; `images` (site -> part -> count) and `scores`
            (`test` of results.json) go to the model card as well.
        networks: model name -> tensors.
        notes: model name -> what else the manifest says about it (round, validation score).
    """
    with replacing_folder(folder) as partial:
        entries = {}
        for name, tensors in networks.items():
            file = f"{name}.safetensors"
            save_file({k: v.contiguous() for k, v in tensors.items()}, partial / file)
            entries[name] = {"file": file, "sha256": digest_of(partial / file)} | notes.get(name, {})
        content = {"format": FORMAT, "settings": settings.to_dict()} | manifest | {"networks": entries}
        (partial / MANIFEST).write_text(json.dumps(content, indent=1))
        (partial / CARD).write_text(render_card(content), encoding="utf-8")


def load_super_model(folder: Path, trust: Trust | None = None) -> SuperModelFiles:
    """Loads a super model. Runs no code from the folder: JSON and safetensors only.

    Up to 16 networks are loaded and verified now. Of more, only whether each file is there and whole; its checksum is
    verified when the network is first used, so that a few images need not wait for the networks of all sites.

    Args:
        folder: the super model's.
        trust: who must have signed it; None: nobody need have.

    Raises:
        UserError: something is missing, damaged or not a super model's, or not what was signed.
    """
    signed = None if trust is None else signed_digests(folder, trust)
    try:
        manifest = read_json(folder / MANIFEST)
    except (OSError, ValueError) as e:
        raise UserError(
            f"{folder / MANIFEST} cannot be read: {_short(e)}", remedy="give the folder of a super model or of a run"
        ) from e
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{folder / MANIFEST} is not of the format {FORMAT}")
    try:
        settings, entries = JobSettings.from_dict(manifest["settings"]), manifest["networks"]
        listed = {name: (entry["file"], entry["sha256"]) for name, entry in entries.items()}
    except (KeyError, TypeError, AttributeError) as e:
        raise UserError(f"{folder / MANIFEST} is incomplete ({e})", remedy="copy the super model again") from e
    _check_names(manifest, listed, folder)
    if signed is not None and (other := [file for file, sha256 in listed.values() if signed.get(file) != sha256]):
        raise UserError("is not the file that was signed", file=folder / other[0], remedy="get the super model again")
    if len(listed) > _AT_ONCE:
        for file, _ in listed.values():
            _check_whole(folder / file)
        return SuperModelFiles(settings, manifest, Networks(folder, listed))
    # Checksums take longer than reading, so all processors share the work.
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        tensors = list(pool.map(lambda entry: _load_network(folder / entry[0], entry[1]), listed.values()))
    return SuperModelFiles(settings, manifest, dict(zip(listed, tensors, strict=True)))


def _check_names(manifest: dict, listed: dict[str, tuple[str, str]], folder: Path) -> None:
    """Refuses names that are not plain: they become file names here, at sites that evaluate, and in exports.

    Raises:
        UserError: naming the manifest.
    """
    where = str(folder / MANIFEST)
    check_plain_names(listed, where, "name of a network")
    check_plain_names((file for file, _ in listed.values()), where, "file name")
    for file, _ in listed.values():
        below(folder, folder / file)
    check_site_names(manifest.get("sites", []), where)
    check_site_names(manifest.get("forgotten", []), where)
    if manifest.get("run_id") is not None:
        check_run_id(manifest["run_id"], where)
    read_policy(manifest, where)
    if manifest.get("blend_gamma") is not None and not is_number(manifest["blend_gamma"], 0, 1):
        raise UserError(
            f"{where}: blend_gamma must be in [0, 1], got {shown(manifest['blend_gamma'])}",
            remedy="copy the super model again",
        )


def _check_whole(path: Path) -> None:
    """Refuses a file that is missing or cut short: its header says how long it is."""
    try:
        with safe_open(path, framework="pt"):
            pass
    except (OSError, SafetensorError) as e:
        raise UserError(f"{path} cannot be read: {_short(e)}", remedy="copy the super model again") from e


def _load_network(path: Path, sha256: str) -> Tensors:
    """The tensors of a file, mapped into memory: processes share one copy, and pages are read when they are used."""
    try:
        if digest_of(path) != sha256:
            raise UserError(
                f"{path} is not the file that {MANIFEST} describes (checksum differs)", remedy="copy it again"
            )
        return load_file(path)
    except (OSError, SafetensorError) as e:
        raise UserError(f"{path} cannot be read: {_short(e)}", remedy="copy the super model again") from e


def _short(error: Exception) -> str:
    """An error's reason without the path, which an OSError repeats."""
    return getattr(error, "strerror", None) or str(error)


def versions() -> dict[str, str]:
    """Versions of what made the weights."""
    import monai

    import fedsm

    return {"fedsm": fedsm.__version__, "torch": torch.__version__, "monai": monai.__version__}
