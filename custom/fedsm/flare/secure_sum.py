"""A round's updates, summed so that the server sees no single one: two short tasks after the sites have trained.

`secure_sum` says whom it concerns (the group), collects the masked updates, has their sum opened by a majority of the
group, and gives every track the mean as if each site of the sum had sent just that: what a track makes of updates only
by averaging them comes out the same.
"""

from __future__ import annotations

from fedsm.core.errors import UserError
from fedsm.core.secure_sum.group import FEWEST, Group
from fedsm.core.tensors import Tensors
from fedsm.flare import exchange
from fedsm.flare.run import Run
from fedsm.flare.task import TaskResults, TaskSpec
from fedsm.flare.task_runner import GO_ON
from fedsm.server.secure_sum import SEALED, ServerSum
from fedsm.tracks import summed_tracks
from fedsm.tracks.base import TRAIN


def secure_sum(run: Run, number: int, names: list[str], results: TaskResults) -> None:
    """Gives the tracks of a round the mean update of the sites that have trained.

    Args:
        run: the run; if it is stopped meanwhile, its tracks stay as they are.
        number: the round.
        names: the tracks of the round.
        results: of the training; sites whose update is not in the sum are taken out, and bytes are added.

    Raises:
        UserError: too few sites answered to open a sum.
    """
    settings = run.job.secure_sum
    assert settings
    trained = list(results.accepted)
    weighing = {name: how for name, how in summed_tracks(run.job).items() if name in names}
    templates = {name: run.tracks[name].expects(TRAIN) for name in weighing}
    if not any(templates.values()):
        return

    # 1. Who sums with whom: the sites that have trained, with the keys that they registered.
    group = _group(run, number, trained)
    work = ServerSum(group, templates, weighing, settings, group.context(run.record.run_id, settings))
    needed = max(group.threshold, run.job.min_sites)
    meta = {"group": group.to_dict()}

    # 2. Their updates, each under masks that cancel in the sum and one that only a majority can take off.
    masked = run.run_task(TaskSpec(
        f"masked updates of round {number}", exchange.SUM, number, trained, needed, names, meta,
        timeout=settings.wait, expects=work.expects_masked(), take=work.add,
    ))  # fmt: skip
    if run.stopped:
        return

    # 3. A majority opens the sum of those who answered; of the others nothing can be opened any more.
    opened = run.run_task(TaskSpec(
        f"opening of the sum of round {number}", exchange.OPEN, number, work.summed, group.threshold, names,
        meta | {"summed": work.summed}, lambda site: {SEALED: work.sealed_for(site)},
        timeout=settings.wait, expects=work.expects_opened(), take=work.take_opened,
    ))  # fmt: skip
    if run.stopped:
        return
    results.leave_out({s: masked.missing.get(s, "no masked update") for s in work.missing}, masked.down, masked.up)
    results.leave_out({}, opened.down, opened.up)
    _give(run, work)


def _group(run: Run, number: int, trained: list[str]) -> Group:
    registry = run.aggregator.registry
    shares = {site: registry.shares()[site] for site in trained}
    total = sum(shares.values())
    members = [registry.keys[site] | {"site": site, "share": shares[site] / total} for site in trained]
    try:
        return Group.from_dict({"round": number, "members": members})
    except UserError as e:
        raise UserError(
            f"round {number}: the updates of {len(trained)} sites cannot be summed under masks ({e.what})",
            remedy=f"with {FEWEST} or more sites, `site_weights: equal` or a smaller max_share, {GO_ON}",
        ) from e


def _give(run: Run, work: ServerSum) -> None:
    """Gives the tracks the mean, as if every site of the sum had sent it."""
    try:
        means: dict[str, Tensors] = work.means()
    except ValueError as e:
        run.warn(dict.fromkeys(work.summed, f"{e}: one of the sites sent something else; the round changes no model"))
        return
    shares = run.aggregator.registry.shares()
    for name, mean in means.items():
        for site in work.summed:
            run.tracks[name].accept(TRAIN, site, mean, shares[site])
