"""Robust rules: the federated run equals the formulas, written as plain loops over whole models."""

import pytest
import torch

from tests.helpers.federation import Federation, results_of
from tests.helpers.plain_loop import algorithm_1, largest_difference
from tests.helpers.small_jobs import small_settings, write_site
from tests.helpers.weights import TOLERANCE, last_weights

FOUR = [f"site-{k + 1}" for k in range(4)]
LAM = 0.7


@pytest.fixture(scope="module")
def four_sites(tmp_path_factory):
    root = tmp_path_factory.mktemp("four")
    for k, site in enumerate(FOUR):
        write_site(root / site, 12 + 4 * k, k)
    return root


def middle(models: list[dict], weights: list[float]) -> dict:
    """Without the lowest and the highest value of each entry."""
    result = {}
    for key in models[0]:
        values, shares = torch.stack([m[key] for m in models]), torch.tensor(weights, dtype=torch.float32)
        for extreme in (values.argmin(0), values.argmax(0)):
            shares = shares.reshape(-1, *[1] * (values.dim() - 1)).expand_as(values) if shares.dim() == 1 else shares
            shares = shares.scatter(0, extreme[None], 0.0)
        result[key] = (shares * values).sum(0) / shares.sum(0)
    return result


def nearest_to_all(models: list[dict], weights: list[float]) -> dict:
    """The geometric median, by Weiszfeld's iteration on whole models in float64."""
    flat = torch.stack([torch.cat([v.flatten() for v in m.values()]) for m in models]).double()
    point = flat.mean(0)
    for _ in range(2000):
        nearness = 1 / (flat - point).norm(dim=1)
        point = (nearness @ flat) / nearness.sum()
    parts = point.float().split([v.numel() for v in models[0].values()])
    return {key: part.view(v.shape) for (key, v), part in zip(models[0].items(), parts, strict=True)}


RULES = {"trimmed_mean": middle, "geometric_median": nearest_to_all}


@pytest.mark.parametrize("name", RULES)
def test_global_and_personal_models(tmp_path, four_sites, name):
    rule = RULES[name]

    def pull(w, trained, lam):
        rest = [rule([m for j, m in enumerate(trained) if j != k], [1.0] * 3) for k in range(4)]
        return [{key: own[key].lerp(r[key], 1 - lam) for key in own} for own, r in zip(trained, rest, strict=True)]

    settings = small_settings(selector="statistics", lam=LAM, rounds=2, aggregation=name, min_sites=4)
    federation = Federation(tmp_path, four_sites, settings, FOUR).run()
    assert federation.panic is None
    weights = last_weights(federation.run_folder)
    merge = (lambda w, trained, n: rule(trained, n), pull)
    plain = algorithm_1(four_sites, settings, FOUR, LAM, "statistics", merge=merge)
    for model in ["global", *(f"personal.{s}" for s in FOUR)]:
        assert largest_difference(weights[model], plain[model]) < TOLERANCE, model
    mean = algorithm_1(four_sites, settings, FOUR, LAM, "statistics")
    assert largest_difference(plain["global"], mean["global"]) > 10 * TOLERANCE
    assert results_of(federation)["settings"]["aggregation"] == name
