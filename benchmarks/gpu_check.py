"""What only a machine with a GPU can show: `make gpu-check`. Without one it says so and ends with exit code 2.

On random images it trains the default U-Net by a site's own loop and by a plain one in float32, and prints: steps a
second of both, a value of the loss of each, whether a pass waits for the device (CUDA's own sync debug mode), and the
peak of memory. Then two U-Nets on each batch, as FedSM has them, with and without `streams` and `compile`, and where
there are several GPUs a site on one and on all of them: steps a second, and how far the weights are apart. What is
compiled, and the site, are in a temporary folder.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from app_fedsm.config.build import build_settings
from fedsm.client.compiler import prepare_compiler
from fedsm.client.gpu_failures import why_no_cuda
from fedsm.client.site_settings import FILE_NAME, load_site_settings
from fedsm.client.site_trainer import SiteTrainer
from fedsm.client.track_streams import streams_of
from fedsm.client.training_pass import steps_of, train_on
from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.data.dataset import Part
from fedsm.data.synthetic import write_sites
from fedsm.nets import build_unet
from fedsm.nets.first_weights import initial_weights
from fedsm.tracks.base import TRAIN, SiteContext
from fedsm.tracks.learner import SegmentationLoss
from fedsm.tracks.precision import autocast_dtype
from fedsm.tracks.segmentation import SegmentationClient

_IMAGES = 400
Pair = tuple[Callable[[int], float], Callable[[], Tensors]]
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


def pair(settings: JobSettings, part: Part, device: torch.device, streams: bool, compiled: bool) -> Pair:
    """The global and the personal U-Net on each batch: a pass of a site's loop, and their weights."""
    context = SiteContext(0, 1, device, autocast=autocast_dtype(device, settings.amp), compiled=compiled)
    tracks = {name: SegmentationClient(settings, {}, context) for name in ("global", "personal")}
    for track in tracks.values():
        track.receive(TRAIN, initial_weights(track.build, settings.seed))
    on = streams_of(streams, tracks, device, "gpu-check")

    def walk(number: int) -> float:
        steps = steps_of(settings, part, "site", number)
        totals = train_on(steps, part, tracks, device, settings.pin_memory, lambda step: None, streams=on)
        return float(totals["personal"]) / len(part)

    return walk, lambda: {key: value.cpu() for key, value in tracks["personal"].net.state_dict().items()}


def compare(device: torch.device, settings: JobSettings, count: int, compiler: bool) -> list[str]:
    """The settings of a site that are there for speed, each against a pass without it."""
    part = images_of(settings, count)
    steps = -(-count // settings.batch_size)
    ways = {"streams": {"streams": True}} | ({"compile": {"compiled": True}} if compiler else {})
    walk, weights = pair(settings, part, device, streams=False, compiled=False)
    base, _ = measure(walk, steps)
    own = weights()
    lines = [f"two U-Nets a batch: {base:.2f} steps a second"]
    for name, way in ways.items():
        walk, weights = pair(settings, part, device, **({"streams": False, "compiled": False} | way))
        speed, _ = measure(walk, steps)
        far = max((value - own[key]).abs().max().item() for key, value in weights().items())
        lines.append(f"  {name}: {speed:.2f} steps a second, {speed / base:.2f} times that; weights apart by {far:.1e}")
    return lines


def split(kind: str, count: int, settings: JobSettings, folder: Path, images: int) -> list[str]:
    """The same rounds at a synthetic site with one device and with `count` of them (`cuda`; for tests `cpu`)."""
    sites = write_sites(folder / "data", 2, images=images, size=settings.size)
    speed, updates = {}, {}
    for devices in (1, count):
        local = folder / str(devices)
        local.mkdir()
        own = {"data_root": str(folder / "data"), "device": kind, "devices": devices}
        (local / FILE_NAME).write_text(json.dumps(own))  # JSON is YAML
        site = load_site_settings(local, local, sites[0], os.cpu_count() or 1)
        trainer = SiteTrainer(settings, site, sites[0], 0, sites, "0123456789ab")
        try:
            for number in (1, 2):
                first = {name: initial_weights(lambda: build_unet(settings.task), number) for name in settings.tracks}
                began = time.perf_counter()
                updates[devices] = trainer.train(number, first)[0]
                steps = settings.local_epochs * -(-len(trainer.parts["train"]) // settings.batch_size)
                speed[devices] = steps / (time.perf_counter() - began)
        finally:
            if trainer.others:
                trainer.others.end()
    apart = [(v - updates[count][n][k]).abs().max().item() for n, group in updates[1].items() for k, v in group.items()]
    return [
        f"{count} devices: {speed[count]:.2f} steps a second, one: {speed[1]:.2f}; weights apart by {max(apart):.1e}"
    ]


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
    settings = build_settings("retinal", "fedavg")
    for line in report(device, settings, _IMAGES):
        print(line)
    with tempfile.TemporaryDirectory() as folder:
        compiler = True
        try:
            prepare_compiler(device, Path(folder), "gpu-check")
        except UserError as e:
            compiler = False
            print(e)
        for line in compare(device, settings, _IMAGES, compiler):
            print(line)
        if (count := torch.cuda.device_count()) > 1:
            for line in split("cuda", count, settings, Path(folder), _IMAGES):
                print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
