"""What a selector says of a new site, by hand: Gaussian classes with the descriptor replaced by two numbers."""

import pytest
import torch

from fedsm.selectors.gaussian import StatisticsSelector
from fedsm.super_model.model import SuperModel
from fedsm.super_model.resemblance import recommended, resemblance
from fedsm.super_model.start_model import start_model, start_shares
from tests.helpers.small_model import SITES, site_images, write_super_model


class TwoNumbers(StatisticsSelector):
    """A selector whose images are their own descriptors: (B, 1, 1, 2)."""

    def __init__(self, means, typical=(1.0, 1.0)):
        self.describe = lambda images: images.flatten(1).double()
        self._means = torch.tensor(means, dtype=torch.float64)
        self._deviation = torch.ones(2, dtype=torch.float64)
        self._typical = torch.tensor(typical, dtype=torch.float64)
        self._whiten = torch.eye(2, dtype=torch.float64)


def model_with(tmp_path, means, policy=None, typical=(1.0, 1.0), gamma=0.5):
    model = SuperModel.load(write_super_model(tmp_path, gamma=gamma, policy=policy))
    model.__dict__["selector"] = TwoNumbers(means, typical)  # the cached property
    return model


def batches(*points):
    return [torch.tensor([point]).view(1, 1, 1, 2) for point in points]


def test_distances_by_hand(tmp_path):
    """Site means (0, 0) and (10, 0). Images (3, 4), (1, 0), (8, 0): mean (4, 4/3).

    Of the mean: sqrt(16 + 16/9) = 4.2164 and sqrt(36 + 16/9) = 6.1464. Nearest: two to the first, one to the second.
    u: 5 and 1 over the first's usual 2, and 2 over the second's 4: 2.5, 0.5, 0.5. One is beyond delta 1.
    """
    model = model_with(tmp_path, [[0, 0], [10, 0]], {"delta": 1.0}, (2.0, 4.0))
    found = resemblance(model, batches((3.0, 4.0), (1.0, 0.0), (8.0, 0.0)))
    assert found.images == 3 and found.nearest == {"site-1": 2, "site-2": 1}
    assert found.of_mean.tolist() == pytest.approx([4.2164, 6.1464], abs=1e-4)
    assert found.between.tolist() == [[0, 10], [10, 0]]
    assert found.distances.tolist() == pytest.approx([2.5, 0.5, 0.5])
    assert found.foreign == 1 and found.used == {"global": 1, "personal.site-1": 1, "personal.site-2": 1}
    assert recommended(model, found) == "super_model"


def test_a_site_of_foreign_images_should_use_the_global_model(tmp_path):
    model = model_with(tmp_path, [[0, 0], [10, 0]], {"delta": 1.0})
    found = resemblance(model, batches((3.0, 4.0), (0.0, 7.0), (8.0, 0.5), (10.0, 0.0)))
    assert found.foreign == 3 and recommended(model, found) == "global"
    half = resemblance(model, batches((3.0, 4.0), (10.0, 0.0)))
    assert recommended(model, half) == "super_model", "most, not half"


def test_without_delta_no_image_is_called_foreign(tmp_path):
    model = model_with(tmp_path, [[0, 0], [10, 0]])
    found = resemblance(model, batches((0.0, 700.0)))
    assert found.foreign is None and found.distances.tolist() == [700] and recommended(model, found) == "super_model"


def test_a_site_without_statistics_is_infinitely_far(tmp_path):
    model = model_with(tmp_path, [[0, 0], [1e9, 1e9]])
    found = resemblance(model, batches((3.0, 4.0)))
    assert found.of_mean.tolist() == [5, float("inf")] and found.between[0, 1] == found.between[1, 1] == float("inf")


def test_a_model_of_version_0_1_does_not_know_what_is_usual(tmp_path):
    model = model_with(tmp_path, [[0, 0], [10, 0]])
    del model.files.networks["selector"]["typical"]
    found = resemblance(model, batches((3.0, 4.0)))
    assert found.distances is None and found.of_mean.tolist()[0] == 5


@pytest.mark.parametrize(
    ("kind", "nearest", "advice"),
    [("gradient", SITES, None), ("extra", ["global", *SITES], None), ("fedavg", None, "global"), ("local", None, None)],
)
def test_selectors_without_statistics(tmp_path, kind, nearest, advice):
    """A trained selector tells its choices and no distance; without one there is the global model or nothing."""
    model = SuperModel.load(write_super_model(tmp_path, kind))
    found = resemblance(model, site_images(model.settings, 1, 5).split(2))
    assert found.images == 5 and found.of_mean is found.distances is found.foreign is None
    assert (found.nearest and list(found.nearest)) == nearest
    if nearest:
        assert sum(found.nearest.values()) == sum(found.used.values()) == 5
        assert recommended(model, found) in ("super_model", "global")
    else:
        assert recommended(model, found) == advice


def test_the_start_is_the_weighted_mean(tmp_path):
    """0.75 and 0.25 of two models, number by number; integers are the larger share's."""
    files = SuperModel.load(write_super_model(tmp_path)).files
    one, two = (files.networks[f"personal.{site}"] for site in SITES)
    one["count"], two["count"] = torch.tensor(3), torch.tensor(8)
    start = start_model(files, {"site-1": 0.25, "site-2": 0.75})
    assert start.keys() == one.keys() and start["count"] == 8
    for key in one.keys() - {"count"}:
        assert torch.allclose(start[key], 0.25 * one[key] + 0.75 * two[key], atol=1e-6)


def test_shares_are_those_of_the_pull(tmp_path):
    """A site between both has equal shares; one that is like the first has more of the first, but not all."""
    model = SuperModel.load(write_super_model(tmp_path))
    one, two = model.selector.means
    middle = start_shares(model.files, model.selector, (one + two) / 2)
    assert middle == pytest.approx({"site-1": 0.5, "site-2": 0.5})
    twin = start_shares(model.files, model.selector, one)
    assert twin["site-1"] > 0.5 > twin["site-2"] > 0 and sum(twin.values()) == pytest.approx(1)
