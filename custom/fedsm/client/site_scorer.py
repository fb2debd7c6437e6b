"""One site's work in an evaluation: it scores a super model on its images and sends only a report."""

from __future__ import annotations

from fedsm.client.model_visitor import Look, ModelVisitor
from fedsm.core.errors import UserError
from fedsm.core.limits import shown
from fedsm.core.task_names import SCORE
from fedsm.core.tensors import Tensors
from fedsm.data.cases import ALL
from fedsm.data.split import PARTS
from fedsm.evaluation.candidates import Candidates
from fedsm.evaluation.image_scores import score_images
from fedsm.evaluation.metrics import check_metrics
from fedsm.evaluation.site_report import draw, report_of
from fedsm.selectors.policy import read_policy


class SiteScorer(ModelVisitor):
    """Scores a super model at a site. It may be one that took no part in training."""

    task = SCORE

    def report(self, meta: dict, payload: dict[str, Tensors], look: Look) -> dict:
        """Scores of every network of `payload` on the part that `meta` names.

        Raises:
            Aborted: the job was stopped.
            UserError: the site has no such images, or lacks a package.
        """
        check_metrics()
        site, policy = self._site, read_policy(meta["super_model"], "the server's task")
        if meta["part"] not in (*PARTS, ALL):
            raise UserError(f"the server's task: no part {shown(meta['part'])}", public="refused: no such part")
        if site.dp and meta["part"] in ("train", ALL):
            message = "scores over training images have no noise, and the site's dp covers training alone"
            raise UserError(message, site=self._name, remedy="ask for the part `test`", public=message)
        # The task's meta holds these values twice; the checked ones count: unchecked gammas could reveal single images.
        settings = self._settings
        model: dict = {"sites": self._sites, "labels": list(settings.task.labels), "gamma": policy.gamma}
        model["settings"] = {"gammas": list(settings.gammas)}
        candidates = Candidates(settings, self._sites, payload, site.device)
        scores = score_images(
            candidates,
            self.cases(meta["part"]),
            policy,
            settings.batch_size,
            site.device,
            look,
            tolerance=settings.task.surface_tolerance,
        )
        drawn, volumes = (draw(model, self._name, s, meta["seed"]) for s in (scores, scores.volumes))
        return report_of(model, self._name, scores, drawn, private=True, volumes=volumes)
