"""First weights follow from the seed alone."""

import threading

import pytest
import torch
from torch import nn

from fedsm.nets import build_unet
from fedsm.nets.first_weights import initial_weights, seed_generator
from fedsm.tracks.fedbn import FedBNServer
from fedsm.tracks.scaffold import ScaffoldServer
from fedsm.tracks.selector_fedavg import output_entries
from tests.helpers.small_jobs import SITES, small_settings

SETTINGS = small_settings()
BUILDERS = {
    "a network": lambda: build_unet(SETTINGS.task),
    "FedBN's server": lambda: FedBNServer("personal", SETTINGS, {}, SITES),
    "SCAFFOLD's server": lambda: ScaffoldServer("global", SETTINGS, {}, SITES),
    "a site's round": lambda: seed_generator(7),
    "names of a selector's outputs": lambda: output_entries(
        lambda: nn.Sequential(build_unet(SETTINGS.task), nn.Linear(1, 1))
    ),
}


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_thread_that_builds_does_not_change_them(builder):
    """In one process several sites may live (tests, a simulator with threads); torch has one generator for all."""
    task = SETTINGS.task
    expected = initial_weights(lambda: build_unet(task), 0)
    done = threading.Event()

    def build() -> None:
        while not done.is_set():
            BUILDERS[builder]()

    thread = threading.Thread(target=build)
    thread.start()
    try:
        for _ in range(30):
            weights = initial_weights(lambda: build_unet(task), 0)
            assert all(torch.equal(weights[key], expected[key]) for key in expected)
    finally:
        done.set()
        thread.join()


def test_torch_s_own_generator_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    initial_weights(lambda: torch.nn.Linear(2, 2), 0)
    assert torch.equal(torch.rand(2), expected)
