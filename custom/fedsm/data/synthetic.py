"""Synthetic fundus photographs of several "hospitals", drawn purely from a seed.

The sites differ the way the six sources of the FedSM paper do: framing, colour, optic disc and cup, image
quality, lesions that look like another site's disc, and the habits of the people who drew the masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from fedsm.data.synthetic_profiles import Pair, Rgb, SiteProfile, site_profile

_MIN_IMAGES = 12
_VESSEL_STEPS = 21


def _radial(xy: np.ndarray, centre: Pair, radius: float, rng: np.random.Generator, wobble: float) -> np.ndarray:
    """Distance from `centre` over the radius of a wobbly ellipse: 1 on its outline."""
    dx, dy = xy[0] - np.float32(centre[0]), xy[1] - np.float32(centre[1])
    angle, outline = np.arctan2(dy, dx), np.float32(radius)
    for order in (2, 3):
        size, phase = rng.normal(0, radius * wobble / order), rng.uniform(0, 2 * math.pi)
        outline = outline + np.float32(size) * np.cos(order * angle + np.float32(phase))
    return np.hypot(dx, dy) / outline


def _blend(image: np.ndarray, colour: np.ndarray | Rgb, distance: np.ndarray, soft: float, opacity: float) -> None:
    """Paint the inside of a shape, with a soft edge, into the image."""
    alpha = np.clip(0.5 + (1.0 - distance) / np.float32(2.0 * soft), 0.0, 1.0) * np.float32(opacity)
    image += alpha[..., None] * (np.asarray(colour, np.float32) - image)


def _clouds(rng: np.random.Generator, size: int, cells: int) -> np.ndarray:
    """Smooth noise with about `cells` patches along a side."""
    grid = Image.fromarray(rng.standard_normal((cells, cells), np.float32))
    return np.asarray(grid.resize((size, size), Image.Resampling.BICUBIC))


def _vessels(profile: SiteProfile, rng: np.random.Generator, size: int, centre: Pair, radius: float) -> np.ndarray:
    """Opacity of branching vessels that emerge from the disc and bend around the macula."""
    scale, steps, third = 2 * size, _VESSEL_STEPS, _VESSEL_STEPS // 3  # drawn double and reduced: smooth lines
    canvas = Image.new("L", (scale, scale))
    pen = ImageDraw.Draw(canvas)
    ramp = np.linspace(0.0, 1.0, steps)
    temporal = 1.0 if centre[0] < 0.5 else -1.0

    def trace(start: complex, heading: float, bend: float, length: float, width: float, branches: int) -> None:
        # The plane as complex numbers: a heading is one exponential, a path one running sum.
        turn = heading + bend * ramp + rng.normal(0, 0.13, steps).cumsum()
        path = np.concatenate([[start], start + np.exp(1j * turn).cumsum() * (length / steps)])
        points, tone = (path * scale).view(np.float64).tolist(), int(rng.integers(150, 256))
        for part in range(3):  # thinner from third to third
            piece = points[2 * part * third : 2 * (part + 1) * third + 2]
            pen.line(piece, fill=tone, width=max(1, round(width * scale * (1 - 0.25 * part))))
        for at in rng.integers(4, steps - 3, branches).tolist():
            side = 1.0 if rng.random() < 0.5 else -1.0
            away = turn[at - 1] + side * rng.uniform(0.4, 0.8)
            trace(path[at], away, -0.4 * side, 0.55 * length, 0.6 * width, max(branches - 2, 0))

    for number in range(profile.vessels):
        up = -1.0 if number % 2 else 1.0
        # The first four are the arcades, which run up or down and then bow; later ones run to the nasal side.
        arcade = number < 4
        lean = rng.uniform(-0.1, 0.45) if arcade else rng.uniform(-1.1, -0.5)
        bend = -up * temporal * rng.uniform(0.5, 1.2) if arcade else 0.0
        start = complex(*np.add(centre, rng.normal(0, 0.15 * radius, 2)))
        width = 0.0055 + 0.05 * radius * rng.uniform(0.7, 1.3)
        trace(start, math.atan2(up, temporal * math.tan(lean)), bend, rng.uniform(0.45, 0.75), width, 3)
    return np.asarray(canvas.resize((size, size), Image.Resampling.BOX), np.float32) / 255.0


def draw_image(profile: SiteProfile, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw one photograph and its annotation.

    Args:
        profile: The site's look and habits.
        rng: Source of everything that differs between the site's images.
        size: Side of the square image in pixels.

    Returns:
        The image (H, W, 3) uint8, and the mask (H, W) uint8: 0 background, 1 disc rim, 2 cup.
    """
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size
    xy = np.stack(np.meshgrid(axis, axis))
    x, y = (float(c + rng.normal(0, profile.jitter)) for c in profile.centre)
    if profile.mirror and rng.random() < 0.5:
        x = 1.0 - x
    side = 1.0 if x < 0.5 else -1.0  # the macula is beside the disc, towards the middle of the image
    radius, ratio = rng.uniform(*profile.disc), rng.uniform(*profile.cup_ratio)
    slack = 0.3 * radius * (1.0 - ratio)
    disc = _radial(xy, (x, y), radius, rng, 0.08)
    cup = _radial(xy, (x + rng.normal(0, slack), y + rng.normal(0, slack)), radius * ratio, rng, 0.12)

    mottle = 1.0 + 0.10 * _clouds(rng, size, 4) + 0.05 * _clouds(rng, size, 14)
    macula = np.hypot(xy[0] - (x + side * (0.18 + 1.9 * radius)), xy[1] - (y + 0.04)) / (0.03 + 0.7 * radius)
    shade = mottle * (1.0 - 0.35 * np.exp(-(macula**2)))
    image = np.asarray(profile.retina, np.float32) * shade[..., None]
    rim, inner, patch = (np.multiply(c, rng.normal(1, 0.03)) for c in (profile.rim, profile.cup, profile.decoy))
    # The atrophy is a crescent: wide on the side of the macula, narrow on the other.
    lean = np.clip(((xy[0] - x) * side + 0.4 * (xy[1] - y)) / radius, -1, 1)
    halo = disc / (1.22 + 0.18 * lean + float(rng.normal(0, 0.04)))
    _blend(image, rim if profile.halo > 0 else image * 0.4, halo, 0.08, abs(profile.halo))
    for _ in range(rng.poisson(profile.decoys)):
        angle, own = rng.uniform(0, 2 * math.pi), rng.uniform(*profile.decoy_size)
        away = 1.35 * radius + own + rng.uniform(0, 0.3)
        lesion = _radial(xy, (x + away * math.cos(angle), y + away * math.sin(angle)), own, rng, 0.15)
        _blend(image, patch, lesion, 0.2, rng.uniform(0.75, 1.0))
        _blend(image, np.minimum(patch * 1.17, 1.0), lesion / 0.55, 0.3, 0.9)  # a core that resembles a cup
    _blend(image, rim, disc, profile.soft, 1.0)
    _blend(image, inner, cup, 1.5 * profile.soft, 1.0)
    dots = rng.uniform((0.1, 0.1, 0.008), (0.9, 0.9, 0.02), (rng.poisson(profile.exudates), 3)).astype(np.float32)
    if len(dots):
        spots = np.hypot(*(xy[:, None] - dots.T[:2, :, None, None])) / dots[:, 2, None, None]
        _blend(image, (0.95, 0.85, 0.5), spots.min(0), 0.5, 0.6)

    # Light: vessels absorb green and blue most, reflections are a bluish white, the border gets less.
    vessels = profile.vessel_dark * _vessels(profile, rng, size, (x, y), radius)
    image *= 1.0 - vessels[..., None] * np.array([0.6, 1.0, 0.9], np.float32)
    sheen = profile.sheen * np.clip(_clouds(rng, size, 5), 0, None)
    image += sheen[..., None] * np.array([0.8, 1.0, 1.0], np.float32)
    border = np.hypot(xy[0] - 0.5, xy[1] - 0.5)
    slope = np.tensordot(rng.normal(0, 0.15, 2).astype(np.float32), xy - 0.5, 1)
    light = (1.0 + slope) * (1.0 - profile.vignette * (2.0 * border) ** 2) * float(rng.normal(1, 0.05))
    image *= light[..., None]
    np.clip(image, 0.0, 1.0, out=image)
    if profile.gamma != 1.0:  # a power is the slowest step
        image **= profile.gamma
    image *= np.clip((profile.fov - border) * size, 0.0, 1.0)[..., None]

    photo = Image.fromarray((image * 255).astype(np.uint8))
    grain = rng.standard_normal((size, size, 3), np.float32) * np.float32(255 * profile.noise)
    grain += np.asarray(photo.filter(ImageFilter.GaussianBlur(profile.blur * size)))
    mask = (disc <= profile.habits[0]).astype(np.uint8)
    mask[(mask == 1) & (cup <= profile.habits[1])] = 2
    return np.clip(grain, 0, 255).astype(np.uint8), mask


