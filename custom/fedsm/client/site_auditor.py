"""One site's work in a privacy audit: it attacks the models that were trained with its images and sends the figures."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedsm.client.site_settings import SiteSettings
from fedsm.client.work import Aborted, Answer
from fedsm.core.errors import UserError
from fedsm.core.limits import shown
from fedsm.core.settings import JobSettings
from fedsm.core.task_names import AUDIT
from fedsm.core.tensors import Tensors
from fedsm.data.cases import SiteCases
from fedsm.evaluation.candidates import Candidates
from fedsm.evaluation.membership import audit_of, losses_of


class SiteAuditor:
    """Attacks a super model at a site that took part in training it.

    Args:
        settings: the settings that the super model was trained with.
        site: the site's own settings.
        name: the site's name.
        sites: the sites of the super model, in index order.
    """

    def __init__(self, settings: JobSettings, site: SiteSettings, name: str, sites: list[str]):
        torch.set_num_threads(site.threads)
        self._settings, self._site, self._name, self._sites = settings, site, name, sites

    def do(self, task: str, meta: dict, payload: dict[str, Tensors], aborted: Callable[[], bool]) -> Answer:
        """Attacks every network of `payload` that concerns this site, as `SiteTrainer.do` does its tasks.

        Raises:
            Aborted: the job was stopped.
            UserError: the site took no part in training, has too few patients, or trains with `dp`.
        """
        if task != AUDIT:
            raise UserError(f"unknown task {task!r}: server and site run different versions of fedsm")
        if self._name not in self._sites:
            raise UserError("took no part in training", site=self._name, public="the site took no part in training")
        seed = meta.get("seed")
        if not isinstance(seed, int):
            raise UserError(f"the server's task: {shown(seed)} is no seed", public="refused: no seed")
        site, settings = self._site, self._settings
        if site.dp:
            message = "the figures of an audit have no noise, and the site's dp covers training alone"
            remedy = "`fedsm privacy audit` at home tells no one else; epsilon bounds what any attack finds"
            raise UserError(message, site=self._name, remedy=remedy, public=message)
        parts = {
            part: SiteCases(site.data, self._name, settings, part, site.state_dir, site.rules, None, site.imports)
            for part in ("train", "test")
        }

        def look() -> None:
            if aborted():
                raise Aborted

        models = Candidates(settings, self._sites, payload, site.device)
        members, others = (losses_of(models, settings, cases, site.device, look) for cases in parts.values())
        patients = len(set(members.patients))
        if patients < site.min_patients:
            message = (
                f"figures of {patients} training patients would tell too much of each: it takes {site.min_patients}"
            )
            raise UserError(message, site=self._name, remedy="lower min_patients in fedsm_site.yaml", public=message)
        report = audit_of(self._name, members, others, seed, private=True)
        return Answer({}, {"round": meta["round"], "report": report}, [])
