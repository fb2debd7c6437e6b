"""SCAFFOLD, Per-FedAvg, pFedMe, FedBN and FedRep: the federated run equals the formulas, written as plain loops.

Batches of 3 give the first site three of them, so that Per-FedAvg meets a last one without a partner. Each run is made
three times: with processes that live, with a new one for every task, and so with every ingredient of the recipe.
"""

import json

import pytest
import torch

from fedsm.core.state import part
from fedsm.super_model.artefact import load_super_model
from tests.helpers import plain_shared_methods as plain
from tests.helpers.federation import JOB, Federation, results_of
from tests.helpers.plain_loop import largest_difference
from tests.helpers.small_jobs import RECIPE, SITES, small_settings
from tests.helpers.weights import TOLERANCE, last_weights, size_of

TWO = SITES[:2]
restarts = pytest.mark.parametrize(
    ("restart", "recipe"),
    [
        *(pytest.param(restart, {}, marks=pytest.mark.slow) for restart in (False, True)),
        (True, RECIPE),
    ],  # it shows both
    ids=["one process", "restarted", "recipe"],
)


def run(folder, data_root, restart, **given) -> tuple[Federation, dict]:
    """Runs two sites for two rounds; the federation and the server's last weights."""

    def fault(site, task, shareable, work):
        if restart:
            site.restart()
        return work()

    settings = small_settings(rounds=2, batch_size=3, **given)
    federation = Federation(folder, data_root, settings, TWO, fault=fault).run()
    assert federation.panic is None
    return federation, last_weights(federation.run_folder)


def settings_of(federation: Federation):
    return next(iter(federation.sites.values())).executor._trainer.settings


def last_at(federation: Federation, site: str) -> dict:
    """The personal network as it is on a site's disk after the last round."""
    return part("net", federation.sites[site].executor._trainer._local.load(99)[1]["personal"])


def assert_moved(weights: dict, first: dict) -> None:
    assert largest_difference(weights, {k: first[k] for k in weights}) > 100 * TOLERANCE, "nothing was learned"


@restarts
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_scaffold(tmp_path, data_root, optimizer, restart, recipe):
    overrides = [f"tracks.global.optimizer={optimizer}"]
    federation, weights = run(tmp_path, data_root, restart, method="scaffold", overrides=overrides, **recipe)
    expected = plain.scaffold(data_root, settings_of(federation), TWO, optimizer)
    raw = weights.get("global.raw", weights["global"])
    assert largest_difference(raw, expected["global"]) < TOLERANCE
    # A control is a difference of weights over steps * lr = 2e-3: rounding is that much coarser there (6e-5 seen).
    assert largest_difference(weights["global.controls"], expected["global.controls"]) < 5e-4
    assert max(c.abs().max() for c in weights["global.controls"].values()) > 0.01

    wire, more = results_of(federation)["wire"], bool(recipe)  # with `ema` the average comes down as well
    assert wire["up_bytes"] == dict.fromkeys(TWO, [2 * size_of(raw)] * 2)
    assert wire["down_bytes"] == dict.fromkeys(TWO, [(2 + more) * size_of(raw)] * 2)


@restarts
@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_perfedavg(tmp_path, data_root, variant, restart, recipe):
    overrides = [f"tracks.personal={{kind: per-fedavg, variant: {variant}, inner_lr: 0.1, adapt_steps: 2}}"]
    federation, weights = run(tmp_path, data_root, restart, overrides=overrides, **recipe)
    settings = settings_of(federation)
    meta, last, best = plain.perfedavg(data_root, settings, TWO, a=0.1, variant=variant, steps=2)
    assert_moved(weights["personal"], plain.Sites(data_root, settings, TWO).first)
    assert largest_difference(weights["personal"], meta) < TOLERANCE
    for site in TWO:
        assert largest_difference(last_at(federation, site), last[site]) < TOLERANCE
        assert largest_difference(weights[f"personal.{site}"], best[site]) < TOLERANCE


