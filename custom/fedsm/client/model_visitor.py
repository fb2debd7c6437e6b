"""What evaluating and auditing a super model at a site have in common: its networks visit the site's images once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch

from fedsm.client.site_settings import SiteSettings
from fedsm.client.work import Aborted, Answer
from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.data.cases import SiteCases

Look = Callable[[], None]  # raises `Aborted` where the job was stopped


class ModelVisitor(ABC):
    """A site's only task in a job about a finished super model.

    Args:
        settings: the settings that the super model was trained with.
        site: the site's own settings.
        name: the site's name.
        sites: the sites of the super model, in index order.
    """

    task: ClassVar[str]  # the one that it does

    def __init__(self, settings: JobSettings, site: SiteSettings, name: str, sites: list[str]):
        torch.set_num_threads(site.threads)
        self._settings, self._site, self._name, self._sites = settings, site, name, sites

    def do(self, task: str, meta: dict, payload: dict[str, Tensors], aborted: Callable[[], bool]) -> Answer:
        """Does the task with the networks of `payload`, as `SiteTrainer.do` does its tasks.

        Raises:
            Aborted: the job was stopped.
            UserError: another task, or `report` says why not.
        """
        if task != self.task:
            raise UserError(f"unknown task {task!r}: server and site run different versions of fedsm")

        def look() -> None:
            if aborted():
                raise Aborted

        return Answer({}, {"round": meta["round"], "report": self.report(meta, payload, look)}, [])

    @abstractmethod
    def report(self, meta: dict, payload: dict[str, Tensors], look: Look) -> dict:
        """What the site tells of the networks: figures alone.

        Args:
            meta: the task's plain values.
            payload: the networks.
            look: to be called between images.
        """

    def cases(self, part: str) -> SiteCases:
        """The site's images of a part, with their patients."""
        site, settings = self._site, self._settings
        return SiteCases(site.data, self._name, settings, part, site.state_dir, site.rules, None, site.imports)
