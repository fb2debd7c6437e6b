"""Row 11: a site whose sums cannot be, or are as wide as they can be, does not take the selector from the others."""

import math

import pytest
import torch

from fedsm.data.dataset import load_site
from fedsm.data.synthetic import write_sites
from fedsm.flare import exchange
from fedsm.selectors.covariance_weights import covariance_weights
from fedsm.selectors.descriptor import describe, image_range, image_scale
from fedsm.selectors.gaussian import gaussian_classes, pack, scatter_of, unpack
from fedsm.selectors.possible_sums import sums_problem
from fedsm.selectors.private_sums import PrivateSums, StatisticsPrivacy
from fedsm.tracks import build_inference_selector, server_tracks
from fedsm.tracks.base import DELIVER, REGISTER
from tests.helpers.federation import Federation, results_of
from tests.helpers.small_jobs import SITES, small_settings, write_site

CPU = torch.device("cpu")
SETTINGS = small_settings(selector="statistics", size=64)
HOSTILE = "site-2"


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> dict[str, dict[str, torch.Tensor]]:
    """Site -> part -> descriptors of six synthetic sites."""
    root = tmp_path_factory.mktemp("synthetic")
    found = {}
    for site in write_sites(root, sites=6, images=24, size=64):
        parts = load_site(root / site, site, SETTINGS)
        found[site] = {p: torch.cat([describe(x) for x, _ in part.batches(32, CPU)]) for p, part in parts.items()}
    return found


def sums_of(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"n": torch.tensor(float(len(rows))).double(), "sum": rows.sum(0), "outer": pack(rows.T @ rows)}


def made_of(n: torch.Tensor, mean: torch.Tensor, covariance: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"n": n, "sum": n * mean, "outer": pack(n * (covariance + torch.outer(mean, mean)))}


def impossible(own: dict) -> dict[str, dict]:
    """Sums of the right n that no images can have, by what is wrong with them."""
    n, mean, size = own["n"], own["sum"] / own["n"], len(own["sum"])
    usual = scatter_of(own) / n
    wild = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(0)).double()).Q
    one = torch.zeros(size).double()
    one[5] = 0.05
    return {
        "1e12": {"n": n, "sum": own["sum"], "outer": pack(1e12 * (wild * torch.linspace(-1, 1, size)) @ wild.T)},
        "negative scatter": made_of(n, mean, -usual),
        "a little negative": made_of(n, mean, usual - torch.outer(one, one)),
        "too wide": made_of(n, mean, torch.eye(size).double() * 100),
        "mean outside": made_of(n, mean + 3, usual),
        "a correlation of 2": made_of(n, mean, usual.diagonal().diag() + 2 * (usual - usual.diagonal().diag())),
        "infinite when squared": {"n": n, "sum": own["sum"] * 1e200, "outer": own["outer"]},
    }


def possible_but_wide(sums: dict[str, dict]) -> dict[str, dict]:
    """Sums that images could have, made to blur the other sites: as wide as can be, or along what tells them apart."""
    own = sums[HOSTILE]
    low, high = image_range(3)
    most = (high - low).square() / 4 * 0.99
    means = torch.stack([s["sum"] / s["n"] for site, s in sums.items() if site != HOSTILE])
    between = (means - means.mean(0)).T @ (means - means.mean(0))
    stretch = (most / between.diagonal()).sqrt()
    n, mean = own["n"], own["sum"] / own["n"]
    return {
        "everywhere": made_of(n, mean, most.diag()),
        "along the differences": made_of(n, mean, between * (most / between.diagonal()).min()),
        "along the differences, as wide as can be": made_of(n, mean, between * torch.outer(stretch, stretch)),
        "thirty times its own": made_of(n, mean, 30 * scatter_of(own) / n),
    }


