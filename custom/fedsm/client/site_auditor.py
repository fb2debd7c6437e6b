"""One site's work in a privacy audit: it attacks the models that were trained with its images and sends the figures."""

from __future__ import annotations

from fedsm.client.model_visitor import Look, ModelVisitor
from fedsm.core.errors import UserError
from fedsm.core.limits import shown
from fedsm.core.task_names import AUDIT
from fedsm.core.tensors import Tensors
from fedsm.evaluation.candidates import Candidates
from fedsm.evaluation.membership import audit_of, losses_of


class SiteAuditor(ModelVisitor):
    """Attacks a super model at a site that took part in training it."""

    task = AUDIT

    def report(self, meta: dict, payload: dict[str, Tensors], look: Look) -> dict:
        """The figures of the attacks on every network of `payload` that concerns this site.

        Raises:
            Aborted: the job was stopped.
            UserError: the site took no part in training, has too few patients, or trains with `dp`.
        """
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
        cases = [self.cases(part) for part in ("train", "test")]
        models = Candidates(settings, self._sites, payload, site.device)
        members, others = (losses_of(models, settings, part, site.device, look) for part in cases)
        patients = len(set(members.patients))
        if patients < site.min_patients:
            message = (
                f"figures of {patients} training patients would tell too much of each: it takes {site.min_patients}"
            )
            raise UserError(message, site=self._name, remedy="lower min_patients in fedsm_site.yaml", public=message)
        return audit_of(self._name, members, others, seed, private=True)
