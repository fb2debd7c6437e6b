"""Arithmetic on state dicts."""

import numpy as np
import pytest
import torch

from fedsm.core.state import RunningMean, add_, as_tensor, examine, subtract


def test_running_mean_by_hand():
    """Weights 1 and 3: w = (1 * 2 + 3 * 6) / 4 = 5, and (1 * -4 + 3 * 4) / 4 = 2."""
    mean = RunningMean({"w": torch.zeros(2)})
    mean.add({"w": torch.tensor([2.0, -4.0])}, 1)
    mean.add({"w": torch.tensor([6.0, 4.0])}, 3)
    old = {"w": torch.tensor([10.0, 10.0])}
    assert mean.added_to(old)["w"].tolist() == [15.0, 12.0]
    assert old["w"].tolist() == [10.0, 10.0]


def test_integer_buffers_come_from_the_site_with_most_data():
    """Three sites with 5, 9 and 9 images count 10, 20 and 30 steps: the first of the two largest gives 20."""
    for order in ([0, 1, 2], [2, 1, 0]):
        mean = RunningMean({"steps": torch.tensor(0)})
        for i in order:
            mean.add({"steps": torch.tensor((10, 20, 30)[i])}, (5, 9, 9)[i], index=i)
        assert mean.added_to({"steps": torch.tensor(0)})["steps"].item() == 20


def test_numpy_and_torch_are_mixed_and_float32_stays():
    """A filter's float64 numpy array is added to a float32 weight: 1 + 0.5 = 1.5, still float32."""
    target = {"w": torch.ones(2), "steps": torch.tensor([3])}
    update = {"w": as_tensor(np.array([0.5, -0.5])), "steps": as_tensor(np.array([1.9999]))}
    assert examine(update, target)[0] is None
    add_(target, update)
    assert target["w"].dtype == torch.float32
    assert target["w"].tolist() == [1.5, 0.5]
    assert target["steps"].tolist() == [5], "an integer that a filter turned into 1.9999 is rounded, not cut"


def test_subtract_is_the_inverse_of_add():
    old, new = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([1.5, 1.0])}
    assert subtract(new, old)["w"].tolist() == [0.5, -1.0]


@pytest.mark.parametrize(
    ("update", "word"),
    [
        ({}, "missing"),
        ({"w": torch.zeros(2), "x": torch.zeros(1)}, "unexpected"),
        ({"w": torch.zeros(3)}, "shape"),
        ({"w": torch.tensor([0.0, float("nan")])}, "NaN"),
        ({"w": torch.tensor([float("inf"), 0.0])}, "NaN or infinite"),
        ({"w": torch.zeros(2, dtype=torch.bool)}, "dtype"),
        ({"w": torch.zeros(2, dtype=torch.complex64)}, "dtype"),
    ],
)
def test_problem_names_what_is_wrong(update, word):
    assert word in examine(update, {"w": torch.zeros(2)})[0]


@pytest.mark.parametrize("value", [None, "text", [1.0], np.array(["a"]), np.array([None])])
def test_as_tensor_refuses_what_is_no_array(value):
    with pytest.raises(TypeError):
        as_tensor(value)
