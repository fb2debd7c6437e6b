"""Similarities of sites and their shares in a pull, on numbers small enough to do by hand."""

import math

import pytest
import torch

from fedsm.selectors.similarity import FLOOR, pull_shares, similarities, squared_distances

NAN = math.nan


def symmetric(upper: list[list[float]]) -> torch.Tensor:
    """A symmetric matrix with a zero diagonal from its rows above the diagonal."""
    size = len(upper) + 1
    full = torch.zeros(size, size, dtype=torch.float64)
    for i, row in enumerate(upper):
        for j, value in enumerate(row, start=i + 1):
            full[i, j] = full[j, i] = value
    return full


def classes(means: list[list[float]], correlation: float, deviation: float = 1.0) -> dict:
    between = torch.tensor([[1.0, correlation], [correlation, 1.0]], dtype=torch.float64)
    spread = torch.full((2,), deviation, dtype=torch.float64)
    return {"means": torch.tensor(means, dtype=torch.float64), "deviation": spread, "correlation": between}


def test_distances_without_correlation():
    """Means (0, 0), (2, 0), (0, 4), R = I: 4, 16 and 4 + 16 = 20. Twice the deviation: a quarter of each."""
    means = [[0.0, 0.0], [2.0, 0.0], [0.0, 4.0]]
    assert torch.allclose(squared_distances(classes(means, 0.0)), symmetric([[4, 16], [20]]))
    assert torch.allclose(squared_distances(classes(means, 0.0, 2.0)), symmetric([[1, 4], [5]]))


def test_distances_with_a_shrunk_correlation():
    """r = 0.5, shrunk by a tenth to 0.45. R^-1 = 1 / (1 - 0.45^2) [[1, -0.45], [-0.45, 1]]:
    z = (2, 0): 4 / 0.7975 = 5.01567;  z = (2, 2): (4 + 4 - 2 * 0.45 * 4) / 0.7975 = 4.4 / 0.7975 = 5.51724."""
    found = squared_distances(classes([[0.0, 0.0], [2.0, 0.0], [2.0, 2.0]], 0.5))
    assert found[0, 1].item() == pytest.approx(4 / 0.7975)
    assert found[0, 2].item() == pytest.approx(4.4 / 0.7975)


def test_similarities_by_hand():
    """Squared distances 4, 16, 20; their median is h^2 = 16.

    s_12 = 0.1 + 0.9 exp(-4/32)  = 0.1 + 0.9 * 0.882497 = 0.894247
    s_13 = 0.1 + 0.9 exp(-16/32) = 0.1 + 0.9 * 0.606531 = 0.645878
    s_23 = 0.1 + 0.9 exp(-20/32) = 0.1 + 0.9 * 0.535261 = 0.581735
    """
    found = similarities(symmetric([[4, 16], [20]]))
    expected = symmetric([[0.894247, 0.645878], [0.581735]])
    off = ~torch.eye(3, dtype=torch.bool)
    assert torch.allclose(found[off], expected[off], atol=1e-6)


def test_the_scale_of_the_distances_does_not_matter():
    squared = symmetric([[4, 16, 7], [20, 3], [11]])
    assert torch.allclose(similarities(squared), similarities(1e6 * squared))
    assert torch.allclose(similarities(squared), similarities(1e-6 * squared))


@pytest.mark.parametrize("distance", [0.0, 5.0, NAN, math.inf])
def test_equal_distances_are_equal_similarities(distance):
    """Also where all sites are the same, and where nothing is known or everything is too far to compute with."""
    found = similarities(symmetric([[distance] * 3, [distance] * 2, [distance]]))
    off = found[~torch.eye(4, dtype=torch.bool)]
    assert off.max() == off.min() and FLOOR <= off.min() <= 1


def test_an_unknown_distance_counts_as_the_median():
    """Known: 4, 16, 20 with h^2 = 16; what is not known has s = 0.1 + 0.9 exp(-1/2)."""
    found = similarities(symmetric([[4, 16, NAN], [20, NAN], [NAN]]))
    assert torch.allclose(found[3, :3], torch.full((3,), 0.1 + 0.9 * math.exp(-0.5), dtype=torch.float64))
    assert found[0, 1].item() == pytest.approx(0.1 + 0.9 * math.exp(-4 / 32))


def test_shares_by_hand():
    """s = 0.8, 0.2; 0.6: p_1 = 0.8 / 1, 0.2 / 1; p_2 = 0.8 / 1.4, 0.6 / 1.4; p_3 = 0.2 / 0.8, 0.6 / 0.8."""
    found = pull_shares(symmetric([[0.8, 0.2], [0.6]]), most=2.0)
    expected = [[0, 0.8, 0.2], [0.8 / 1.4, 0, 0.6 / 1.4], [0.25, 0.75, 0]]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64))


def test_no_share_is_above_the_limit():
    """Of three others, 2 / 3. s = 1, 0.1, 0.1: 1 / 1.2 = 0.83 becomes 2/3, and the others have 1/6 each."""
    row = pull_shares(symmetric([[1, 0.1, 0.1], [0.5, 0.5], [0.5]]), most=2.0)[0]
    assert torch.allclose(row, torch.tensor([0, 2 / 3, 1 / 6, 1 / 6], dtype=torch.float64))


def test_what_is_above_the_limit_may_lift_another_above_it():
    """Of four others, at most 1.5 / 4 = 0.375. s = 1, 0.7, 0.2, 0.1: p = 0.5, 0.35, 0.1, 0.05. The first becomes
    0.375, which leaves 0.625 * 0.7 = 0.4375 for the second: 0.375 too, and 0.25 for the rest, 2 : 1."""
    squares = symmetric([[1, 0.7, 0.2, 0.1], [0.5] * 3, [0.5] * 2, [0.5]])
    row = pull_shares(squares, most=1.5)[0]
    assert torch.allclose(row, torch.tensor([0, 0.375, 0.375, 0.25 * 2 / 3, 0.25 / 3], dtype=torch.float64))


@pytest.mark.parametrize("most", [1.0, 1.5, 2.0, 1e9])
def test_rows_add_up_to_one_whatever_the_distances_are(most):
    generator = torch.Generator().manual_seed(0)
    for size in (2, 3, 6):
        for spread in (0.1, 10.0):
            points = torch.randn(size, 3, generator=generator, dtype=torch.float64).mul(spread).exp()
            shares = pull_shares(similarities((points[:, None] - points).square().sum(-1)), most)
            assert torch.allclose(shares.sum(1), torch.ones(size, dtype=torch.float64))
            assert (shares.diagonal() == 0).all()
            others = shares[~torch.eye(size, dtype=torch.bool)]
            assert others.max() <= most / (size - 1) + 1e-12
            assert others.min() > 0, "no site is cut off"
    assert torch.allclose(
        pull_shares(symmetric([[0.9, 0.1], [0.4]]), 1.0), (torch.ones(3, 3) - torch.eye(3)).double() / 2
    )


def test_a_site_that_copies_another_buys_little():
    """Six sites, one of which sends the sums of the first: of the first's pull it has at most 2/5 (1/5 without
    similarity), and every other at least a tenth of its 1/5."""
    honest = torch.arange(5, dtype=torch.float64)[:, None] * 100
    points = torch.cat([honest, honest[:1]])
    shares = pull_shares(similarities((points[:, None] - points).square().sum(-1)), most=2.0)
    assert shares.max() <= 2 / 5 + 1e-12
    assert shares[0, 5] <= 2 / 5 + 1e-12 and shares[0, 1:5].min() > 0.1 * 1 / 5
