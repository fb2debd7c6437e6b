"""FLARE's cell and the server's engine, as far as receiving to disk needs them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from nvflare.apis.workspace import Workspace

ROOT_DIR = "tensor_disk_offload_root_dir"  # where FLARE's cell puts tensors


class Cell:
    """The parts of a FLARE cell that the switch and the limit of messages are set on."""

    def __init__(self):
        self.context = {}
        self.byte_receiver = SimpleNamespace(registry=SimpleNamespace(reg={}))

    def get_fobs_context(self):
        return self.context

    def update_fobs_context(self, props):
        self.context |= props


def engine_of(root: Path) -> SimpleNamespace:
    """The part of a server's engine that matters here."""
    for name in ("startup", "local"):
        (root / name).mkdir(parents=True, exist_ok=True)
    cell, workspace = Cell(), Workspace(str(root), "server")
    return SimpleNamespace(get_cell=lambda: cell, server=None, get_workspace=lambda: workspace)