@restarts
def test_pfedme(tmp_path, data_root, restart, recipe):
    """prox 2 and outer_lr 0.4 move w and theta enough in two rounds to see a mistake."""
    options = {"prox": 2.0, "inner_steps": 3, "inner_lr": 0.3, "outer_lr": 0.4, "beta": 0.8}
    overrides = [f"tracks.personal={json.dumps({'kind': 'pfedme'} | options)}"]
    federation, weights = run(tmp_path, data_root, restart, overrides=overrides, **recipe)
    settings = settings_of(federation)
    w, last, best = plain.pfedme(data_root, settings, TWO, prox=2.0, steps=3, a=0.3, eta=0.4, beta=0.8)
    assert_moved(weights["personal"], plain.Sites(data_root, settings, TWO).first)
    assert largest_difference(weights["personal"], w) < TOLERANCE
    for site in TWO:
        assert_moved(last[site], w)
        assert largest_difference(last_at(federation, site), last[site]) < TOLERANCE
        assert largest_difference(weights[f"personal.{site}"], best[site]) < TOLERANCE


@restarts
@pytest.mark.parametrize("norm", ["INSTANCE", "BATCH"])
def test_fedbn(tmp_path, data_root, norm, restart, recipe):
    overrides = ["tracks.personal={kind: fedbn}", f"task.unet.norm=[{norm}, {{affine: true}}]"]
    federation, weights = run(tmp_path, data_root, restart, overrides=overrides, **recipe)
    u, last, best = plain.fedbn(data_root, settings_of(federation), TWO)
    assert largest_difference(weights["personal"], u) < TOLERANCE
    for site in TWO:
        assert largest_difference(weights[f"personal.{site}"], best[site]) < TOLERANCE
        own = last_at(federation, site)
        norms = set(last[site]) - set(u)
        assert norms and largest_difference({k: own[k] for k in norms}, {k: last[site][k] for k in norms}) < TOLERANCE
    assert not torch.equal(*(torch.cat([last_at(federation, s)[k].flatten() for k in norms]) for s in TWO))
    wire, sent = results_of(federation)["wire"], size_of(weights["global"]) + size_of(u)
    assert sent < 2 * size_of(weights["global"]), "no norm layer in u"
    assert wire["up_bytes"] == dict.fromkeys(TWO, [sent] * 2)
    assert recipe or wire["down_bytes"] == wire["up_bytes"]


@restarts
@pytest.mark.parametrize("steps", [1, 3])
def test_fedrep(tmp_path, data_root, steps, restart, recipe):
    overrides = [f"tracks.personal={{kind: fedrep, head_steps: {steps}}}"]
    federation, weights = run(tmp_path, data_root, restart, overrides=overrides, **recipe)
    settings = settings_of(federation)
    phi, last, best = plain.fedrep(data_root, settings, TWO, steps)
    first = plain.Sites(data_root, settings, TWO).first
    assert_moved(weights["personal"], first)
    assert largest_difference(weights["personal"], phi) < TOLERANCE
    heads = set(first) - set(phi)
    for site in TWO:
        assert largest_difference(weights[f"personal.{site}"], best[site]) < TOLERANCE
        own = {k: last_at(federation, site)[k] for k in heads}
        assert_moved(own, first)
        assert largest_difference(own, {k: last[site][k] for k in heads}) < TOLERANCE
    wire, sent = results_of(federation)["wire"], size_of(weights["global"]) + size_of(phi)
    assert sent < 2 * size_of(weights["global"]), "no head in phi"
    assert wire["up_bytes"] == dict.fromkeys(TWO, [sent] * 2)
    assert recipe or wire["down_bytes"] == wire["up_bytes"]


@pytest.mark.parametrize(
    "kind", ["fedrep", *(pytest.param(k, marks=pytest.mark.slow) for k in ("per-fedavg", "pfedme", "fedbn"))]
)
def test_a_run_that_goes_on_from_its_checkpoint_is_the_same(tmp_path, data_root, kind):
    """Two rounds, then two more, against four in one go; the sites' folders are those of the first half."""
    four = small_settings(rounds=4, overrides=[f"tracks.personal={{kind: {kind}}}"])
    two = small_settings(rounds=2, overrides=[f"tracks.personal={{kind: {kind}}}"])
    straight = last_weights(Federation(tmp_path / "straight", data_root, four, TWO).run().run_folder)
    first = Federation(tmp_path / "halves", data_root, two, TWO).run()
    checkpoints = str(first.run_folder / "checkpoints")
    second = Federation(tmp_path / "halves", data_root, four, TWO, resume_from=checkpoints).run()
    assert second.panic is None
    halves = last_weights(second.run_folder)
    assert set(halves) == set(straight)
    for model in straight:
        assert largest_difference(halves[model], straight[model]) == 0, model
    one, other = (load_super_model(tmp_path / f / "server" / JOB / "super_model") for f in ("straight", "halves"))
    for model in one.networks:
        assert largest_difference(one.networks[model], other.networks[model]) == 0, model
