"""The site's machine against what the job needs: device, memory, disk, and folders that can be written to."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil
import torch

from fedsm.client.site_settings import SiteSettings
from fedsm.preflight.footprint import Footprint
from fedsm.preflight.kit import Kit
from fedsm.preflight.line import Line, size_text
from fedsm.preflight.policy import read_policy


def check_device(kit: Kit, device: torch.device) -> list[Line]:
    """The device that fedsm_site.yaml names, and the GPUs that FLARE's resource manager promises to jobs."""
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        return [
            Line(
                "FAIL",
                "device",
                f"{device} asked for, but there are {count} GPUs",
                "correct device: in fedsm_site.yaml",
            )
        ]
    if (promised := _promised_gpus(kit)) > count:
        what = f"local/resources.json promises {promised} GPUs, this machine has {count}: the client will not start"
        return [Line("FAIL", "device", what, f"set num_of_gpus to {count} there")]
    name = f"{device}, {torch.cuda.get_device_name(device)}" if device.type == "cuda" else f"{device}"
    if device.type == "cuda" and not promised:
        what = f"{name}; but local/resources.json promises no GPU: jobs that ask for one never start here"
        return [Line("WARN", "device", what, f"set num_of_gpus to {count} and mem_per_gpu_in_GiB there")]
    if device.type != "cuda":
        return [Line("PASS", "device", f"{name}, {os.cpu_count()} cores; GPUs promised to jobs: {promised}")]
    return [Line("PASS", "device", f"{name}; {promised} of {count} GPUs promised to jobs")]


def _promised_gpus(kit: Kit) -> int:
    """The resource manager's `num_of_gpus`; 0 where that cannot be read (another check reports it)."""
    try:
        components = read_policy(kit, "resources.json").get("components", [])
        numbers = [c["args"].get("num_of_gpus", 0) for c in components if c.get("id") == "resource_manager"]
        return max([int(n) for n in numbers], default=0)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return 0


def check_memory(need: Footprint, device: torch.device) -> list[Line]:
    """Main memory and, on CUDA, the GPU's, against the estimate."""
    have = psutil.virtual_memory()
    lines = [_compare("memory", need.memory(device.type != "cuda"), have.available, have.total)]
    if device.type == "cuda":
        lines.append(_compare("GPU memory", need.training, *torch.cuda.mem_get_info(device)))
    return lines


def _compare(topic: str, need: int, free: int, total: int) -> Line:
    what = f"about {size_text(need)} needed, {size_text(free)} free of {size_text(total)}"
    if total < need:
        return Line("FAIL", topic, what, "ask for a smaller --batch-size or --size, or use a larger machine")
    if free < need:
        return Line("WARN", topic, what, "end other programs before a job starts; see them with top or nvidia-smi")
    return Line("PASS", topic, what)


def check_disk(site: SiteSettings, state: int, cache: int) -> list[Line]:
    """Space for local state, without which a round fails, and for the cache, without which images go to memory.

    Args:
        site: the site's settings.
        state: bytes of local state.
        cache: bytes of decoded images; 0: not known.
    """
    free = {name: shutil.disk_usage(_existing(getattr(site, name))).free for name in ("state_dir", "cache_dir")}
    shared = os.stat(_existing(site.state_dir)).st_dev == os.stat(_existing(site.cache_dir)).st_dev
    room = free["cache_dir"] - (state if shared else 0)
    text = f"state about {size_text(state)} in {size_text(free['state_dir'])} free"
    if cache:
        text += f", cache about {size_text(cache)} in {size_text(free['cache_dir'])} free"
    if free["state_dir"] < state:
        return [Line("FAIL", "disk", text, "make room, or set another state_dir in fedsm_site.yaml")]
    if room < cache:
        remedy = "make room or set another cache_dir in fedsm_site.yaml; else images are decoded at every start"
        return [Line("WARN", "disk", text, remedy)]
    if site.cache_budget < cache:
        text = f"cache about {size_text(cache)}, more than cache_budget ({size_text(site.cache_budget)})"
        return [Line("WARN", "disk", text, f"set cache_budget: {size_text(2 * cache)} in fedsm_site.yaml")]
    return [Line("PASS", "disk", text)]


def check_writing(kit: Kit, site: SiteSettings | None) -> list[Line]:
    """Whether the folders that a client writes to could be made and written; it checks rights and writes nothing."""
    folders = {"the kit": kit.root} | ({"state_dir": site.state_dir, "cache_dir": site.cache_dir} if site else {})
    lines = []
    for name, folder in folders.items():
        there = _existing(folder)
        if not there.is_dir():
            remedy = f"name a folder: {there} is a file"
        elif not os.access(there, os.W_OK | os.X_OK):
            remedy = f"give this user the right: chown {_user()} {there}"
        else:
            continue
        lines.append(Line("FAIL", "writing", f"{name} {folder} cannot be written by {_user()}", remedy))
    return lines or [Line("PASS", "writing", f"{_user()} may write to {', '.join(folders)}")]


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    folder = folder.absolute()
    # Not Path.exists: that raises where this user may not look.
    return next(p for p in (folder, *folder.parents) if os.path.exists(p))


def _user() -> str:
    return psutil.Process().username()
