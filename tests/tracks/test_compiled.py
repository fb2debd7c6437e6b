"""Compiled steps: what they are given, and (slow) that they train what plain steps train."""

import pytest
import torch
from torch import nn

from fedsm.core.errors import UserError
from fedsm.tracks import compiled
from fedsm.tracks.compiled import CompiledForward
from fedsm.tracks.learner import Learner
from tests.helpers.small_site import CPU


class Net(nn.Module):
    """f(x) = w * (sum of an image), with or without batch norm."""

    def __init__(self, norm: bool = False):
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))
        self.norm = nn.BatchNorm2d(1) if norm else nn.Identity()

    def forward(self, x):
        return self.w * self.norm(x).sum((1, 2, 3))


@pytest.fixture
def sizes(monkeypatch):
    """The sizes of batches that compiled code is asked for."""
    seen = []

    def run(net, images):
        seen.append(len(images))
        return net(images)

    monkeypatch.setattr(compiled, "_run", run)
    return seen


def test_a_smaller_batch_is_filled_up_and_copies_do_not_count(sizes):
    """Images of 1 pixel with 2, 3 | 5: the mean of f over the second batch is 5 w, and so is its gradient."""
    net, first, last = Net(), torch.tensor([2.0, 3.0]), torch.tensor([5.0])
    run = CompiledForward(net)
    assert run(net, first.view(2, 1, 1, 1)).tolist() == [2, 3]
    output = run(net, last.view(1, 1, 1, 1))
    assert output.tolist() == [5] and sizes == [2, 2]
    output.mean().backward()
    assert net.w.grad.item() == 5


def test_where_images_mix_nothing_is_filled_up(sizes):
    net = Net(norm=True)
    run = CompiledForward(net)
    for count in (3, 2):
        run(net, torch.rand(count, 1, 2, 2))
    assert sizes == [3, 2]


def test_only_steps_are_compiled_and_names_stay(sizes):
    learner = Learner(Net(), 0.1, CPU, compiled=True)
    with torch.no_grad():
        learner.forward(torch.rand(2, 1, 2, 2))
    assert sizes == []
    learner.descend(learner.forward(torch.rand(2, 1, 2, 2)).mean())
    assert sizes == [2] and list(learner.net.state_dict()) == ["w"]


def test_a_network_that_is_no_single_graph_says_so(monkeypatch):
    from torch._dynamo.exc import Unsupported

    def refuses(net, images):
        raise Unsupported("Data-dependent branching\n  Explanation: ...")

    monkeypatch.setattr(compiled, "_graph", refuses)
    net = Net()
    with pytest.raises(UserError, match="makes no single graph of Net .*; leave `compile` out") as caught:
        CompiledForward(net)(net, torch.rand(2, 1, 2, 2))
    assert caught.value.public == "torch.compile makes no single graph of Net: leave `compile` out of fedsm_site.yaml"
