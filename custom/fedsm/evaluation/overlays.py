"""Pictures of predictions: the best, the median and the worst image of a site, truth above, prediction below."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageDraw

from fedsm.data.contact_sheet import COLOURS, font, outline

TILE, GAP, CAPTION = 256, 8, 40  # pixels
_PAPER, _TEXT, _QUIET = (24, 26, 30), (236, 238, 242), (150, 156, 166)


@dataclass
class Shown:
    """An image (C, H, W) in 0..1, its truth and prediction (L, H, W), and the text below it."""

    image: torch.Tensor
    truth: torch.Tensor
    prediction: torch.Tensor
    title: str
    note: str


def pick(values: torch.Tensor) -> dict[str, int]:
    """Which images have the best, the median and the worst value; the first of equals."""
    order = values.argsort(descending=True, stable=True)
    return {"best": int(order[0]), "median": int(order[len(order) // 2]), "worst": int(order[-1])}


def overlay(image: torch.Tensor, masks: torch.Tensor, size: int = TILE) -> Image.Image:
    """An image with the outlines of (L, H, W) masks, one colour per label, enlarged to `size` pixels."""
    pixels = (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0]).convert("RGB")
    shown = np.array(picture.resize((size, size), Image.Resampling.BICUBIC))
    scaled = [Image.fromarray(np.asarray(m, bool)).resize((size, size), Image.Resampling.NEAREST) for m in masks > 0]
    lines = [np.asarray(label) for label in scaled]
    for line in lines:
        shown[outline(~line)] //= 3  # a dark rim, so that the line can be seen on white as well
    for i, line in enumerate(lines):
        shown[outline(line)] = COLOURS[i % len(COLOURS)]
    return Image.fromarray(shown)


def overlay_sheet(images: list[Shown], labels: list[str]) -> Image.Image:
    """Columns of images: truth above, prediction below, and under them title and note."""
    left = 84
    width, height = left + len(images) * (TILE + GAP), 2 * (TILE + GAP) + CAPTION + GAP
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for row, text in enumerate(("truth", "prediction")):
        draw.text((GAP, GAP + row * (TILE + GAP) + 4), text, _TEXT, font(13))
    for i, label in enumerate(labels):
        y = GAP + TILE + GAP + 32 + 20 * i
        draw.line((GAP, y + 8, GAP + 12, y + 8), COLOURS[i % len(COLOURS)], 3)
        draw.text((GAP + 18, y), label, _QUIET, font(12))
    for column, shown in enumerate(images):
        x = left + column * (TILE + GAP)
        sheet.paste(overlay(shown.image, shown.truth), (x, GAP))
        sheet.paste(overlay(shown.image, shown.prediction), (x, 2 * GAP + TILE))
        draw.text((x, 2 * (TILE + GAP) + 2), shown.title, _TEXT, font(14))
        draw.text((x, 2 * (TILE + GAP) + 21), shown.note, _QUIET, font(12))
    return sheet
