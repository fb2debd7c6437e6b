"""What stands between the sums over a site's images and the server."""

from __future__ import annotations

from fedsm.client.site_settings import SiteSettings
from fedsm.errors import UserError
from fedsm.tracks.base import ClientTrack
from fedsm.tracks.private_sums import PrivateSums
from fedsm.tracks.releases import Releases


def guard_sums(tracks: dict[str, ClientTrack], site: SiteSettings, name: str, patients: int) -> PrivateSums | None:
    """Lets the tracks send sums only as the site allows it.

    Args:
        tracks: the site's tracks.
        site: its settings.
        name: its name.
        patients: how many different people the training images are of.

    Returns:
        what makes the sums private, where the site wants that.

    Raises:
        UserError: sums over too few people, or a descriptor that cannot be made private.
    """
    if any(track.sums for track in tracks.values()) and patients < site.min_patients:
        message = f"sums over {patients} training patients would tell too much of each: it takes {site.min_patients}"
        raise UserError(
            f"site {name!r}: {message}; add patients, ask for a job without the statistics selector, or lower"
            " min_patients in fedsm_site.yaml",
            public=message,
        )
    private = None
    if site.statistics_privacy:
        private = PrivateSums(site.statistics_privacy, site.state_dir / "statistics_privacy", name)
    for track in tracks.values():
        track.protect(private or Releases(site.state_dir, name, site.max_statistics))
    return private
