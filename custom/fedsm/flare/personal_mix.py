"""One task between training and the candidates: every site tries shares of the others' personal models on its own.

Nothing of it is in a checkpoint: a run that is resumed asks again, with the same models.
"""

from __future__ import annotations

from fedsm.core.personal_mix import MEAN, OWN, shares_of
from fedsm.core.tensors import Tensors
from fedsm.flare import exchange
from fedsm.flare.run import Run
from fedsm.flare.task import TaskSpec
from fedsm.selectors.inference import GLOBAL, personal
from fedsm.server.personal_mix import PersonalMix


def mix_personal(run: Run, models: dict[str, Tensors]) -> dict[str, Tensors]:
    """The models for the super model, the personal ones mixed as each site's validation images want them.

    Args:
        run: the run, trained; its record notes what was chosen.
        models: the best models of the run, by name.

    Returns:
        the same models where `personal_mix` is not set, or where there are not two personal ones.
    """
    if not (shares := shares_of(run.job)):
        return models
    own = {site: models[personal(site)] for site in run.sites if _has_own(site, models)}
    if len(own) < 2:
        return models
    mix = PersonalMix(own, run.tracks["personal"].held(), shares)
    spec = TaskSpec(
        "shares of the personal models", exchange.MIX, run.last_round, [s for s in run.registered_here() if s in own],
        payload=lambda site: {OWN: own[site], MEAN: mix.mean},
        meta={"models": mix.count},
        meta_problem=lambda site, meta: mix.problem(meta.get("mix")),
    )  # fmt: skip
    results = run.run_task(spec)
    run.record.add_once("mix_down_bytes", results.down)
    run.record.personal_mix = {site: mix.choice(results.accepted.get(site, {}).get("mix")) for site in own}
    return models | mix.mixed(run.record.personal_mix)


def _has_own(site: str, models: dict[str, Tensors]) -> bool:
    """Not so for a site that was gone when models were handed over: the global one stands in, and is not mixed."""
    return personal(site) in models and models[personal(site)] is not models.get(GLOBAL)
