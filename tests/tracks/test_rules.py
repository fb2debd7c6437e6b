"""The rules as the tracks use them: state dicts, weights, too few updates, jobs that are refused, SoftPull."""

from typing import get_args

import pytest
import torch

from app_fedsm.config.build import build_settings
from fedsm.core.errors import UserError
from fedsm.core.settings import Aggregation
from fedsm.core.state import RunningMean
from fedsm.tracks import KINDS, check_tracks, server_tracks
from fedsm.tracks.base import TRAIN
from fedsm.tracks.pull_in_place import soft_pull_
from fedsm.tracks.rules import RULES, KeptUpdates, Mean, rule_of
from fedsm.tracks.shared_network import SharedNetwork
from tests.helpers.small_jobs import small_settings

ROBUST = [name for name in RULES if name != "mean"]
SITES = [f"site-{i + 1}" for i in range(6)]


def updates(count: int = 6, seed: int = 0) -> list[dict]:
    rng = torch.Generator().manual_seed(seed)
    return [
        {"w": torch.randn(3, 4, generator=rng), "b": torch.randn(5, generator=rng), "seen": torch.tensor(k + 1)}
        for k in range(count)
    ]


def flat(update: dict) -> torch.Tensor:
    return torch.cat([update["w"].flatten(), update["b"]])


def refusal(**given) -> str:
    try:
        check_tracks(small_settings(**given), SITES)
    except UserError as e:
        return str(e)
    return ""


def test_every_word_of_the_setting_has_a_rule():
    assert set(RULES) == set(get_args(Aggregation))


def test_a_rule_can_be_asked_whether_it_needs_single_updates():
    """Secure sums hide them."""
    assert [name for name, rule in RULES.items() if not rule.needs_single_updates] == ["mean"]


@pytest.mark.parametrize("name", ["trimmed_mean", "multi_krum"])
def test_no_outliers_is_the_mean(name):
    given, weights = updates(), [1.0, 2.0, 3.0, 1.0, 1.0, 2.0]
    mean, found = RULES["mean"](0).merge(given, weights), RULES[name](0).merge(given, weights)
    assert all(torch.allclose(found[key], mean[key], atol=1e-6) for key in ("w", "b"))


@pytest.mark.parametrize("name", ROBUST)
def test_one_hostile_update_moves_it_no_farther_than_the_others_lie_apart(name):
    given = updates()
    for key in ("w", "b"):
        given[2][key] = given[2][key] * -1e6
    found = RULES[name](1).merge(given, [1.0] * 6)
    honest = torch.stack([flat(u) for k, u in enumerate(given) if k != 2])
    assert (flat(found) - honest.mean(0)).norm() < torch.cdist(honest, honest).max()


@pytest.mark.parametrize("name", ["median", "geometric_median"])
def test_medians_count_every_site_the_same(name):
    rule, given = RULES[name](1), updates(5)
    equal, claimed = rule.merge(given, [1.0] * 5), rule.merge(given, [1.0, 1.0, 1.0, 1.0, 2.0])
    assert all(torch.equal(equal[key], claimed[key]) for key in equal)


def test_kept_updates_are_added_to_the_old_network():
    """old 10; changes 1, 2, 90: the median is 2. Counters 1, 2, 3: the lower median is 2. A filter's dtypes are turned
    back, and a variance is never negative."""
    old = {"w": torch.tensor([10.0]), "norm.running_var": torch.tensor([1.0]), "seen": torch.tensor(100)}
    kept = KeptUpdates(old, RULES["median"](1))
    for k, change in enumerate([1.0, 2.0, 90.0]):
        change64 = torch.tensor([change], dtype=torch.float64)
        var = torch.tensor([-5.0])
        kept.add({"w": change64, "norm.running_var": var, "seen": torch.tensor(float(k + 1))}, 1.0, k)
    assert kept.count == 3
    new = kept.added_to(old)
    assert new["w"].tolist() == [12.0] and new["w"].dtype == torch.float32
    assert new["norm.running_var"].tolist() == [0.0] and new["seen"].item() == 102
    assert kept.count == 0 and old["w"].tolist() == [10.0]


@pytest.mark.parametrize("name", ROBUST)
def test_with_too_few_updates_the_network_stays(name):
    network = SharedNetwork({"w": torch.zeros(2)}, SITES, RULES[name](2))
    network.add("site-1", {"w": torch.ones(2)}, 1.0)
    network.close()
    assert network.weights["w"].tolist() == [0, 0] and network.answers == 0


@pytest.mark.parametrize("name", ROBUST)
def test_the_network_moves_by_what_all_agree_on(name):
    network = SharedNetwork({"w": torch.zeros(2)}, SITES, RULES[name](1))
    for number in (1, 2):
        for site in SITES:
            network.add(site, {"w": torch.ones(2) if site != "site-3" else torch.full((2,), -50.0)}, 1.0)
        network.close()
        assert torch.allclose(network.weights["w"], torch.full((2,), float(number)), atol=1e-3)


def test_the_mean_is_formed_as_before():
    """To the bit: the same class, in the same order."""
    network = SharedNetwork({"w": torch.zeros(3, 4), "b": torch.zeros(5), "seen": torch.tensor(0)}, SITES)
    mean = RunningMean(network.weights)
    for k, (site, update) in enumerate(zip(SITES, updates(), strict=True)):
        network.add(site, update, float(k + 1))
        mean.add(update, float(k + 1), k)
    expected = mean.added_to(network.weights)
    network.close()
    assert all(torch.equal(network.weights[key], expected[key]) for key in expected)


