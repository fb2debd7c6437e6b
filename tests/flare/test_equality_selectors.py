"""FedSM-extra and the ensemble: the federated run equals a plain loop, and their results are complete."""

import pytest
import torch
from monai.losses import DiceLoss
from torch.nn import functional

from fedsm.data.dataset import load_site, seeded_order
from fedsm.nets import build_selector, build_unet
from fedsm.server.checkpoint import Checkpoints
from tests.helpers.federation import Federation, results_of
from tests.helpers.plain_loop import algorithm_1, average, clone, largest_difference
from tests.helpers.plain_recipe import loss_of, shares_of
from tests.helpers.small_jobs import RECIPE, SITES, small_settings
from tests.helpers.weights import TOLERANCE, last_weights, size_of

TWO = SITES[:2]


def run(tmp_path, data_root, settings):
    federation = Federation(tmp_path, data_root, settings, TWO).run()
    assert federation.panic is None
    return federation, results_of(federation)


def start(settings, outputs):
    torch.manual_seed(settings.seed)
    return clone(build_selector(settings.task, outputs).state_dict())


def walk(settings, site, part, number):
    """The batches of a round, as rows, images and labels."""
    seed = seeded_order(settings, site, number, 0)
    for rows in torch.randperm(len(part), generator=torch.Generator().manual_seed(seed)).split(settings.batch_size):
        yield rows, part.images[rows], part.labels[rows].float()


@pytest.mark.parametrize("recipe", [{}, RECIPE], ids=["plain", "recipe"])
def test_extra(tmp_path, data_root, recipe):
    """Two rounds of FedSM's networks, two of the selector alone, on the labels that its candidates give. A schedule has
    the length of the first two."""
    settings = small_settings(method="fedsm-extra", rounds=4, overrides=["tracks.selector.rounds=2"], **recipe)
    federation, results = run(tmp_path, data_root, settings)
    weights = last_weights(federation.run_folder)
    two_rounds = small_settings(method="fedsm-extra", rounds=2, overrides=["tracks.selector.rounds=1"], **recipe)
    plain = algorithm_1(data_root, two_rounds, TWO, lam=0.7, selector="none")
    for model in ("global", *(f"personal.{s}" for s in TWO)):
        assert largest_difference(weights[model], plain[model]) < TOLERANCE, model

    checkpoints = Checkpoints(federation.run_folder / "checkpoints")
    best = [results["validation"]["best"][m]["file"] for m in ("global", *(f"personal.{s}" for s in TWO))]
    nets = [build_unet(settings.task).eval() for _ in best]
    for net, file in zip(nets, best, strict=True):
        net.load_state_dict(checkpoints.load_weights(file))
    loss = loss_of(settings)
    parts = {s: load_site(data_root / s, s, settings)["train"] for s in TWO}
    with torch.no_grad():
        labels = {
            s: torch.tensor(
                [
                    min(range(3), key=lambda m, x=x, y=y: loss(nets[m](x[None]), y[None].float()).item())
                    for x, y in zip(p.images[:], p.labels[:], strict=True)
                ]
            )
            for s, p in parts.items()
        }
    w_s = start(settings, 3)
    selectors = {s: build_selector(settings.task, 3) for s in TWO}
    adams = {s: torch.optim.Adam(selectors[s].parameters(), lr=settings.selector_lr) for s in TWO}
    shares = shares_of(settings, [len(parts[s]) for s in TWO])
    for number in (3, 4):
        for s in TWO:
            selectors[s].load_state_dict(w_s)
            torch.manual_seed(seeded_order(settings, s, number, -1))
            for rows, x, _ in walk(settings, s, parts[s], number):
                adams[s].zero_grad()
                functional.cross_entropy(selectors[s](x), labels[s][rows]).backward()
                adams[s].step()
        w_s = average([selectors[s].state_dict() for s in TWO], shares)
    assert largest_difference(weights["selector"], w_s) < TOLERANCE

    assert results["gamma"] is None and results["gamma_sweep"] == []
    assert set(results["test"]["selection_frequency"][TWO[0]]) == {"global", *(f"personal.{s}" for s in TWO)}
    down = results["wire"]["down_bytes"][TWO[0]]
    unet, vgg = size_of(weights["global"]), size_of(w_s)
    each = 4 * unet if recipe else 2 * unet  # with `ema` the averages as well
    assert down == [each, each, vgg + 3 * unet, vgg], "the models go down once"