def accuracy(sums: dict[str, dict], rows: dict, refused: tuple[str, ...] = ()) -> float:
    """The honest sites' test accuracy with the selector that a server makes of these sums."""
    server = server_tracks(SETTINGS, list(rows))["selector"]
    for site, own in sums.items():
        problem = server.problem(REGISTER, own, {"train": int(own["n"].item())}, {})
        assert (problem is not None) == (site in refused), problem
        if problem is None:
            server.accept(REGISTER, site, own)
    selector = build_inference_selector(SETTINGS, len(rows), server.payload(DELIVER, "site-1"), CPU)
    honest = [site for site in rows if site != HOSTILE]
    hits = [(selector.distances_of(rows[s]["test"]).argmin(1) == list(rows).index(s)).double() for s in honest]
    return torch.stack([h.mean() for h in hits]).mean().item()


@pytest.fixture
def sums(rows) -> dict[str, dict]:
    return {site: sums_of(parts["train"]) for site, parts in rows.items()}


@pytest.mark.parametrize("kind", list(impossible(sums_of(torch.rand(9, 63).double()))))
def test_impossible_sums_are_refused_and_the_others_keep_their_selector(rows, sums, kind):
    without = accuracy({s: own for s, own in sums.items() if s != HOSTILE}, rows)
    bad = sums | {HOSTILE: impossible(sums[HOSTILE])[kind]}
    assert accuracy(bad, rows, refused=(HOSTILE,)) == without > 0.9


@pytest.mark.parametrize(
    "kind", ["everywhere", "along the differences", "along the differences, as wide as can be", "thirty times its own"]
)
def test_sums_that_are_possible_and_very_wide_do_not_blur_the_others(rows, sums, kind):
    """They are taken, left out of the covariance, and told."""
    without = accuracy({s: own for s, own in sums.items() if s != HOSTILE}, rows)
    bad = sums | {HOSTILE: possible_but_wide(sums)[kind]}
    assert sums_problem(bad[HOSTILE], image_range(3)) is None
    assert accuracy(bad, rows) >= without - 0.02
    weights, reasons = covariance_weights(bad, 2.0, image_scale(3)[1])
    assert list(reasons) == [HOSTILE] and "times as much as the median site's" in reasons[HOSTILE]
    assert weights == dict.fromkeys(sums, 1.0) | {HOSTILE: 0.0}
    blurred = gaussian_classes(list(bad.values()))["deviation"]
    now = gaussian_classes(list(bad.values()), list(weights.values()))["deviation"]
    honest = gaussian_classes(list(sums.values()))["deviation"]
    assert (blurred / honest).max() > 2 > (now / honest).max()


def test_nothing_changes_for_honest_sites(sums):
    """The covariance is to the bit that of the sums without any weights."""
    weights, reasons = covariance_weights(sums, 2.0, image_scale(3)[1])
    assert set(weights.values()) == {1.0} and not reasons
    plain, weighed = gaussian_classes(list(sums.values())), gaussian_classes(list(sums.values()), [1.0] * 6)
    assert all(torch.equal(plain[key], weighed[key]) for key in plain)


def test_a_count_that_is_far_above_the_others_does_not_own_the_covariance(sums):
    """A claim of a million images weighs as much as `max_share` median sites."""
    scale = 10**6 / sums[HOSTILE]["n"]
    many = sums | {HOSTILE: {k: v * scale for k, v in sums[HOSTILE].items()}}
    counts = sorted(own["n"].item() for own in many.values())
    weights, _ = covariance_weights(many, 2.0, image_scale(3)[1])
    assert weights[HOSTILE] == pytest.approx(2 * (counts[2] + counts[3]) / 2 / 10**6)


