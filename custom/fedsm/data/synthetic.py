"""Synthetic fundus photographs of several "hospitals", drawn purely from a seed.

The sites differ the way the six sources of the FedSM paper do: framing, colour, optic disc and cup, image
quality, lesions that look like another site's disc, and the habits of the people who drew the masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

_Pair = tuple[float, float]
_RGB = tuple[float, float, float]
_PROFILE_STREAM = 2**31  # no image index reaches this, so a profile's stream is never also an image's
_MIN_IMAGES = 12
_VESSEL_STEPS = 21


@dataclass(frozen=True)
class SiteProfile:
    """The knobs of one site. Lengths are fractions of the image side, colours are RGB in 0..1."""

    amount: float  # number of images relative to the median site
    retina: _RGB
    rim: _RGB  # the optic disc outside the cup
    cup: _RGB  # brighter or darker than the rim
    fov: float  # radius of the round field of view; 0.75 or more leaves no background (a crop)
    centre: _Pair  # mean (x, y) of the disc
    jitter: float  # standard deviation of the disc's centre
    mirror: bool  # half of the images show the other eye
    disc: _Pair  # least and greatest radius
    cup_ratio: _Pair  # least and greatest cup-to-disc ratio
    soft: float  # width of the disc's and cup's edges, relative to the radius
    habits: _Pair  # radius of the annotated disc, and cup, over that of the visible one
    halo: float  # peripapillary atrophy: opacity of a bright ring (negative: dark pigment)
    vessels: int  # number of main vessels
    vessel_dark: float
    decoys: float  # mean number of patches that resemble a disc, perhaps another site's
    decoy: _RGB
    decoy_size: _Pair
    exudates: float  # mean number of small yellow dots
    sheen: float  # strength of the light reflections
    vignette: float  # loss of light towards the border
    gamma: float
    blur: float
    noise: float


_PROFILES = (
    # Like Drishti-GS1: disc in the middle, bright wide cups, disc drawn tightly, dark scars.
    SiteProfile(
        amount=0.6, retina=(0.70, 0.36, 0.16), rim=(0.86, 0.54, 0.28), cup=(1.00, 0.93, 0.72), fov=0.56,
        centre=(0.50, 0.50), jitter=0.03, mirror=True, disc=(0.20, 0.25), cup_ratio=(0.60, 0.78), soft=0.10,
        habits=(0.92, 1.0), halo=0.05, vessels=6, vessel_dark=0.50, decoys=1.2, decoy=(0.44, 0.20, 0.10),
        decoy_size=(0.08, 0.13), exudates=1, sheen=0.04, vignette=0.25, gamma=1.0, blur=0.004, noise=0.015,
    ),
    # Like BinRushed: whole dark red field, disc at the left, exudates brighter than the disc, tight cups.
    SiteProfile(
        amount=1.2, retina=(0.50, 0.17, 0.09), rim=(0.66, 0.31, 0.16), cup=(0.80, 0.48, 0.29), fov=0.46,
        centre=(0.31, 0.49), jitter=0.025, mirror=False, disc=(0.17, 0.21), cup_ratio=(0.66, 0.80), soft=0.14,
        habits=(0.95, 0.88), halo=0.0, vessels=7, vessel_dark=0.55, decoys=2.2, decoy=(0.95, 0.72, 0.40),
        decoy_size=(0.06, 0.12), exudates=5, sheen=0.03, vignette=0.4, gamma=1.05, blur=0.006, noise=0.02,
    ),
    # Like Magrabia: greenish brown, disc at the right, cup darker than the rim, atrophy left out of the disc.
    SiteProfile(
        amount=0.8, retina=(0.46, 0.38, 0.17), rim=(0.90, 0.84, 0.55), cup=(0.52, 0.42, 0.20), fov=0.51,
        centre=(0.66, 0.50), jitter=0.03, mirror=False, disc=(0.18, 0.23), cup_ratio=(0.68, 0.80), soft=0.12,
        habits=(0.95, 1.0), halo=0.5, vessels=6, vessel_dark=0.42, decoys=1.4, decoy=(0.82, 0.76, 0.46),
        decoy_size=(0.07, 0.11), exudates=2, sheen=0.06, vignette=0.2, gamma=1.0, blur=0.005, noise=0.02,
    ),
    # Like MESSIDOR: bright orange, small disc, annotators who take in the atrophy and draw the cup generously.
    SiteProfile(
        amount=1.6, retina=(0.88, 0.50, 0.22), rim=(0.96, 0.68, 0.38), cup=(1.00, 0.92, 0.72), fov=0.485,
        centre=(0.40, 0.46), jitter=0.05, mirror=True, disc=(0.155, 0.19), cup_ratio=(0.50, 0.62), soft=0.16,
        habits=(1.30, 1.50), halo=0.5, vessels=8, vessel_dark=0.38, decoys=1.6, decoy=(0.60, 0.28, 0.13),
        decoy_size=(0.08, 0.14), exudates=4, sheen=0.10, vignette=0.15, gamma=0.9, blur=0.004, noise=0.012,
    ),
    # Like RIM-ONE: purplish, blurred crop that the disc nearly fills.
    SiteProfile(
        amount=0.9, retina=(0.58, 0.27, 0.27), rim=(0.74, 0.44, 0.40), cup=(0.95, 0.82, 0.74), fov=0.80,
        centre=(0.50, 0.50), jitter=0.03, mirror=True, disc=(0.33, 0.40), cup_ratio=(0.74, 0.86), soft=0.16,
        habits=(1.0, 0.92), halo=0.45, vessels=6, vessel_dark=0.50, decoys=0.4, decoy=(0.80, 0.50, 0.45),
        decoy_size=(0.05, 0.09), exudates=0, sheen=0.08, vignette=0.3, gamma=1.0, blur=0.012, noise=0.01,
    ),
    # Like REFUGE: noisy crop of a pale retina, on which the disc is dark, the cup faint and the lesions bright.
    SiteProfile(
        amount=1.1, retina=(0.84, 0.68, 0.56), rim=(0.68, 0.42, 0.33), cup=(0.76, 0.52, 0.42), fov=0.80,
        centre=(0.36, 0.55), jitter=0.04, mirror=False, disc=(0.23, 0.28), cup_ratio=(0.64, 0.76), soft=0.14,
        habits=(1.0, 1.1), halo=-0.12, vessels=8, vessel_dark=0.32, decoys=3.6, decoy=(1.00, 0.92, 0.72),
        decoy_size=(0.07, 0.12), exudates=2, sheen=0.05, vignette=0.1, gamma=1.0, blur=0.003, noise=0.035,
    ),
)  # fmt: skip


def _profile(site: int, seed: int) -> SiteProfile:
    """Return the profile of a site (0 is `site-1`): hand-made, or drawn from the seed."""
    if site < len(_PROFILES):
        return _PROFILES[site]
    rng = np.random.default_rng([seed, site, _PROFILE_STREAM])
    base = _PROFILES[int(rng.integers(len(_PROFILES)))]
    # One tint for all colours: the camera changes, the contrast of retina, rim and cup stays plausible.
    tint = rng.uniform(0.78, 1.15, 3)
    retina, rim, cup, decoy = (
        tuple(np.minimum(tint * colour, 1.0).tolist()) for colour in (base.retina, base.rim, base.cup, base.decoy)
    )
    crop = bool(rng.random() < 0.35)
    disc = rng.uniform(0.20, 0.32) if crop else rng.uniform(0.15, 0.20)
    ratio, patch = rng.uniform(0.5, 0.65), rng.uniform(0.06, 0.09)
    return SiteProfile(
        amount=rng.uniform(0.6, 1.6), retina=retina, rim=rim, cup=cup, fov=0.8 if crop else rng.uniform(0.44, 0.56),
        centre=(rng.uniform(0.33, 0.67), rng.uniform(0.44, 0.56)), jitter=rng.uniform(0.02, 0.05),
        mirror=bool(rng.random() < 0.4), disc=(disc, disc * 1.25), cup_ratio=(ratio, ratio + 0.16),
        soft=rng.uniform(0.10, 0.16), habits=(rng.uniform(0.9, 1.3), rng.uniform(0.85, 1.3)),
        halo=rng.uniform(-0.15, 0.5), vessels=int(rng.integers(5, 9)), vessel_dark=rng.uniform(0.3, 0.55),
        decoys=rng.uniform(0.4, 2.2), decoy=decoy, decoy_size=(patch, patch * 1.6), exudates=rng.uniform(0, 5),
        sheen=rng.uniform(0.03, 0.10), vignette=rng.uniform(0.1, 0.4), gamma=rng.uniform(0.85, 1.15),
        blur=rng.uniform(0.003, 0.012), noise=rng.uniform(0.01, 0.035),
    )  # fmt: skip


def _radial(xy: np.ndarray, centre: _Pair, radius: float, rng: np.random.Generator, wobble: float) -> np.ndarray:
    """Distance from `centre` over the radius of a wobbly ellipse: 1 on its outline."""
    dx, dy = xy[0] - np.float32(centre[0]), xy[1] - np.float32(centre[1])
    angle, outline = np.arctan2(dy, dx), np.float32(radius)
    for order in (2, 3):
        size, phase = rng.normal(0, radius * wobble / order), rng.uniform(0, 2 * math.pi)
        outline = outline + np.float32(size) * np.cos(order * angle + np.float32(phase))
    return np.hypot(dx, dy) / outline


def _blend(image: np.ndarray, colour: np.ndarray | _RGB, distance: np.ndarray, soft: float, opacity: float) -> None:
    """Paint the inside of a shape, with a soft edge, into the image."""
    alpha = np.clip(0.5 + (1.0 - distance) / np.float32(2.0 * soft), 0.0, 1.0) * np.float32(opacity)
    image += alpha[..., None] * (np.asarray(colour, np.float32) - image)


def _clouds(rng: np.random.Generator, size: int, cells: int) -> np.ndarray:
    """Smooth noise with about `cells` patches along a side."""
    grid = Image.fromarray(rng.standard_normal((cells, cells), np.float32))
    return np.asarray(grid.resize((size, size), Image.Resampling.BICUBIC))


def _vessels(profile: SiteProfile, rng: np.random.Generator, size: int, centre: _Pair, radius: float) -> np.ndarray:
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
    progress: Callable[[int], None] | None = None,
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
        profile = _profile(site, seed)
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
