"""Whether a site takes part in a job's secure sums, by its own settings and its kit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedsm.client.secure_sum import SiteSum
from fedsm.client.site_settings import SiteSettings
from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.tracks import summed_tracks

PRIVACY_FILE = "privacy.json"  # FLARE's, in `local/` of a kit


def site_sum(settings: JobSettings, site: SiteSettings, name: str, run_id: str) -> SiteSum | None:
    """The site's part in a job's secure sums; None for a job without.

    Raises:
        UserError: the site takes part in jobs with secure sums alone, and this is none; or it filters its results,
            which a filter cannot do under masks.
    """
    if not settings.secure_sum:
        if site.min_sum is None:
            return None
        message = "this site's min_sum wants secure sums, and the job has no `secure_sum`"
        raise UserError(message, site=name, remedy="ask for another job", public=message)
    if _filters_results(site.kit.with_name("local") / PRIVACY_FILE):
        message = f"the site's privacy filters (local/{PRIVACY_FILE}) cannot change an update under masks"
        remedy = "ask for a job without secure_sum, or take the filters out"
        raise UserError(message, site=name, remedy=remedy, public=message)
    fewest = max(settings.min_sites, site.min_sum or 0)
    return SiteSum(settings.secure_sum, summed_tracks(settings), name, run_id, site.state_dir, site.kit, fewest)


def _filters_results(path: Path) -> bool:
    """Whether a kit's policy names filters on results, in any scope; also if it cannot be read."""
    try:
        policy: Any = json.loads(path.read_text()) if path.is_file() else {}
        return any(scope.get("task_result_filters") for scope in policy.get("scopes", []))
    except (OSError, ValueError, AttributeError, TypeError):
        return True
