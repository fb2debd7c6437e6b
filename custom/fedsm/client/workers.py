"""Who does a task at a site: a trainer, or for an evaluation a scorer."""

from __future__ import annotations

from pathlib import Path

from fedsm.client.site_auditor import SiteAuditor
from fedsm.client.site_scorer import SiteScorer
from fedsm.client.site_settings import SiteLocation, load_site_settings
from fedsm.client.site_trainer import SiteTrainer
from fedsm.client.work import check_task
from fedsm.core.settings import JobSettings
from fedsm.core.task_names import AUDIT, SCORE
from fedsm.nets import check_sizes
from fedsm.tracks import check_options

Worker = SiteTrainer | SiteScorer | SiteAuditor
_OF_EVALUATIONS: dict[str, type[SiteScorer] | type[SiteAuditor]] = {SCORE: SiteScorer, AUDIT: SiteAuditor}


def build_worker(location: SiteLocation, task: str, meta: dict) -> Worker:
    """The worker of a run at a site, from the site's own settings and what came with the first task.

    Raises:
        UserError: the task's run id or site names are invalid, it asks for more than a site allows
            (`fedsm.core.limits`), or the site's own settings are wrong.
    """
    run_id, sites = check_task(meta)
    site = load_site_settings(Path(location.local), Path(location.workspace), *location[2:])
    settings = JobSettings.from_dict(meta["settings"])
    check_options(settings)
    check_sizes(settings, len(sites))
    if task in _OF_EVALUATIONS:
        return _OF_EVALUATIONS[task](settings, site, location.site, sites)
    return SiteTrainer(settings, site, location.site, sites.index(location.site), sites, run_id)
