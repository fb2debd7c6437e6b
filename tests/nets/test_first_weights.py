"""First weights follow from the seed alone."""

import threading

import torch

from fedsm.nets import build_unet
from fedsm.nets.first_weights import initial_weights
from tests.helpers.small_jobs import small_settings


def test_a_thread_that_builds_networks_does_not_change_them():
    """In one process several sites may live (tests, a simulator with threads); torch has one generator for all."""
    task = small_settings().task
    expected = initial_weights(lambda: build_unet(task), 0)
    done = threading.Event()

    def build() -> None:
        while not done.is_set():
            build_unet(task)

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
