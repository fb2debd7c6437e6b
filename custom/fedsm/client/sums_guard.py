"""The checks that sums over a site's images pass before they are sent to the server."""

from __future__ import annotations

from pathlib import Path

from fedsm.client.site_settings import SiteSettings
from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.selectors.private_sums import PrivateSums
from fedsm.selectors.releases import Releases
from fedsm.tracks import sends_sums


def check_sums_private(settings: JobSettings, release: PrivateSums | Releases, name: str) -> None:
    """Refuses sums without noise at a site whose training is private: they would tell of the same images.

    Raises:
        UserError: with the remedy.
    """
    if sends_sums(settings) and not isinstance(release, PrivateSums):
        message = "the site's dp does not cover the sums of the statistics selector"
        raise UserError(
            message,
            site=name,
            remedy="add statistics_privacy to fedsm_site.yaml, or ask for a job without that selector",
            public=message,
        )


def release_of(
    settings: JobSettings, site: SiteSettings, name: str, files: list[tuple[Path, str]]
) -> PrivateSums | Releases:
    """How sums may leave the site: with noise where the site asks for it, and counted in any case.

    Where the site lets the job's seed split its images (`splits: by_seed`), sums over choices that differ by a few
    patients are what it asked for, and only their number is limited.

    Args:
        settings: the job's settings.
        site: the site's settings.
        name: its name.
        files: the training images, each with its patient.

    Raises:
        UserError: sums over too few people.
    """
    patients = len({patient for _, patient in files})
    if sends_sums(settings) and patients < site.min_patients:
        message = f"sums over {patients} training patients would tell too much of each: it takes {site.min_patients}"
        raise UserError(
            message,
            site=name,
            remedy="add patients, ask for a job without the statistics selector, or lower min_patients in"
            " fedsm_site.yaml",
            public=message,
        )
    if site.statistics_privacy:
        return PrivateSums(site.statistics_privacy, site.state_dir / "statistics_privacy", name)
    least = site.min_patients if site.rules.fixed_splits else 1
    return Releases(site.state_dir, name, site.max_statistics, files, least)