def test_extra_resumes_among_the_selectors_rounds(tmp_path, data_root):
    """Stopped after round 3 of 4, with the sites restarted, it ends with the same selector."""

    def settings(rounds, own):
        return small_settings(method="fedsm-extra", rounds=rounds, overrides=[f"tracks.selector.rounds={own}"])

    whole = Federation(tmp_path / "whole", data_root, settings(4, 2), TWO).run()

    def stop(site, name, shareable, work):
        if name == "fedsm_train" and shareable["DXO"]["meta"]["round"] == 4:
            site.federation.abort.trigger(True)
            return None
        return work()

    cut = Federation(tmp_path / "cut", data_root, settings(4, 2), TWO, fault=stop).run()
    assert Checkpoints(cut.run_folder / "checkpoints").load()["round"] == 3
    resumed = Federation(
        tmp_path / "cut", data_root, settings(4, 2), TWO, resume_from=str(cut.run_folder / "checkpoints")
    ).run()
    assert resumed.panic is None
    assert (
        largest_difference(last_weights(whole.run_folder)["selector"], last_weights(resumed.run_folder)["selector"])
        == 0
    )


def test_ensemble(tmp_path, data_root):
    settings = small_settings(method="fedsm-ensemble", rounds=3)
    federation, results = run(tmp_path, data_root, settings)
    weights = last_weights(federation.run_folder)

    parts = {s: load_site(data_root / s, s, settings)["train"] for s in TWO}
    total = sum(map(len, parts.values()))
    w_s = start(settings, 3)
    selectors = {s: build_selector(settings.task, 3) for s in TWO}
    adams = {s: torch.optim.Adam(selectors[s].parameters(), lr=settings.selector_lr) for s in TWO}
    dice = DiceLoss()
    # In round 1 all networks are equal, so the mixture does not depend on the selector: no step is taken.
    for number in (2, 3):
        before = settings.replace(rounds=number - 1)
        after = algorithm_1(data_root, before, TWO, lam=0.7, selector="none")
        order = ["global", *(f"personal.{s}" for s in TWO)]
        nets = [build_unet(settings.task).eval() for _ in order]
        for net, name in zip(nets, order, strict=True):
            net.load_state_dict(after[name])
        for s in TWO:
            selectors[s].load_state_dict(w_s)
            selectors[s].train()
            torch.manual_seed(seeded_order(settings, s, number, -1))
            for _, x, y in walk(settings, s, parts[s], number):
                with torch.no_grad():
                    h = torch.stack([net(x) for net in nets]).sigmoid()
                mixture = torch.einsum("bk,kblhw->blhw", selectors[s](x).softmax(1), h)
                adams[s].zero_grad()
                dice(mixture, y).backward()
                adams[s].step()
        w_s = average([selectors[s].state_dict() for s in TWO], [len(parts[s]) / total for s in TWO])
    assert largest_difference(weights["selector"], w_s) < TOLERANCE
    assert results["gamma"] is None
    assert 0 <= results["test"]["super_model"]["client_avg"] <= 1
    unet, vgg = size_of(weights["global"]), size_of(w_s)
    assert results["wire"]["down_bytes"][TWO[0]] == [3 * unet + vgg] * 3, "every network once"


def test_blend_is_scored_beside_the_hard_choice(tmp_path, data_root):
    settings = small_settings(rounds=1, blend=True)
    _, results = run(tmp_path, data_root, settings)
    assert set(results["test"]["blend"]) == set(results["test"]["super_model"])
