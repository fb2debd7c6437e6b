"""The accountants: by hand, in limit cases, and against `dp-accounting`."""

import math

import pytest

from fedsm.core.errors import UserError
from fedsm.core.privacy_loss import NoisySteps, epsilon_of, noise_for
from tests.helpers.other_accountant import reference

ONE = 3.730632  # the noise of one Gaussian mechanism with (1, 1e-5): see tests/selectors/test_private_sums.py


def test_one_step_by_hand():
    """Everybody is in it: the analytic Gaussian mechanism. R steps with sqrt(R) times the noise are the same step."""
    assert epsilon_of([NoisySteps(ONE, 1.0, 1)], 1e-5) == pytest.approx(1, rel=0.01)
    assert epsilon_of([NoisySteps(ONE * math.sqrt(9), 1.0, 9)], 1e-5) == pytest.approx(1, rel=0.01)
    assert noise_for(1.0, 1e-5, 1.0, 9) == pytest.approx(3 * ONE, rel=0.01)


def test_limits():
    assert epsilon_of([], 1e-5) == epsilon_of([NoisySteps(1.0, 0.5, 0)], 1e-5) == 0
    kinds = [NoisySteps(2.0, 0.25, 10), NoisySteps(2.0, 0.25, 30)]
    assert epsilon_of(kinds, 1e-5) == epsilon_of([NoisySteps(2.0, 0.25, 40)], 1e-5)
    assert epsilon_of([NoisySteps(0.05, 1.0, 100)], 1e-5) > 1e4, "hardly any noise"
    with pytest.raises(UserError, match="no noise makes 10 steps cost at most"):
        noise_for(1e-9, 1e-12, 1.0, 10)


@pytest.mark.parametrize(
    ("steps", "delta"),
    [
        ([NoisySteps(1.5, 0.04, 1000)], 1e-5),
        ([NoisySteps(6.0, 1 / 3, 180)], 1e-4),
        ([NoisySteps(20.0, 1.0, 60)], 1e-2),  # an update-level mechanism: all sites in every round
        ([NoisySteps(3.0, 0.2, 50), NoisySteps(5.0, 0.3, 50)], 1e-4),  # two jobs
    ],
)
def test_epsilon_is_that_of_dp_accounting(steps, delta):
    found, expected = epsilon_of(steps, delta), reference(steps, delta)
    assert found == pytest.approx(expected, rel=0.01)
    assert found > 0.999 * expected, "an upper bound, to the grid of the other"


def test_the_noise_is_the_smallest_that_is_enough():
    noise = noise_for(3.0, 1e-3, 1 / 3, 60)
    assert 3.0 >= epsilon_of([NoisySteps(noise, 1 / 3, 60)], 1e-3) > 2.97
