"""The federated runs of FedAvg, FedProx, Local, FT, Ditto and APFL equal plain loops written from their formulas."""

import json
import threading
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from fedsm.core.dice import dice_per_image
from fedsm.data.dataset import load_site
from fedsm.nets import build_unet
from tests.helpers import plain_proximal_methods as plain
from tests.helpers.federation import Federation
from tests.helpers.plain_loop import averaged, largest_difference
from tests.helpers.small_jobs import RECIPE, SITES, small_settings
from tests.helpers.weights import TOLERANCE, last_weights, size_of

TWO = SITES[:2]
NOTICED = 10 * TOLERANCE  # what a method's own term changes at least in these runs

PERSONAL = {
    "finetune": (partial(plain.FineTune, lr_factor=0.5), "{kind: finetune, lr_factor: 0.5}"),
    "ditto": (partial(plain.Ditto, prox=0.5), "{kind: ditto, prox: 0.5}"),
    "apfl": (partial(plain.APFL, alpha=0.5, eta_alpha=1.0), "{kind: apfl, alpha: 0.5, eta_alpha: 1.0}"),
}


recipes = pytest.mark.parametrize(
    "recipe",
    [pytest.param({}, marks=pytest.mark.slow), RECIPE],
    ids=["plain", "recipe"],  # the second shows both
)


def raw(weights: dict) -> dict:
    """The global weights that training goes on from, whether or not they are averaged over the rounds."""
    return weights.get("global.raw", weights["global"])


def run(folder, data, tracks: str | None = None, **given):
    overrides = [f"tracks={tracks}"] if tracks else []
    settings = small_settings(rounds=2, local_epochs=2, overrides=overrides, **given)
    lock = threading.Lock()

    def one_at_a_time(site, name, shareable, work):
        # Initial weights come from torch's one generator: sites are processes elsewhere, but threads here.
        with lock:
            return work()

    federation = Federation(folder, data, settings, TWO, fault=one_at_a_time).run()
    assert federation.panic is None
    return settings, last_weights(federation.run_folder)


def test_fedavg(tmp_path, data_root):
    settings, weights = run(tmp_path, data_root, method="fedavg")
    assert list(weights) == ["global"]
    wire = json.loads(next(tmp_path.rglob("results.json")).read_text())["wire"]
    assert wire["down_bytes"] == wire["up_bytes"] == dict.fromkeys(TWO, [size_of(weights["global"])] * 2)
    assert largest_difference(weights["global"], plain.train(data_root, settings, TWO)[0]) < TOLERANCE


@recipes
def test_fedprox(tmp_path, data_root, recipe):
    settings, weights = run(tmp_path, data_root, "{global: {kind: fedprox, mu: 0.5}}", **recipe)
    w_g, _ = plain.train(data_root, settings, TWO, mu=0.5)
    assert largest_difference(raw(weights), w_g) < TOLERANCE
    assert largest_difference(raw(weights), plain.train(data_root, settings, TWO, mu=0.0)[0]) > NOTICED


@recipes
@pytest.mark.parametrize("method", PERSONAL)
def test_personal(tmp_path, data_root, method, recipe):
    make, spec = PERSONAL[method]
    settings, weights = run(tmp_path, data_root, f"{{global: {{kind: fedavg}}, personal: {spec}}}", **recipe)
    w_g, history = plain.train(data_root, settings, TWO, personal=make)
    assert largest_difference(raw(weights), w_g) < TOLERANCE
    local = plain.train(data_root, settings, TWO, personal=partial(plain.Ditto, prox=0.0))[1]
    for site in TWO:
        kept = assert_kept_and_delivered(tmp_path, data_root, settings, site, history[site], weights)
        assert largest_difference(kept, local[site][-1]) > NOTICED


@recipes
def test_local(tmp_path, data_root, recipe):
    settings, weights = run(tmp_path, data_root, method="local", **recipe)
    assert set(weights) == {f"personal.{site}" for site in TWO}
    history = plain.train(data_root, settings, TWO, personal=partial(plain.Ditto, prox=0.0))[1]
    for site in TWO:
        assert_kept_and_delivered(tmp_path, data_root, settings, site, history[site], weights)


def assert_kept_and_delivered(folder, data, settings, site: str, history: list[dict], weights: dict) -> dict:
    """The last model stands on the site's disk and is returned; the best one is the server's."""
    (file,) = (folder / site).rglob("round_000002.safetensors")
    kept = {k.removeprefix("personal/net/"): v for k, v in load_file(file).items() if k.startswith("personal/net/")}
    assert largest_difference(kept, history[-1]) < TOLERANCE
    if settings.ema:  # the start, from before round 1, is in no average
        history = [history[0], *(averaged(settings, history[1:t]) for t in range(2, len(history) + 1))]
    best = max(history, key=lambda model: validation_dice(data, settings, site, model))
    assert largest_difference(weights[f"personal.{site}"], best) < TOLERANCE
    return kept


@torch.no_grad()
def validation_dice(data, settings, site: str, model: dict) -> float:
    part = load_site(data / site, site, settings)["validation"]
    net = build_unet(settings.task).eval()
    net.load_state_dict(model)
    rows = torch.arange(len(part))
    return dice_per_image(net(part.images[rows]) > 0, part.labels[rows] > 0).mean().item()