def test_soft_pull_by_hand():
    """Models 0, 1, 4, 9, 100 and lam 0.5: the trimmed means of the others are 6.5, 6.5, 5, 2.5, 2.5, so the models
    become 3.25, 3.75, 4.5, 5.75, 51.25; what is held stays, and so do counters."""
    models = [
        {"w": torch.tensor([float(v)]), "own": torch.tensor([float(v)]), "seen": torch.tensor(int(v))}
        for v in (0, 1, 4, 9, 100)
    ]
    RULES["trimmed_mean"](1).pull(models, 0.5, {"own"})
    assert [m["w"].item() for m in models] == [3.25, 3.75, 4.5, 5.75, 51.25]
    assert [m["own"].item() for m in models] == [m["seen"].item() for m in models] == [0, 1, 4, 9, 100]


@pytest.mark.parametrize("name", ROBUST)
def test_soft_pull_is_the_rule_over_the_others(name):
    rule, models = RULES[name](1), updates()
    expected = []
    for k, own in enumerate(models):
        others = rule.merge([m for j, m in enumerate(models) if j != k], [1.0] * 5)
        expected.append({key: 0.7 * own[key] + 0.3 * others[key] for key in others})
    rule.pull(models, 0.7, frozenset())
    for model, wanted in zip(models, expected, strict=True):
        assert all(torch.allclose(model[key], wanted[key], atol=1e-5) for key in wanted)


@pytest.mark.parametrize("name", ROBUST)
def test_soft_pull_of_equal_models_and_of_too_few_changes_nothing(name):
    models = [{"w": torch.full((3,), 2.0)} for _ in range(6)]
    RULES[name](1).pull(models, 0.5, frozenset())
    assert all(torch.allclose(m["w"], torch.full((3,), 2.0)) for m in models)
    few = [{"w": torch.tensor([float(k)])} for k in range(3)]
    RULES[name](1).pull(few, 0.5, frozenset())
    assert [m["w"].item() for m in few] == [0, 1, 2]


def test_soft_pull_with_the_mean_is_as_before():
    a, b = updates(), updates()
    Mean(0).pull(a, 0.7, frozenset())
    soft_pull_(b, 0.7)
    assert all(torch.equal(x[key], y[key]) for x, y in zip(a, b, strict=True) for key in x)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"aggregation": "median"}, "needs 3 others of each site in every round, so min_sites must be at least 4"),
        ({"aggregation": "multi_krum", "min_sites": 5}, "needs 5 others of each site"),
        ({"aggregation": "multi_krum", "min_sites": 4, "method": "fedavg"}, "needs 5 answers in every round"),
        ({"aggregation": "multi_krum", "min_sites": 7, "method": "fedavg"}, "min_sites is 7, but there are 6 sites"),
        ({"aggregation": "trimmed_mean", "outliers": 3, "min_sites": 6, "method": "fedavg"}, "needs 7 answers"),
        ({"aggregation": "median", "min_sites": 4, "selector": "gradient"}, "each site pushes an output of its own"),
        ({"aggregation": "median", "min_sites": 4, "method": "scaffold"}, "the control c is the mean"),
        ({"aggregation": "median", "min_sites": 4, "method": "local"}, "no network of local is combined over sites"),
        (
            {"aggregation": "median", "min_sites": 4, "overrides": ["tracks.personal.pull=similarity"]},
            "`pull: similarity` is a mean with shares of its own",
        ),
    ],
)  # fmt: skip
def test_jobs_that_make_no_sense_are_refused_in_one_line(given, words):
    message = refusal(**given)
    assert words in message and "\n" not in message


def test_jobs_that_make_sense_are_not_refused():
    for given in (
        {"aggregation": "trimmed_mean", "min_sites": 4},
        {"aggregation": "trimmed_mean", "outliers": 2, "min_sites": 6},
        {"aggregation": "multi_krum", "min_sites": 6},
        {"aggregation": "multi_krum", "min_sites": 5, "method": "fedprox"},
        {"aggregation": "geometric_median", "min_sites": 3, "overrides": ["tracks.personal.pull=global"]},
        {"aggregation": "median", "min_sites": 4, "ema": 0.5},
    ):
        assert refusal(**given) == "", given


@pytest.mark.parametrize("personal", ["fedbn", "fedrep", "per-fedavg", "pfedme"])
def test_methods_with_a_shared_and_a_personal_network_use_the_rule(personal):
    settings = small_settings(personal=personal, aggregation="median", min_sites=3)
    track = server_tracks(settings, SITES)["personal"]
    template = track.expects(TRAIN)
    key = next(k for k, v in template.items() if v.is_floating_point())
    before = track.payload(TRAIN, SITES[0])[key].clone()
    for k, site in enumerate(SITES):
        change = {name: torch.full_like(v, -900.0 if k == 5 else 0.5) for name, v in template.items()}
        track.accept(TRAIN, site, change, 1.0)
    track.close(TRAIN)
    assert torch.allclose(track.payload(TRAIN, SITES[0])[key], before + 0.5)


def test_the_rule_of_a_job():
    settings = build_settings("retinal", "fedavg", aggregation="trimmed_mean", outliers=2, min_sites=5)
    rule = rule_of(settings)
    assert (type(rule), rule.outliers, rule.least) == (RULES["trimmed_mean"], 2, 5)
    assert not KINDS["fedavg"].server.against_rules