def test_numbers_of_a_network_that_rounding_swallows_switch_nothing_off():
    """Activations have no public range. A mean of 1e12 is beyond what differences of sums can resolve."""
    torch.manual_seed(0)
    sums = {f"site-{k}": sums_of(torch.randn(40, 8).double() + k) for k in range(4)}
    huge = torch.full((8,), 1e12).double()
    sums["site-3"] = made_of(torch.tensor(40.0).double(), huge, torch.zeros(8, 8).double())
    weights, reasons = covariance_weights(sums, 2.0, torch.zeros(0).double())
    assert reasons == {
        "site-3": "its descriptors are far larger than the other sites': left out of the selector's covariance"
    }
    deviation = gaussian_classes(list(sums.values()), list(weights.values()))["deviation"]
    assert ((deviation > 0.8) & (deviation < 1.2)).all()


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
def test_private_sums_pass_whatever_the_noise(tmp_path, rows, epsilon):
    """What the noise drives beyond the possible is brought back at the site, and sent again the same."""
    for k, parts in enumerate(rows.values()):
        make = PrivateSums(StatisticsPrivacy(epsilon, 1e-5), tmp_path / str(k))
        sent = make(parts["train"], 3)
        assert sums_problem(sent, image_range(3)) is None
        assert torch.linalg.eigvalsh(scatter_of(sent)).min() > -1e-9
        assert all(torch.equal(sent[key], value) for key, value in make(parts["train"], 3).items())


@pytest.mark.parametrize("kind", ["1e12", "negative scatter", "a correlation of 2", "infinite when squared"])
def test_without_a_public_range_impossible_sums_are_refused_too(sums, kind):
    """Those of a network's activations."""
    assert "impossible statistics" in sums_problem(impossible(sums[HOSTILE])[kind], None)


def test_a_negative_sum_of_squares_is_impossible(sums):
    own = sums[HOSTILE]
    squares = unpack(own["outer"], len(own["sum"])).fill_diagonal_(-1.0)
    assert "negative" in sums_problem(own | {"outer": pack(squares)}, None)


def test_what_float32_leaves_of_honest_sums_passes(sums):
    for own in sums.values():
        assert sums_problem({k: v.float() for k, v in own.items()}, image_range(3)) is None


@pytest.mark.parametrize("channels", [1, 3])
def test_the_range_is_reached_and_never_left(channels):
    """Black, white, a checkerboard and noise at 32 pixels: all within the public range, some at its ends."""
    board = (torch.arange(32)[:, None] + torch.arange(32)) % 2
    torch.manual_seed(0)
    images = torch.stack([torch.zeros(32, 32), torch.ones(32, 32), board.float(), torch.rand(32, 32).round()])
    found = describe(images[:, None].expand(-1, channels, -1, -1))
    low, high = image_range(channels)
    assert (found >= low - 1e-6).all() and (found <= high + 1e-6).all()
    assert found[0, -1].item() == pytest.approx(math.log(1e-6), abs=1e-3)


def test_both_are_told_by_name_in_the_results(tmp_path):
    """Site 2's sums are refused at each registration; site 3's are taken, and a person is told."""

    def fault(site, task, shareable, work):
        result = work()
        if task == exchange.REGISTER and site.name in ("site-2", "site-3"):
            own = result["DXO"]["data"]["selector"].data
            if site.name == "site-2":
                own["outer"] = own["outer"] * -1e12
            else:
                low, high = image_range(3)
                own |= made_of(own["n"], own["sum"] / own["n"], ((high - low).square() / 4).diag())
        return result

    for seed, site in enumerate(names := [*SITES, "site-4"]):  # so that two honest ones are left beside site 3
        write_site(tmp_path / "data" / site, 12, seed)
    settings = small_settings(rounds=1, selector="statistics")
    federation = Federation(tmp_path / "run", tmp_path / "data", settings, names, fault=fault).run()
    assert federation.panic is None
    results = results_of(federation)
    assert {entry["site"] for entry in results["refused"]} == {"site-2"}
    assert "impossible statistics" in results["refused"][0]["reason"]
    (warned,) = [entry for entry in results["warned"] if "median site's" in entry["reason"]]
    assert warned["site"] == "site-3"
