"""The sites that have registered, their numbers of images, and their weights in averages."""

from __future__ import annotations

from fedsm.core.settings import SiteWeights
from fedsm.core.shares import bounded_shares
from fedsm.server.checks import PARTS


class Registry:
    """The sites that have registered.

    Args:
        max_share: the most that one site weighs in an average, as a multiple of the median site's training images.
        site_weights: `images`: a site weighs its training images, within that limit; `equal`: every site weighs 1.
    """

    def __init__(self, max_share: float, site_weights: SiteWeights = "images"):
        self._max_share = max_share
        self._site_weights = site_weights
        self.images: dict[str, dict[str, int]] = {}  # site -> images of each part, as first registered
        self.keys: dict[str, dict] = {}  # site -> its public key for secure sums
        self.privacy: dict[str, dict[str, float]] = {}  # site -> its report on the privacy of its sums
        self._shares: dict[str, float] | None = None  # asked for with every answer, and the same until a site joins

    def add(self, site: str, meta: dict) -> None:
        """Takes a registration, after all checks."""
        self.images[site] = {part: meta["images"][part] for part in PARTS}
        self._shares = None
        if "sum_key" in meta:
            self.keys[site] = dict(meta["sum_key"])
        if "privacy" in meta:
            self.privacy[site] = dict(meta["privacy"])

    def shares(self) -> dict[str, float]:
        """Each registered site's weight in averages of networks; the sites that answer share 1 in proportion."""
        if self._shares is None:
            counts = {site: images["train"] for site, images in self.images.items()}
            equal = self._site_weights == "equal"
            self._shares = dict.fromkeys(counts, 1.0) if equal else bounded_shares(counts, self._max_share)
        return self._shares

    def unusual_counts(self) -> dict[str, str]:
        """Sites whose image counts are so far from the others' that a person should know, with the consequence.

        A site's weight in averages is limited. Scores over all images are not: a site with more images than all others
        together mostly decides them.
        """
        found: dict[str, list[str]] = {}
        for site, share in self.shares().items() if self._site_weights == "images" else ():
            count = self.images[site]["train"]
            if share != count:
                found.setdefault(site, []).append(
                    f"registered {count} training images, more than max_share ({self._max_share:g}) times the"
                    f" median; it weighs as {share:g} in averages"
                )
        for part in ("validation", "test") if len(self.images) > 2 else ():
            total = sum(images[part] for images in self.images.values())
            for site, images in self.images.items():
                if 2 * images[part] > total:
                    found.setdefault(site, []).append(
                        f"registered {images[part]} {part} images, more than all others together: {part} scores over"
                        " all images are mostly its own word"
                    )
        return {site: "; ".join(reasons) for site, reasons in found.items()}
