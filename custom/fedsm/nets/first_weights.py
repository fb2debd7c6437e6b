"""First weights from a seed, whatever else draws random numbers meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from fedsm.core.state import copy
from fedsm.core.tensors import Tensors

BUILDING = threading.RLock()  # torch has one generator for all threads, and building a network draws from it
_Network = TypeVar("_Network", bound=nn.Module)


def built_alone(build: Callable[[], _Network]) -> _Network:
    """Builds a network while no other thread builds one: neither draws the other's numbers."""
    with BUILDING:
        return build()


def seed_generator(seed: int) -> None:
    """Seeds torch's generator, which dropout draws from, while no other thread makes first weights with it."""
    with BUILDING:
        torch.manual_seed(seed)


def initial_weights(build: Callable[[], nn.Module], seed: int) -> Tensors:
    """Weights of a freshly built network, the same for the same seed, without touching torch's generator."""
    with BUILDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return copy(build().state_dict())