def write_sites(
    out: str | Path,
    sites: int = 6,
    seed: int = 0,
    images: int = 40,
    size: int = 128,
    progress: Callable[[int], object] | None = None,
) -> list[str]:
    """Write `<out>/<site>/images/<stem>.png` and `<out>/<site>/masks/<stem>.png`.

    Every image has a stream of its own, so asking for more sites or images changes no earlier one.

    Args:
        out: Folder to write to.
        sites: Number of sites, at least 2.
        seed: Seed of everything drawn.
        images: Number of images of the median site; no site has fewer than 12.
        size: Side of the square images in pixels.
        progress: Called with 1 after each image.

    Returns:
        The names of the sites.

    Raises:
        ValueError: If `sites` is below 2.
    """
    if sites < 2:
        raise ValueError(f"a federation needs at least 2 sites, got {sites}")
    names = [f"site-{site + 1}" for site in range(sites)]
    for site, name in enumerate(names):
        profile = site_profile(site, seed)
        folders = [Path(out, name, kind) for kind in ("images", "masks")]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        for number in range(max(_MIN_IMAGES, round(images * profile.amount))):
            drawn = draw_image(profile, np.random.default_rng([seed, site, number]), size)
            for folder, pixels in zip(folders, drawn, strict=True):
                Image.fromarray(pixels).save(folder / f"img_{number:03d}.png", compress_level=3)
            if progress is not None:
                progress(1)
    return names
