"""One site's work in an evaluation: it scores a super model on its images and sends only a report."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedsm.client.site_settings import SiteSettings
from fedsm.client.work import Aborted, Answer
from fedsm.core.errors import UserError
from fedsm.core.limits import shown
from fedsm.core.settings import JobSettings
from fedsm.core.task_names import SCORE
from fedsm.core.tensors import Tensors
from fedsm.data.cases import ALL, SiteCases
from fedsm.data.split import PARTS
from fedsm.evaluation.candidates import Candidates
from fedsm.evaluation.image_scores import score_images
from fedsm.evaluation.metrics import check_metrics
from fedsm.evaluation.site_report import draw, report_of
from fedsm.selectors.policy import read_policy


class SiteScorer:
    """Scores a super model at a site. It may be one that took no part in training.

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
        """Scores every network of `payload` on the part that `meta` names, as `SiteTrainer.do` does its tasks.

        Raises:
            Aborted: the job was stopped.
            UserError: the site has no such images, or lacks a package.
        """
        if task != SCORE:
            raise UserError(f"unknown task {task!r}: server and site run different versions of fedsm")
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
        cases = SiteCases(site.data, self._name, settings, meta["part"], site.state_dir, site.rules, None, site.imports)

        def look() -> None:
            if aborted():
                raise Aborted

        candidates = Candidates(settings, self._sites, payload, site.device)
        scores = score_images(
            candidates, cases, policy, settings.batch_size, site.device, look, tolerance=settings.task.surface_tolerance
        )
        drawn, volumes = (draw(model, self._name, s, meta["seed"]) for s in (scores, scores.volumes))
        report = report_of(model, self._name, scores, drawn, private=True, volumes=volumes)
        return Answer({}, {"round": meta["round"], "report": report}, [])
