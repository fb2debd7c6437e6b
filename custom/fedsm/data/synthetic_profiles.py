"""What makes the synthetic hospitals different: one profile per site, six of them made by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Pair = tuple[float, float]
Rgb = tuple[float, float, float]
_PROFILE_STREAM = 2**31  # no image index reaches this, so a profile's stream is never also an image's


@dataclass(frozen=True)
class SiteProfile:
    """The knobs of one site. Lengths are fractions of the image side, colours are RGB in 0..1."""

    amount: float  # number of images relative to the median site
    retina: Rgb
    rim: Rgb  # the optic disc outside the cup
    cup: Rgb  # brighter or darker than the rim
    fov: float  # radius of the round field of view; 0.75 or more leaves no background (a crop)
    centre: Pair  # mean (x, y) of the disc
    jitter: float  # standard deviation of the disc's centre
    mirror: bool  # half of the images show the other eye
    disc: Pair  # least and greatest radius
    cup_ratio: Pair  # least and greatest cup-to-disc ratio
    soft: float  # width of the disc's and cup's edges, relative to the radius
    habits: Pair  # radius of the annotated disc, and cup, over that of the visible one
    halo: float  # peripapillary atrophy: opacity of a bright ring (negative: dark pigment)
    vessels: int  # number of main vessels
    vessel_dark: float
    decoys: float  # mean number of patches that resemble a disc, perhaps another site's
    decoy: Rgb
    decoy_size: Pair
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


def site_profile(site: int, seed: int) -> SiteProfile:
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
