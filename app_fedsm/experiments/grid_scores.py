"""The scores of a finished run image by image, which its results do not hold."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings

if TYPE_CHECKING:
    from fedsm.data.cache import SiteCache


def score_run(folder: Path, settings: JobSettings, data: Path, sites: list[str], cache: Path) -> dict:
    """The Dice of every test image of some sites, by which rows are compared; see `fedsm.evaluation.row_scores`.

    Where it cannot be computed, the run is finished all the same: `absent` then says why.
    """
    import torch

    from app_fedsm.cli.evaluate import check_counts
    from fedsm.data.cases import part_cases
    from fedsm.data.dataset import load_site
    from fedsm.evaluation.candidates import Candidates
    from fedsm.evaluation.image_scores import score_images
    from fedsm.evaluation.metrics import DICE
    from fedsm.evaluation.row_scores import row_scores, to_plain
    from fedsm.selectors.policy import read_policy
    from fedsm.super_model.artefact import load_super_model

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model = load_super_model(folder / "super_model")
        models = Candidates(settings, model.manifest["sites"], model.networks, device)
        policy, scores = read_policy(model.manifest, str(folder)), {}
        for site in sites:
            part = load_site(data / site, site, settings, cache=site_cache(cache, site))["test"]
            cases = part_cases(part, "test")
            scores[site] = score_images(models, cases, policy, settings.batch_size, device, lambda: None, (DICE,))
        check_counts(model, scores, "test")
    except UserError as e:
        return {"absent": str(e)}
    return to_plain(row_scores(scores), model.manifest, "test")


def site_cache(cache: Path, site: str) -> SiteCache:
    """Where the decoded images of a site lie, for all runs of the experiment."""
    from fedsm.client.site_file import CACHE_BUDGET
    from fedsm.data.cache import SiteCache

    return SiteCache(cache / site, CACHE_BUDGET, os.cpu_count() or 1)
