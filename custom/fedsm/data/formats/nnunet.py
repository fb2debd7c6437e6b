"""Reads a dataset of nnU-Net v2: dataset.json, imagesTr, labelsTr, and a fold of splits_final.json.

https://github.com/MIC-DKFZ/nnUNet/blob/master/documentation/dataset_format.md
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsm.core.errors import UserError
from fedsm.core.limits import shown
from fedsm.core.natural_order import natural_key
from fedsm.core.plain_json import read_json
from fedsm.core.task_settings import TaskSettings
from fedsm.data.formats.cases import Case, inside
from fedsm.data.formats.nnunet_folds import TEST, Fold, read_fold, with_test_cases
from fedsm.data.formats.rules import Rule
from fedsm.data.readers import PICTURES, VOLUMES

DESCRIPTION = "dataset.json"
_FOLDER = re.compile(r"Dataset\d{3}_")
_CHANNEL = re.compile(r"(.+)_(\d{4})")
_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


def read_dataset(
    source: Path, sites: Rule, patients: Rule | None, fold: Fold | None
) -> tuple[list[Case], TaskSettings]:
    """The cases of a dataset, and the task that fits it.

    Without a fold the training cases are taken, and the split is drawn later. With one, its two lists are our training
    and validation images, and the cases of imagesTs are the test images. Without imagesTs and labelsTs, half of a
    site's validation patients become its test patients: the fold itself has no third part.

    Raises:
        UserError: whatever is wrong with what dataset.json says, the names of files, or the fold.
    """
    described = _read(source / DESCRIPTION)
    task = _task(described, source)
    cases = _cases(described, source, "Tr", task, sites, patients)
    if not cases:
        raise UserError(f"no case in {source / 'imagesTr'}", remedy="give the folder that holds dataset.json")
    if fold is None:
        return cases, task
    part_of = read_fold(fold, {case.name for case in cases})
    cases = [replace(case, part=part_of[case.name]) for case in cases]
    if (source / "labelsTs").is_dir():
        tests = _cases(described, source, "Ts", task, sites, patients)
        return cases + [replace(case, part=TEST) for case in tests], task
    return with_test_cases(cases), task


def _read(file: Path) -> dict[str, Any]:
    try:
        content = read_json(file)
    except (OSError, ValueError) as e:
        raise UserError(f"cannot be read: {e}", file=file, remedy="give the folder of a dataset of nnU-Net") from e
    if not isinstance(content, dict):
        raise UserError("is no description of a dataset", file=file)
    if "modality" in content and "channel_names" not in content:
        raise UserError(
            "is of nnU-Net v1", file=file, remedy="convert it with nnUNetv2_convert_old_nnUNet_dataset first"
        )
    return content


def _task(described: Mapping[str, Any], source: Path) -> TaskSettings:
    file = source / DESCRIPTION
    channels, labels, ending = (described.get(key) for key in ("channel_names", "labels", "file_ending"))
    if not isinstance(channels, dict) or sorted(map(str, channels)) != sorted(map(str, range(len(channels)))):
        raise UserError("channel_names must number the channels from 0", file=file)
    if not isinstance(labels, dict) or labels.get("background") not in (0, [0]):
        raise UserError("labels must name the mask values, with background 0", file=file)
    if ending not in PICTURES + VOLUMES:
        raise UserError(f"file_ending is {shown(ending)}", file=file, remedy="convert the files to .nii.gz or .png")
    if "ignore" in labels:
        raise UserError(
            "has the label `ignore`, which we cannot leave out of a loss", file=file,
            remedy="annotate these voxels, or make them background",
        )  # fmt: skip
    wanted = {
        name: value if isinstance(value, list) else [value] for name, value in labels.items() if name != "background"
    }
    several = "channel_percentiles" if len(channels) > 1 else "percentiles"
    name = described.get("name")
    known = _NAMES.sub("_", name if isinstance(name, str) else _FOLDER.sub("", source.resolve().name)).strip("_.-")
    values = {
        "name": known.lower()[:60] or "nnunet",
        "channels": len(channels),
        "labels": wanted,
        "intensity": "unit" if ending in PICTURES else several,
        "background": [0],
    }
    try:
        return TaskSettings.from_dict(values)
    except UserError as e:
        raise UserError(e.message, file=file, remedy=e.remedy) from e


def _cases(
    described: Mapping[str, Any], source: Path, part: str, task: TaskSettings, sites: Rule, patients: Rule | None
) -> list[Case]:
    """The cases of imagesTr or imagesTs."""
    found = []
    volumes = described["file_ending"] in VOLUMES
    wanted = task.channels if volumes else 1  # of files
    listed = described.get("dataset") if part == "Tr" else None
    ending = described["file_ending"]
    files = _listed(listed, source, ending) if listed is not None else _found(ending, source, part)
    for name in sorted(files, key=natural_key):
        images, mask = files[name]
        if len(images) != wanted:
            raise UserError(
                f"case {shown(name)} has {len(images)} file{'s' * (len(images) > 1)}, but {wanted} "
                + ("channels are in dataset.json" if volumes else "picture with all channels is read"),
                file=images[0], remedy="add or join the channels, or correct channel_names",
            )  # fmt: skip
        patient = patients.of([name]) if patients else None
        found.append(Case(name, tuple(images), mask, sites.of([name]), patient))
    return found


def _found(ending: str, source: Path, part: str) -> dict[str, tuple[list[Path], Path]]:
    """Case -> its images and labels, by the names of files."""
    images, labels = source / f"images{part}", source / f"labels{part}"
    for folder in (images, labels):
        if not folder.is_dir():
            raise UserError("the folder is missing", file=folder, remedy="give the folder that holds dataset.json")
    channels: dict[str, list[Path]] = {}
    for path in _files(images, ending):
        match = _CHANNEL.fullmatch(path.name[: -len(ending)])
        if not match:
            raise UserError("does not end with a channel's number, as in CASE_0000", file=path, remedy="rename it")
        own = channels.setdefault(match[1], [])
        if int(match[2]) != len(own):
            raise UserError(f"channel {len(own)} of this case is missing", file=path, remedy="add it")
        own.append(inside(source, path))
    masks = {path.name[: -len(ending)]: inside(source, path) for path in _files(labels, ending)}
    if lacking := sorted(set(channels) - set(masks)):
        raise UserError(f"has no {labels.name}/{lacking[0]}{ending}", file=channels[lacking[0]][0], remedy="add it")
    if alone := sorted(set(masks) - set(channels)):
        raise UserError(f"has no image in {images.name}", file=masks[alone[0]], remedy="add it, or remove the labels")
    return {name: (own, masks[name]) for name, own in channels.items()}


def _files(folder: Path, ending: str) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(ending) and not path.name.startswith("."))


def _listed(listed: Any, source: Path, ending: str) -> dict[str, tuple[list[Path], Path]]:
    """The same of `dataset` in dataset.json, which names the files of each case; they must lie in the dataset."""
    file = source / DESCRIPTION
    try:
        found = {
            str(name): (
                [inside(source, source / path) for path in entry["images"]],
                inside(source, source / entry["label"]),
            )
            for name, entry in listed.items()
        }
    except (AttributeError, TypeError, KeyError, ValueError) as e:  # the last: a path with a null byte
        raise UserError("`dataset` must give each case its `images` and its `label`", file=file) from e
    for name, (images, mask) in found.items():
        if other := next((path for path in (*images, mask) if not path.name.endswith(ending)), None):
            raise UserError(
                f"does not end with {ending}, as dataset.json says", file=other, remedy="correct one of them"
            )
        if "/" in name or name.startswith(".") or not name.isprintable() or not images:
            raise UserError(f"`dataset` has the case {shown(name)}, which cannot be a file's name", file=file)
    return found
