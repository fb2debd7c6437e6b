"""What stands between the sums over a site's images and the server."""

from __future__ import annotations

from pathlib import Path

from fedsm.client.site_settings import SiteSettings
from fedsm.core.errors import UserError
from fedsm.selectors.private_sums import PrivateSums
from fedsm.selectors.releases import Releases
from fedsm.tracks.base import ClientTrack


def guard_sums(
    tracks: dict[str, ClientTrack], site: SiteSettings, name: str, files: list[tuple[Path, str]]
) -> PrivateSums | None:
    """Lets the tracks send sums only as the site allows it.

    Where the site lets the job's seed split its images (`splits: by_seed`), sums over choices that differ by a few
    patients are what it asked for, and only their number is limited.

    Args:
        tracks: the site's tracks.
        site: its settings.
        name: its name.
        files: the training images, each with its patient.

    Returns:
        what makes the sums private, where the site wants that.

    Raises:
        UserError: sums over too few people, or a descriptor that cannot be made private.
    """
    patients = len({patient for _, patient in files})
    if any(track.sums for track in tracks.values()) and patients < site.min_patients:
        message = f"sums over {patients} training patients would tell too much of each: it takes {site.min_patients}"
        raise UserError(
            message,
            site=name,
            remedy="add patients, ask for a job without the statistics selector, or lower min_patients in"
            " fedsm_site.yaml",
            public=message,
        )
    private = None
    if site.statistics_privacy:
        private = PrivateSums(site.statistics_privacy, site.state_dir / "statistics_privacy", name)
    least = site.min_patients if site.rules.fixed_splits else 1
    for track in tracks.values():
        track.protect(private or Releases(site.state_dir, name, site.max_statistics, files, least))
    return private
