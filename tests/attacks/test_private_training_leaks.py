"""A server that knows the job's seed and chooses the weights, against a site whose training is private (`dp`).

Found: augmentation and dropout were drawn from the job's seed, one draw after the other through the batches. Who is in
a batch shifts the draws of all that follow, so that one patient moved the sum by more than one clipped gradient, for
somebody who knows the draws. A gradient that is no number was not clipped: the site said that its training diverged,
which weights that overflow for one image alone turn into an answer without noise. And an audit told the mean loss of
the training images, and AUCs over them, without noise.
"""

import pytest
import torch
from torch import nn

from fedsm.client.workers import build_worker
from fedsm.core.errors import UserError
from fedsm.core.task_names import AUDIT, SCORE, TRAIN
from fedsm.tracks.private_steps import PrivateGradients, StepNoise
from tests.helpers.hostile_server import meta_of, real_site
from tests.helpers.small_jobs import small_settings

DP = {"epsilon": 4.0, "delta": 1e-2}


def draws(place) -> list[tuple[tuple[float, ...], float]]:
    """What augmentation draws for each batch of round 1, and the first number of dropout, in a process of its own."""
    settings = small_settings(method="fedavg", overrides=["task.augment={rotate: 10}"])
    worker = build_worker(place, TRAIN, meta_of(settings))
    torch.manual_seed(settings.seed)
    found = []
    for step in worker._steps(1):
        worker._before_step(lambda: False, step)
        found.append((tuple(torch.cat([t.flatten() for t in step.transforms]).tolist()), torch.rand(1).item()))
    return found


def test_a_private_round_draws_nothing_that_the_server_can_compute(tmp_path, data_root):
    place = real_site(tmp_path, data_root / "site-1", dp=DP)
    one, again = draws(place), draws(place)
    assert len(one) == len(again) > 1
    augmentation, dropout = zip(*(one + again), strict=True)
    assert len(set(augmentation)) == len(set(dropout)) == 2 * len(one), "the same round, drawn again, is another one"


def test_other_rounds_can_be_repeated(tmp_path, data_root):
    place = real_site(tmp_path, data_root / "site-1")
    assert draws(place) == draws(place)


@pytest.mark.parametrize("pixel", [float("inf"), 1e30])
def test_a_gradient_that_is_no_number_is_clipped_to_nothing(pixel):
    """f = (w x)^4, w = 1, x = 0.5: 4 w^3 x^4 = 0.25. The other image's gradient overflows."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.ones_(net.weight)
    PrivateGradients(net, StepNoise(1.0, 1e-9, 1)).backward((net(torch.tensor([[pixel], [0.5]])) ** 4).mean())
    assert net.weight.grad.item() == pytest.approx(0.25)


def test_a_site_with_private_training_takes_no_part_in_an_audit(tmp_path, data_root):
    place = real_site(tmp_path, data_root / "site-1", dp=DP)
    meta = meta_of(small_settings(method="fedavg")) | {"seed": 0}
    with pytest.raises(UserError, match="figures of an audit have no noise") as caught:
        build_worker(place, AUDIT, meta).do(AUDIT, meta, {}, lambda: False)
    assert "figures of an audit have no noise" in caught.value.public


@pytest.mark.parametrize("part", ["train", "all"])
def test_nor_does_it_score_its_training_images_for_others(tmp_path, data_root, part):
    """Mean Dice over them, of whatever networks a lead submits, has no noise either."""
    place = real_site(tmp_path, data_root / "site-1", dp=DP)
    meta = meta_of(small_settings(method="fedavg")) | {"part": part, "super_model": {}, "seed": 0}
    with pytest.raises(UserError, match="scores over training images have no noise"):
        build_worker(place, SCORE, meta).do(SCORE, meta, {}, lambda: False)
