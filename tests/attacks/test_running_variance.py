"""With batch norm one site drove the averaged running variance below zero: its root is NaN, so the shared model gave
nothing at any site, while training, which does not look at it, went on unharmed."""

import torch

from fedsm.core.state import RunningMean, add_


def test_a_variance_stays_one():
    """Old variance 1; changes -10 and 0 with equal weights: 1 - 5 would be -4."""
    old = {"net.norm.running_var": torch.ones(1), "net.norm.running_mean": torch.ones(1)}
    mean = RunningMean(old)
    for change in (-10.0, 0.0):
        mean.add({key: torch.full((1,), change) for key in old}, 1)
    new = mean.added_to(old)
    assert new["net.norm.running_var"].item() == 0.0 and new["net.norm.running_mean"].item() == -4.0
    add_(old, {key: torch.full((1,), -3.0) for key in old})
    assert old["net.norm.running_var"].item() == 0.0 and old["net.norm.running_mean"].item() == -2.0
