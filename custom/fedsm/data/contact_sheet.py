"""A contact sheet of a site: some of its images with the outlines of their labels, for a person to look at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fedsm.core.errors import UserError
from fedsm.core.private_files import new_file
from fedsm.core.task_settings import TaskSettings
from fedsm.core.text import printable
from fedsm.data.check_pair import find_pairs, load_pair
from fedsm.data.dicom.site import images_folder
from fedsm.data.findings import KINDS, Notes, name_of
from fedsm.data.intensity import scale_intensity
from fedsm.data.site_folder import Pair

TILE, CAPTION, GAP, HEADER, COLUMNS = 288, 24, 12, 64, 4  # pixels; TILE is the longer side of an image
# Colour-blind people can tell them apart, and they are rare in tissue, fundus and MR images.
COLOURS = ((0, 255, 120), (255, 225, 0), (0, 190, 255), (255, 0, 200), (255, 140, 0), (190, 160, 255))
_PAPER, _INK, _QUIET, _FRAME = (24, 26, 30), (236, 238, 242), (150, 156, 166), (48, 52, 60)
_NOTED = (255, 176, 64)


def write_contact_sheet(
    folder: Path, site: str, task: TaskSettings, out: Path, count: int = 12, noted: Sequence[str] = ()
) -> Path:
    """Writes a PNG with up to `count` images of a site: half of them images with findings, the others evenly chosen.

    A volume shows the slice with the largest mask. Brightness is stretched to each image, so that dark ones can
    be seen. A pair that cannot be used gets a tile that says why.

    Args:
        folder: the site's folder, with `images/` and `masks/`.
        site: its name, for the title.
        task: the task whose labels are outlined.
        out: the PNG file to write; folders above it are made.
        count: the largest number of images.
        noted: what the check noted (`SiteReport.noted`).

    Returns:
        `out`.

    Raises:
        UserError: `out` cannot be written.
    """
    pairs = find_pairs(images_folder(folder, site, task, None), defaultdict(list))
    marked = [row for row, pair in enumerate(pairs) if _is_noted(pair, noted)][: count // 2]
    others = [row for row in range(len(pairs)) if row not in marked]
    even = np.linspace(0, len(others) - 1, min(count - len(marked), len(others))).round().astype(int)
    rows = sorted({*marked, *(others[i] for i in even)})
    columns = max(1, min(COLUMNS, len(rows)))
    tiles = [_draw_tile(pairs[row], site, task) for row in rows]
    tall = max((tile.height for tile, _ in tiles), default=0) + CAPTION + GAP
    # Never narrower than two tiles: the title needs the space.
    width, height = max(2, columns) * (TILE + GAP) + GAP, HEADER + -(-len(rows) // columns) * tall
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    counts = f"{len(rows)} of {len(pairs)} images of patients" + (", orange: with findings" if marked else "")
    _draw_title(draw, site, task, counts, width)
    small = font(14)
    for number, (tile, caption) in enumerate(tiles):
        x, y = GAP + number % columns * (TILE + GAP), HEADER + number // columns * tall
        sheet.paste(tile, (x + (TILE - tile.width) // 2, y))
        ink = _NOTED if rows[number] in marked else _INK
        draw.text((x, y + tall - CAPTION - GAP + 4), _fit(draw, caption, small, TILE), ink, small)
    try:
        sheet.save(new_file(out), "PNG")
    except OSError as e:
        raise UserError(
            f"the contact sheet {out} cannot be written ({e.strerror})", remedy="choose another folder"
        ) from e
    return out


def _is_noted(pair: Pair, noted: Sequence[str]) -> bool:
    names = (name_of(pair.image), name_of(pair.mask))
    return any(entry.startswith(names) for entry in noted)


def outline(mask: np.ndarray) -> np.ndarray:
    """The pixels of a (H, W) bool mask that have a neighbour outside it; the picture's edge does not count."""
    padded = np.pad(mask, 1, mode="edge")
    inside = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return mask & ~inside


def _draw_tile(pair: Pair, site: str, task: TaskSettings) -> tuple[Image.Image, str]:
    """The picture of a pair, its longer side TILE, and its caption."""
    notes: Notes = defaultdict(list)
    loaded = load_pair(pair, site, task, notes)
    if loaded is None:
        kind = next(kind for kind in KINDS if notes.get(kind))
        tile = Image.new("RGB", (TILE, TILE // 2), _FRAME)
        ImageDraw.Draw(tile).text((GAP, TILE // 4), KINDS[kind][1], COLOURS[3], font(14))
        return tile, printable(pair.stem)
    image, mask = loaded
    covered = (~np.isin(mask, task.background)).sum(axis=(1, 2))
    best = int(covered.argmax()) if covered.any() else len(mask) // 2
    caption = printable(pair.stem) + (f"  ·  slice {best + 1} of {len(mask)}" if len(mask) > 1 else "")
    if image.shape[-1] != 3:
        image = image[..., :1]
    # One scale for the whole volume, as in training.
    pixels = (scale_intensity(image, "percentiles")[best] * 255).round().astype(np.uint8)
    picture = Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0]).convert("RGB")
    scale = TILE / max(picture.size)
    size = tuple(max(1, round(side * scale)) for side in picture.size)
    shown = np.array(picture.resize(size, Image.Resampling.LANCZOS))
    # Outlined after resizing: a line stays one pixel wide whatever the image's size.
    labels = [Image.fromarray(np.isin(mask[best], values)) for values in task.labels.values()]
    labels = [np.asarray(label.resize(size, Image.Resampling.NEAREST)) for label in labels]
    for label in labels:
        shown[outline(~label)] //= 3  # a dark rim, so that the line can be seen on white as well
    for label, colour in zip(labels, _colours(task), strict=True):
        shown[outline(label)] = colour
    return Image.fromarray(shown), caption


def _colours(task: TaskSettings) -> list[tuple[int, int, int]]:
    return [COLOURS[i % len(COLOURS)] for i in range(len(task.labels))]


def _draw_title(draw: ImageDraw.ImageDraw, site: str, task: TaskSettings, counts: str, width: int) -> None:
    big, small = font(22), font(14)
    draw.text((GAP, 8), _fit(draw, printable(site), big, width - 2 * GAP), _INK, big)
    x = float(GAP)
    for colour, name in zip(_colours(task), task.labels, strict=True):
        draw.rectangle((x, 42, x + 10, 52), outline=colour, width=2)
        draw.text((x + 16, 39), printable(name), _INK, small)
        x += 32 + draw.textlength(printable(name), small)
    draw.text((x, 39), f"task {task.name}, {counts}, brightness stretched", _QUIET, small)


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """DejaVu Sans, or pillow's own font."""
    try:
        return ImageFont.truetype("DejaVuSans.ttf", size)  # more of Unicode than pillow's own, where it is installed
    except OSError:
        return ImageFont.load_default(size)


def _fit(draw: ImageDraw.ImageDraw, text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, width: int) -> str:
    """Text shortened in its middle: names of medical files differ at their ends."""
    if not isinstance(font, ImageFont.FreeTypeFont):
        text = text.encode("latin-1", "replace").decode("latin-1")  # the bitmap font of a pillow without FreeType
    short, keep = text, len(text)
    while keep > 2 and draw.textlength(short, font) > width:
        keep -= 1
        short = f"{text[: (keep + 1) // 2]}...{text[len(text) - keep // 2 :]}"
    return short
