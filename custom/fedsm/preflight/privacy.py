"""Whether a site that asks for private training can have it, and what is left of its budget."""

from __future__ import annotations

from fedsm.client.privacy_ledger import PrivacyLedger
from fedsm.client.site_settings import SiteSettings
from fedsm.core.errors import UserError
from fedsm.core.privacy_loss import epsilon_of
from fedsm.preflight.line import Line


def check_privacy(site: SiteSettings, name: str) -> list[Line]:
    """A line for a site with `dp`; none without."""
    if site.dp is None:
        return []
    try:
        history = PrivacyLedger(site.state_dir, name).history()
        spent = epsilon_of((steps for _, steps in history), site.dp.delta)
    except UserError as e:
        return [Line("FAIL", "dp", e.what, e.remedy or "")]
    what = f"epsilon {spent:.3g} of {site.dp.total:g} is spent, at delta {site.dp.delta:g}"
    if spent < site.dp.total:
        return [Line("PASS", "dp", what)]
    return [Line("FAIL", "dp", what, "raise `budget` of dp in fedsm_site.yaml, or take no part in training")]
