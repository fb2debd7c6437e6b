"""The types that tracks, selectors and models share."""

from __future__ import annotations

import torch

Tensors = dict[str, torch.Tensor]
Batch = tuple[torch.Tensor, torch.Tensor]  # images (B, C, H, W) in 0..1, labels (B, L, H, W) of 0 and 1


def payload_bytes(tracks: dict[str, Tensors]) -> int:
    """Bytes of the tensors themselves; names and framing add well under one percent."""
    return sum(t.nbytes for tensors in tracks.values() for t in tensors.values())
