"""What only a machine with a GPU can show: `make gpu-check`. Without one it says so and ends with exit code 2.

On random images it trains the default U-Net by a site's own loop and by a plain one in float32, and prints: steps a
second of both, a value of the loss of each, whether a pass waits for the device (CUDA's own sync debug mode), and the
peak of memory. Nothing is written.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from app_fedsm.config.build import build_settings
from fedsm.client.gpu_failures import why_no_cuda
from fedsm.client.training_pass import steps_of, train_on
from fedsm.core.settings import JobSettings
from fedsm.data.dataset import Part
from fedsm.nets import build_unet
from fedsm.nets.first_weights import initial_weights
from fedsm.tracks.base import TRAIN, SiteContext
from fedsm.tracks.learner import SegmentationLoss
from fedsm.tracks.precision import autocast_dtype
from fedsm.tracks.segmentation import SegmentationClient

_IMAGES = 400
_NO_GPU = 2


def images_of(settings: JobSettings, count: int) -> Part:
    """Random images and labels."""
    rng = torch.Generator().manual_seed(0)
    shape = (count, settings.task.channels, settings.size, settings.size)
    labels = torch.rand(count, len(settings.task.labels), *shape[2:], generator=rng) > 0.5
    return Part(torch.rand(shape, generator=rng), labels.to(torch.uint8))


def ours(settings: JobSettings, part: Part, device: torch.device) -> Callable[[int], float]:
    """A pass of a site's loop: round -> the mean loss."""
    context = SiteContext(0, 1, device, autocast=autocast_dtype(device, settings.amp))
    track = SegmentationClient(settings, {}, context)
    track.receive(TRAIN, initial_weights(track.build, settings.seed))

    def walk(number: int) -> float:
        steps = steps_of(settings, part, "site", number)
        totals = train_on(steps, part, {"global": track}, device, settings.pin_memory, lambda step: None)
        return float(totals["global"]) / len(part)

    return walk


def plain(settings: JobSettings, part: Part, device: torch.device) -> Callable[[int], float]:
    """The same as one writes it first: float32, a copy and a value of the loss in each step."""
    net = build_unet(settings.task)
    net.load_state_dict(initial_weights(lambda: build_unet(settings.task), settings.seed))
    net.to(device)
    adam = torch.optim.Adam(net.parameters(), lr=settings.lr)
    loss_of = SegmentationLoss(settings.loss)

    def walk(number: int) -> float:
        total = 0.0
        for step in steps_of(settings, part, "site", number):
            images, labels = part.load(step.rows)
            adam.zero_grad()
            loss = loss_of(net(images.to(device)), labels.to(device).float())
            loss.backward()
            adam.step()
            total += loss.item() * len(images)
        return total / len(part)

    return walk


def measure(walk: Callable[[int], float], steps: int) -> tuple[float, float]:
    """Steps a second of the second pass, and its loss; the first one loads kernels."""
    walk(1)
    began = time.perf_counter()
    loss = walk(2)
    return steps / (time.perf_counter() - began), loss


def report(device: torch.device, settings: JobSettings, count: int) -> list[str]:
    """The lines of the report."""
    part = images_of(settings, count)
    steps = -(-count // settings.batch_size)
    site = ours(settings, part, device)
    (slow, first), (fast, second) = measure(plain(settings, part, device), steps), measure(site, steps)
    lines = [
        f"numbers: {autocast_dtype(device, settings.amp) or torch.float32}",
        f"plain loop: {slow:.2f} steps a second, loss {first:.4f}",
        f"site's loop: {fast:.2f} steps a second, loss {second:.4f}; {fast / slow:.2f} times the plain loop",
    ]
    if device.type == "cuda":
        lines.append(f"peak of memory: {torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB")
        torch.cuda.set_sync_debug_mode("warn")  # every wait is a warning on standard error; one is right: the last read
        site(3)
        torch.cuda.set_sync_debug_mode("default")
    return lines


def main() -> int:
    """Prints the report; 2 without a GPU."""
    if not torch.cuda.is_available():
        print(f"gpu-check: no GPU here ({why_no_cuda()})")
        return _NO_GPU
    device = torch.device("cuda", 0)
    print(f"gpu-check: {torch.cuda.get_device_name(device)}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    for line in report(device, build_settings("retinal", "fedavg"), _IMAGES):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
