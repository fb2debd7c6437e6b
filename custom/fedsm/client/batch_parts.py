"""A batch's images dealt out to the devices of a site."""

from __future__ import annotations

import torch

from fedsm.client.training_pass import Step


def part_of(step: Step, rank: int, count: int) -> Step:
    """The part of one of `count` devices: images in their order, of which the first devices get one more if it must be.

    A device for which there is none (a last batch that is small) takes the first image, and counts it as nothing: it
    has to take the step as all others do.
    """
    rows = torch.arange(len(step.rows)).tensor_split(count)[rank]
    share = len(rows) / len(step.rows)
    empty = not len(rows)
    rows = rows if len(rows) else torch.zeros(1, dtype=rows.dtype)
    return Step(step.rows[rows], tuple(t[rows] for t in step.transforms), empty, share)
