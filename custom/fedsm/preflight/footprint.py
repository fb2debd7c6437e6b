"""How much memory and disk a job needs at a site, estimated before the job runs.

Networks are built and an image batch is sent through them on torch's `meta` device, where tensors have shapes but no
memory: the numbers are those of the real networks, and nothing is allocated.

    training = sum over tracks (weights + gradients + Adam's moments) + max over tracks (activations)

Tracks take their steps one after the other, so activations of only one are alive at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from fedsm.core.settings import JobSettings
from fedsm.tracks import client_tracks
from fedsm.tracks.base import ClientTrack, SiteContext
from fedsm.tracks.learner import Learner
from fedsm.tracks.selector_gradient import SelectorGradientClient

SITES = 6  # of the job: only the ensemble, which holds one network per site, depends on it much
# Of a process that has loaded torch, MONAI and FLARE: 0.41 GB as measured on Linux with torch 2.13.0, and a margin.
PROCESS = 500 * 10**6
# Convolutions' scratch memory and the allocator's gaps, as a factor on what autograd keeps. Measured on the CPU as the
# growth of a process over three real steps at 256 px, batch 8: 2.1 for the U-Net, 1.7 for the VGG-11.
_SCRATCH = 2.1
_KEPT_ROUNDS = 3  # of local state: the last two, and the one that is being written
_META = torch.device("meta")


@dataclass(frozen=True)
class Footprint:
    """Bytes that a job needs at a site.

    Attributes:
        networks: weights, gradients and moments of all tracks: where the site computes.
        activations: what a step of the largest track needs on top: where the site computes.
        exchange: the models as they came and the answer, in main memory.
        state: local state on disk.
    """

    networks: int
    activations: int
    exchange: int
    state: int

    @property
    def training(self) -> int:
        """On the device that computes."""
        return self.networks + self.activations

    def memory(self, on_cpu: bool) -> int:
        """Main memory of the site's process."""
        return PROCESS + self.exchange + (self.training if on_cpu else 0)


def job_footprint(settings: JobSettings, n_sites: int = SITES) -> Footprint:
    """What a job needs at each of its sites, images not counted.

    An estimate: on the CPU a process really grew by 0.89 to 1.03 of it (U-Net and VGG-11, 128 and 256 px, four jobs).
    On CUDA, where autocast halves most activations, it should be too high; that was not measured.
    """
    networks, activations, exchange, state = 0, 0, 0, 0
    with _META:
        images = torch.zeros(settings.batch_size, settings.task.channels, settings.size, settings.size)
        for track in client_tracks(settings, SiteContext(0, n_sites, _META)).values():
            networks += sum(_bytes(net.state_dict().values()) for net in _networks(track))
            learner = getattr(track, "learner", None)
            if isinstance(learner, Learner):
                weights = _bytes(learner.net.parameters())
                moments = 0 if isinstance(track, SelectorGradientClient) else 2 * weights  # Adam is at the server there
                networks += weights + moments  # the first: gradients
                left = weights if settings.wire != "float32" else 0  # what rounding left out of the updates
                networks += left
                state += moments + left
                exchange += (3 if settings.ema else 2) * weights  # with an average over the rounds beside them
                activations = max(activations, int(_SCRATCH * activation_bytes(learner.net, images)))
    return Footprint(networks, activations, exchange, _KEPT_ROUNDS * state)


def activation_bytes(net: nn.Module, images: torch.Tensor) -> int:
    """What autograd keeps of a training forward pass, and the two gradients that the backward pass holds at a time.

    Args:
        net: a network; on the `meta` device this costs no memory.
        images: a batch, (B, C, H, W), on the same device.
    """
    own = {p.untyped_storage()._cdata for p in net.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}  # keeps them alive: the address of a freed storage may be used again

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        net.train()(images)
    sizes = [storage.nbytes() for storage in saved.values()]
    return sum(sizes) + 2 * max(sizes, default=0)


def cache_bytes(settings: JobSettings, images: int) -> int:
    """Decoded images on disk: for each pixel a float32 per channel and a byte per label (`fedsm.data.cache`)."""
    return images * settings.size**2 * (4 * settings.task.channels + len(settings.task.labels))


def _networks(track: ClientTrack) -> list[nn.Module]:
    """The networks that a track holds."""
    held = [v for value in vars(track).values() for v in (value if isinstance(value, list) else [value])]
    learner = getattr(track, "learner", None)
    return [v for v in held if isinstance(v, nn.Module)] + ([learner.net] if learner else [])


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.nbytes for t in tensors)
