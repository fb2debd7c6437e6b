"""The arithmetic of the robust rules, by hand and at its limits."""

import math

import pytest
import torch

from fedsm.tracks import robust

EQUAL = torch.ones(5, dtype=torch.float64)
# One of five is anything: the others are -1, 0, 1, 2.
SPOILED = torch.tensor([[-1.0], [0.0], [1.0], [2.0], [1e6]], dtype=torch.float64)


def column(*values: float) -> torch.Tensor:
    return torch.tensor([[float(v)] for v in values], dtype=torch.float64)


def distances(points: torch.Tensor) -> torch.Tensor:
    return robust.squared_distances([{"w": row} for row in points])


def test_trimmed_mean_by_hand():
    """1, 2, 4, 8, 100 without the lowest and the highest: (2 + 4 + 8) / 3 = 14/3. With weights 1, 1, 2, 1, 5 the values
    that are left weigh 1, 2, 1: (2 + 8 + 8) / 4 = 4.5."""
    values = column(100, 2, 8, 4, 1)
    assert robust.trimmed_mean(values, EQUAL, 1).item() == pytest.approx(14 / 3)
    weights = torch.tensor([5.0, 1.0, 1.0, 2.0, 1.0], dtype=torch.float64)
    assert robust.trimmed_mean(values, weights, 1).item() == pytest.approx(4.5)
    assert robust.trimmed_mean(values, EQUAL, 2).item() == 4  # the median


def test_nothing_trimmed_is_the_weighted_mean():
    """(1 * 1 + 3 * 5) / 4 = 4."""
    assert robust.trimmed_mean(column(1, 5), torch.tensor([1.0, 3.0], dtype=torch.float64), 0).item() == 4


def test_each_entry_is_trimmed_by_itself():
    values = torch.tensor([[0.0, 9.0], [1.0, 2.0], [9.0, 1.0]])
    assert robust.trimmed_mean(values, torch.ones(3), 1).tolist() == [1.0, 2.0]


def test_trimmed_means_of_others_by_hand():
    """0, 1, 4, 9, 100, one trimmed at each end: of the others of 0 (1, 4, 9, 100) stay 4 and 9, mean 6.5; of those of 1
    the same; of those of 4 (0, 1, 9, 100) stay 1 and 9, mean 5; of 9 and of 100 stay 1 and 4, mean 2.5."""
    found = robust.trimmed_means_of_others(column(0, 1, 4, 9, 100), 1).flatten()
    assert found.tolist() == [6.5, 6.5, 5.0, 2.5, 2.5]


@pytest.mark.parametrize(("count", "trim"), [(3, 0), (4, 1), (5, 1), (6, 2), (7, 1)])
def test_trimmed_means_of_others_are_those_of_the_rows_without_one(count, trim):
    values = torch.randn(count, 50, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    values[:, :10] = values[:, :10].round()  # equal values
    found = robust.trimmed_means_of_others(values, trim)
    for k in range(count):
        others = values[[j for j in range(count) if j != k]]
        expected = robust.trimmed_mean(others, torch.ones(count - 1, dtype=torch.float64), trim)
        assert torch.allclose(found[k], expected, atol=1e-12)


def test_distances_by_hand():
    """(0, 0), (3, 4), (3, 0): 25, 9 and 16; whole numbers and held entries do not count, in any number of pieces."""
    updates = [
        {"a": torch.tensor([x]), "b": torch.tensor([[y]]), "n": torch.tensor(7 * i), "own": torch.tensor([100.0 * i])}
        for i, (x, y) in enumerate([(0.0, 0.0), (3.0, 4.0), (3.0, 0.0)])
    ]
    assert robust.squared_distances(updates, {"own"}).tolist() == [[0, 25, 9], [25, 0, 16], [9, 16, 0]]


def test_distances_of_near_updates_keep_their_digits(monkeypatch):
    monkeypatch.setattr(robust, "_PIECE", 7)
    base = torch.randn(100, generator=torch.Generator().manual_seed(0)) * 1000
    step = torch.zeros(100)
    step[3] = 0.5  # exactly representable beside a thousand
    found = robust.squared_distances([{"w": base}, {"w": base + step}, {"w": base}])
    assert found[0, 1].item() == pytest.approx(((base + step).double() - base.double()).square().sum().item(), rel=1e-6)
    assert found[0, 2].item() == pytest.approx(0, abs=1e-9)


def test_multi_krum_by_hand():
    """-1, 0, 1, 2, 1e6 with f = 1: each score is over the 2 nearest. -1: 1 + 4; 0: 1 + 1; 1: 1 + 1; 2: 1 + 4; the last
    is far. All but it are chosen: (-1 + 0 + 1 + 2) / 4 = 0.5, and with weights 3, 1, 1, 1: (-3 + 0 + 1 + 2) / 6 = 0."""
    shares = robust.multi_krum(distances(SPOILED), EQUAL, 1)
    assert shares.tolist() == [0.25, 0.25, 0.25, 0.25, 0]
    weighted = robust.multi_krum(distances(SPOILED), torch.tensor([3.0, 1, 1, 1, 9], dtype=torch.float64), 1)
    assert (weighted @ SPOILED).item() == pytest.approx(0)


def test_multi_krum_that_tolerates_nobody_is_the_mean():
    assert robust.multi_krum(distances(SPOILED), EQUAL, 0).tolist() == [0.2] * 5


def test_geometric_median_by_hand():
    """Of four corners of a convex shape it is where the diagonals cross: here (0, 0), whose mean is (0.5, 0.25)."""
    corners = torch.tensor([[-1.0, 0.0], [3.0, 0.0], [0.0, -1.0], [0.0, 2.0]], dtype=torch.float64)
    shares = robust.geometric_median(distances(corners))
    assert shares.sum().item() == pytest.approx(1)
    assert (shares @ corners).tolist() == pytest.approx([0, 0], abs=1e-5)


def test_geometric_median_lies_on_a_point_that_most_share():
    """Of 0, 0, 10 every step towards 10 costs two distances and saves one."""
    points = column(0, 0, 10)
    assert (robust.geometric_median(distances(points)) @ points).item() == pytest.approx(0, abs=1e-3)


RULES = {
    "trimmed mean": lambda values: robust.trimmed_mean(values, EQUAL, 1),
    "median": lambda values: robust.trimmed_mean(values, EQUAL, 2),
    "multi-Krum": lambda values: robust.multi_krum(distances(values), EQUAL, 1) @ values,
    "geometric median": lambda values: robust.geometric_median(distances(values)) @ values,
}


@pytest.mark.parametrize("rule", RULES)
def test_identical_updates_give_that_update(rule):
    assert RULES[rule](column(3, 3, 3, 3, 3)).item() == pytest.approx(3)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("far", [1e6, -1e6, 1e-9])
def test_one_of_five_cannot_move_it_out_of_the_others(rule, far):
    found = RULES[rule](column(-1, 0, 1, 2, far)).item()
    assert math.isfinite(found) and -1 <= found <= 2
