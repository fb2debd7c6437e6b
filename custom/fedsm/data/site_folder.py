"""A site's folder: `images/*` and `masks/*` with the same stem.

Loading stops at the first problem; `check.py` lists all problems of a folder beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsm.core.errors import UserError
from fedsm.core.names import is_site_name
from fedsm.core.natural_order import natural_key
from fedsm.core.task_settings import TaskSettings
from fedsm.data.readers import FORMATS, VOLUMES, grid_difference, is_supported, read, stem, suffix

_CORRECT = "correct the mask or the task's labels"


@dataclass(frozen=True)
class Pair:
    """An image, its mask, and the stem that they share."""

    stem: str
    image: Path
    mask: Path


def list_sites(root: Path) -> list[str]:
    """Names of the sites under a data root: its sub-folders.

    Raises:
        UserError: no such folder, fewer than 2 sites, or a name that FLARE cannot carry.
    """
    names = site_folders(root)
    if len(names) < 2:
        found = f"only {names[0]!r}" if names else "none"
        raise UserError(
            f"data root {root} must hold at least 2 sites, found {found}",
            remedy="a site is a folder with images/ and masks/",
        )
    for name in names:
        if not is_site_name(name):
            raise UserError(
                "FLARE cannot carry this name",
                site=name,
                remedy=f"rename the folder in {root}: letters, digits, '-' and '_' only",
            )
    return names


def site_folders(root: Path) -> list[str]:
    """Every sub-folder of a data root; none is left out silently.

    Raises:
        UserError: no such folder.
    """
    if not root.is_dir():
        raise UserError(
            f"data root {root} does not exist", remedy="create it with one folder per site, or with `fedsm data synth`"
        )
    return sorted((p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")), key=natural_key)


def list_pairs(folder: Path, site: str) -> list[Pair]:
    """The image-mask pairs of a site, sorted by stem.

    Raises:
        UserError: no folder, no images, two files with the same stem, or an image without mask or mask without image.
    """
    images, masks = (_by_stem(folder, part, site) for part in ("images", "masks"))
    if not images and not masks:
        raise _no_images(folder, site)
    for name in sorted(set(images) - set(masks)):
        raise UserError(
            "has no mask", site=site, file=images[name], remedy=f"add {folder / 'masks' / name}.* or remove the image"
        )
    return _pairs(images, masks, folder, site)


def list_images(folder: Path, site: str) -> tuple[list[Path], list[Pair]]:
    """All images of a site, some of which may have no mask, and the pairs of those that have one, sorted by stem.

    Raises:
        UserError: no images, two files with the same stem, or a mask without an image.
    """
    images = _by_stem(folder, "images", site)
    masks = _by_stem(folder, "masks", site) if (folder / "masks").is_dir() else {}
    if not images:
        raise _no_images(folder, site)
    return [images[name] for name in sorted(images, key=natural_key)], _pairs(images, masks, folder, site)


def _pairs(images: dict[str, Path], masks: dict[str, Path], folder: Path, site: str) -> list[Pair]:
    for name in sorted(set(masks) - set(images)):
        raise UserError(
            "has no image", site=site, file=masks[name], remedy=f"add {folder / 'images' / name}.* or remove the mask"
        )
    return [Pair(name, images[name], masks[name]) for name in sorted(masks, key=natural_key)]


def _by_stem(folder: Path, part: str, site: str) -> dict[str, Path]:
    """The files in `images/` or `masks/` by their stems."""
    if not (folder / part).is_dir():
        raise UserError("the folder is missing", site=site, file=folder / part, remedy=f"put the {part} there")
    found: dict[str, Path] = {}
    for path in sorted((folder / part).iterdir()):
        if path.name.startswith(".") or not is_supported(path):
            continue
        if stem(path) in found:
            raise UserError(
                f"this file and {found[stem(path)].name} have the same name",
                site=site,
                file=path,
                remedy="keep one of them",
            )
        found[stem(path)] = path
    return found


def _no_images(folder: Path, site: str) -> UserError:
    return UserError(f"no images in {folder / 'images'}", site=site, remedy=f"put {FORMATS} files there")


def read_image(path: Path, task: TaskSettings, site: str | None = None) -> np.ndarray:
    """Reads and checks an image.

    Args:
        path: the file.
        task: the task, whose number of channels it gets.
        site: named in errors.

    Returns:
        (slices, H, W, task.channels), in the file's own dtype.

    Raises:
        UserError: unreadable file, values that are not finite, or channels that do not fit.
    """
    return check_image(read(path, site), task, path, site)


def check_image(image: np.ndarray, task: TaskSettings, path: Path | str, site: str | None) -> np.ndarray:
    """An image that was read, with the task's channels.

    Raises:
        UserError: values that are not finite, or channels that do not fit.
    """
    if image.dtype.kind == "f" and not np.isfinite(image).all():
        raise UserError("holds NaN or infinite values", site=site, file=path, remedy="export it again")
    return match_channels(image, task, path, site)


def read_pair(pair: Pair, site: str, task: TaskSettings) -> tuple[np.ndarray, np.ndarray]:
    """Reads and checks a pair.

    Returns:
        image (slices, H, W, task.channels) and mask (slices, H, W), in the files' own dtypes.

    Raises:
        UserError: unreadable file, values that are not finite, sizes that differ, or a mask value outside the labels.
    """
    image, mask = read_image(pair.image, task, site), read(pair.mask, site, mask=True)
    if mask.shape[-1] > 1:
        # Masks are often saved as RGB or RGBA: the colour channels must agree, and alpha is ignored.
        colour = mask[..., :3] if mask.shape[-1] != 2 else mask[..., :1]
        if (colour != colour[..., :1]).any():
            raise UserError(
                "is a colour picture", site=site, file=pair.mask, remedy="save the mask with one grey channel"
            )
        mask = colour[..., :1]
    mask = mask[..., 0]
    if image.shape[:3] != mask.shape:
        raise UserError(
            f"is {size_text(image)} but its mask is {size_text(mask)}",
            site=site,
            file=pair.image,
            remedy="both must have the same size",
        )
    if suffix(pair.image) in VOLUMES and suffix(pair.mask) in VOLUMES:
        apart = grid_difference(pair.image, pair.mask)
        if apart:
            raise UserError(
                f"is not on its image's grid ({apart})", site=site, file=pair.mask, remedy="resample the mask to it"
            )
    wrong = sorted(set(np.unique(mask).tolist()) - task.mask_values)
    if wrong:
        raise UserError(
            f"holds the value {wrong[0]:g}, but task {task.name!r} knows {sorted(task.mask_values)}",
            site=site,
            file=pair.mask,
            remedy=suggest_label(task, set(np.unique(mask).tolist())) or _CORRECT,
        )
    return image, mask


def suggest_label(task: TaskSettings, values: set[float]) -> str | None:
    """What to write in the task if masks hold one unknown value and the values of one label appear in none of them.

    Many programs write 255 where the task says 1.

    Args:
        task: the task.
        values: all values of the masks.
    """
    unknown = values - task.mask_values
    unseen = [label for label, known in task.labels.items() if not values & set(known)]
    if len(unknown) != 1 or len(unseen) != 1:
        return None
    value = unknown.pop()
    return f"write `{unseen[0]}: [{value:g}]` under `labels` of the task if {value:g} is {unseen[0]}"


def size_text(array: np.ndarray) -> str:
    slices = f" x {array.shape[0]} slices" if array.shape[0] > 1 else ""
    return f"{array.shape[2]} x {array.shape[1]} pixels{slices}"


def match_channels(image: np.ndarray, task: TaskSettings, path: Path | str, site: str | None) -> np.ndarray:
    """Drops a picture's alpha, repeats grey, turns a picture's colour into grey: (..., task.channels).

    The channels of a volume are images of their own (T2, ADC): none is dropped, and they are no colours.

    Raises:
        UserError: another number of channels.
    """
    is_picture, want = suffix(Path(path)) not in VOLUMES, task.channels
    if image.shape[-1] in (2, 4) and image.shape[-1] != want and is_picture:  # alpha
        image = image[..., :-1]
    have = image.shape[-1]
    if have == want:
        return image
    if have == 1:
        return np.repeat(image, want, axis=-1)
    if have == 3 and want == 1 and is_picture:
        if (image == image[..., :1]).all():
            return image[..., :1]
        # ITU-R 601 luma: what every picture tool calls "convert to grey".
        return (image @ np.array([0.299, 0.587, 0.114]))[..., None].astype(image.dtype)
    raise UserError(f"has {have} channels, but task {task.name!r} needs {want}", site=site, file=path)
