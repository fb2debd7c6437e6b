"""Who does a task at a site: a trainer, or for an evaluation a scorer."""

from __future__ import annotations

from pathlib import Path

from fedsm.client.site_scorer import SiteScorer
from fedsm.client.site_settings import Place, load_site_settings
from fedsm.client.site_trainer import SiteTrainer
from fedsm.settings import JobSettings
from fedsm.task_names import SCORE

Worker = SiteTrainer | SiteScorer


def build_worker(place: Place, task: str, meta: dict) -> Worker:
    """The worker of a run at a site, from the site's own settings and what came with the first task."""
    site = load_site_settings(Path(place.local), Path(place.workspace), place.site, place.fair_share)
    settings, sites = JobSettings.from_dict(meta["settings"]), list(meta["sites"])
    if task == SCORE:
        return SiteScorer(settings, site, place.site)
    return SiteTrainer(settings, site, place.site, sites.index(place.site), sites, meta["run_id"])
