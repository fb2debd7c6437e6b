"""The weights of a finished run, and how far they may be from those of a plain loop."""

from __future__ import annotations

from fedsm.server.checkpoint import Checkpoints

TOLERANCE = 1e-5


def last_weights(run_folder) -> dict:
    """Model name -> weights after the last round, from the newest checkpoint."""
    checkpoints = Checkpoints(run_folder / "checkpoints")
    state = checkpoints.load()
    return {stem: checkpoints.load_weights(name) for stem, name in state["files"].items()}


def size_of(weights: dict) -> int:
    """Bytes of a network."""
    return sum(v.numel() * v.element_size() for v in weights.values())
