"""Writes a data root with our splits as a dataset of nnU-Net v2, to compare with it on the same images.

Cases are called SITE_NUMBER; `sites.csv` says which file of which site and patient each one is. Training and validation
images are in imagesTr, with our split as the only fold of splits_final.json; test images are in imagesTs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np
from PIL import Image

from fedsm.core.errors import UserError
from fedsm.core.files import replacing_folder, write_json
from fedsm.core.names import check_site_name
from fedsm.core.settings import JobSettings
from fedsm.core.task_settings import TaskSettings
from fedsm.data.cases import data_folders
from fedsm.data.formats.cases import link, write_table
from fedsm.data.formats.nnunet import DESCRIPTION
from fedsm.data.formats.nnunet_folds import SPLITS, TEST, TRAIN, VALIDATION
from fedsm.data.formats.nnunet_labels import Classes, classes_of
from fedsm.data.limits import load_volume, open_picture
from fedsm.data.patients import patients_of
from fedsm.data.readers import file_kind, suffix
from fedsm.data.site_folder import Pair, list_pairs, read_image, read_pair
from fedsm.data.site_rules import RESEARCH
from fedsm.data.split import PARTS, split_site
from fedsm.data.writers import write_mask

SITES = "sites.csv"
_DATASET = re.compile(r"Dataset\d{3}_\w[\w-]*")
_ENDING = {"volumes": ".nii.gz", "pictures": ".png"}


@dataclass(frozen=True)
class Exported:
    """A pair, and what becomes of it."""

    name: str
    site: str
    part: str
    patient: str
    pair: Pair


def plan_export(root: Path, out: Path, settings: JobSettings, done: Callable[[int], object]) -> list[Exported]:
    """The cases of an export; reads every file, and refuses what is wrong before anything is written.

    Args:
        root: the data root, or one site's folder.
        out: the dataset's folder, called as nnU-Net wants it.
        settings: the task, and the seed of splits that the sites do not say themselves.
        done: called with 1 for each pair.

    Raises:
        UserError: with the remedy.
    """
    if not _DATASET.fullmatch(out.name):
        raise UserError(f"nnU-Net would not find {out.name!r}", remedy="call the folder Dataset501_NAME, any 3 digits")
    classes_of(settings.task)
    cases: list[Exported] = []
    for site, folder in data_folders(root).items():
        check_site_name(site, str(root))
        pairs = list_pairs(folder, site)
        stems = [pair.stem for pair in pairs]
        patients = patients_of(folder, stems, RESEARCH.pattern(folder, settings.task, site), site)
        split = split_site(stems, patients, RESEARCH.split_seed(settings), site, folder, None)
        part_of = {row: part for part in PARTS for row in split[part]}
        cases += [
            Exported(f"{site}_{row:04d}", site, part_of[row], patients[row], pair) for row, pair in enumerate(pairs)
        ]
    if file_kind(case.pair.image for case in cases) == "mixed":
        raise UserError("holds pictures and volumes", file=root, remedy="nnU-Net reads one kind: export them apart")
    ending = _ending(cases)
    for case in cases:
        image, _ = read_pair(case.pair, case.site, settings.task)
        if ending == ".png" and not _fits_png(image):
            raise UserError(
                f"its {image.shape[-1]} channels of type {image.dtype} do not go into PNG", site=case.site,
                file=case.pair.image, remedy="nnU-Net reads grey pictures of 8 and 16 bits, and RGB of 8",
            )  # fmt: skip
        done(1)
    return cases


def write_export(
    cases: list[Exported], out: Path, task: TaskSettings, channels: Sequence[str] | None, done: Callable[[int], object]
) -> None:
    """Writes the dataset; it appears when it is complete. Images are links where nnU-Net reads them as they are.

    Args:
        cases: of `plan_export`.
        out: a new or empty folder.
        task: the task.
        channels: the names of the channels, by which nnU-Net chooses how to scale them (`CT` is special).
        done: called with 1 for each pair.
    """
    classes, ending = classes_of(task), _ending(cases)
    with replacing_folder(out) as folder:
        for part in ("imagesTr", "labelsTr", "imagesTs", "labelsTs"):
            (folder / part).mkdir()
        for case in cases:
            where = "Ts" if case.part == TEST else "Tr"
            image = folder / f"images{where}" / f"{case.name}_0000{ending}"
            _write_volume(case.pair.image, image, task) if ending == ".nii.gz" else _write_picture(case, image, task)
            _, mask = read_pair(case.pair, case.site, task)
            write_mask(folder / f"labels{where}" / f"{case.name}{ending}", classes.convert(mask), image)
            done(1)
        write_json(folder / DESCRIPTION, _description(cases, task, classes, channels or _channel_names(task, ending)))
        fold = {key: [c.name for c in cases if c.part == part] for key, part in (("train", TRAIN), ("val", VALIDATION))}
        write_json(folder / SPLITS, [fold])
        rows: list[list[str | None]] = [[c.name, c.site, c.part, c.patient, c.pair.image.name] for c in cases]
        write_table(folder / SITES, ["case", "site", "part", "patient", "file"], rows)


def _ending(cases: list[Exported]) -> str:
    return _ENDING[file_kind(case.pair.image for case in cases)]


def _description(cases: list[Exported], task: TaskSettings, classes: Classes, channels: Sequence[str]) -> dict:
    regions = {"regions_class_order": classes.order} if classes.order else {}
    return {
        "name": task.name,
        "channel_names": {str(number): name for number, name in enumerate(channels)},
        "labels": classes.labels,
        **regions,
        "numTraining": sum(case.part != TEST for case in cases),
        "file_ending": _ending(cases),
    }


def _channel_names(task: TaskSettings, ending: str) -> list[str]:
    if task.channels == 3 and ending == ".png":
        return ["R", "G", "B"]
    return [f"channel {number}" for number in range(task.channels)]


def _write_volume(source: Path, first: Path, task: TaskSettings) -> None:
    """One file for each channel, whose grid and voxels are those of the source."""
    volume = load_volume(source)
    if volume.ndim == 3 and task.channels == 1 and suffix(source) == ".nii.gz":
        link(source, first)
        return
    voxels = np.asanyarray(volume.dataobj)
    shape = (*voxels.shape, 1, 1)[:3]  # (x, y, z)
    voxels = voxels.reshape(*shape, -1)  # one channel is repeated, as the reader does it
    for number in range(task.channels):
        channel = voxels[..., min(number, voxels.shape[-1] - 1)]
        if channel.dtype == np.float64:  # of scaled integers
            channel = channel.astype(np.float32)
        name = f"{first.name.removesuffix('_0000.nii.gz')}_{number:04d}.nii.gz"
        nibabel.save(nibabel.Nifti1Image(channel, volume.affine), first.with_name(name))


def _write_picture(case: Exported, target: Path, task: TaskSettings) -> None:
    source = case.pair.image
    with open_picture(source) as picture:
        as_it_is = picture.format == "PNG" and picture.mode == {1: "L", 3: "RGB"}[task.channels]
    if as_it_is:
        link(source, target)
        return
    pixels = read_image(source, task, case.site)[0]
    Image.fromarray(pixels if task.channels == 3 else pixels[..., 0]).save(target)


def _fits_png(image: np.ndarray) -> bool:
    return (image.shape[-1], image.dtype.name) in ((1, "uint8"), (1, "uint16"), (3, "uint8"))
