"""The segmentation networks of MONAI that a task may name in place of the paper's U-Net.

A network can be used when, built for 2D images, it gives one tensor of logits of the image's size, and when its shapes
can be computed without weights. Those below do, as a test of each shows; the transformers (UNETR, SwinUNETR) do not.
Job settings come from a server, so a site builds nothing but these, and from plain values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsm.core.limits import shown
from fedsm.core.model import known_words

NAME = "name"
# MONAI's name -> the values with which it is built unless the task says otherwise.
NETWORKS: dict[str, dict[str, Any]] = {
    "AttentionUnet": {"channels": [16, 32, 64, 128, 256], "strides": [2, 2, 2, 2]},
    "BasicUNet": {"features": [16, 16, 32, 64, 128, 16], "norm": ["INSTANCE", {"affine": True}]},
    "DynUNet": {
        "filters": [16, 32, 64, 128, 256],
        "kernel_size": [3, 3, 3, 3, 3],
        "strides": [1, 2, 2, 2, 2],
        "upsample_kernel_size": [2, 2, 2, 2],
        "norm_name": ["INSTANCE", {"affine": True}],
    },  # fmt: skip
    "FlexibleUNet": {"backbone": "efficientnet-b0"},
    "HighResNet": {},
    "SegResNet": {"init_filters": 16},
    "SegResNetDS": {"norm": ["INSTANCE", {"affine": True}]},
}
FOLLOWS = ("spatial_dims", "in_channels", "out_channels")  # follow from the task
# Weights from the internet, several outputs, and code.
REFUSED = ("pretrained", "adv_prop", "deep_supervision", "deep_supr_num", "dsdepth", "pretrain_path")
# How often a network builds a block: 10^8 of them fill the memory before anybody could count their parameters.
_REPEATS = ("blocks_down", "blocks_up", "repeat")
_MOST_BLOCKS, _MOST = 32, 10**6


def check_network(network: Mapping[str, Any]) -> None:
    """Refuses what is no network of the list, or an argument that the task may not give; loads nothing.

    Raises:
        ValueError: for the settings' own errors.
    """
    if not network:
        return
    name = network.get(NAME)
    if name not in NETWORKS:
        raise ValueError(f"no network {shown(name)}; {known_words(name, sorted(NETWORKS))}")
    for key, value in network.items():
        if key in FOLLOWS:
            raise ValueError(f"network: {key} follows from the task; leave it out")
        if key in REFUSED:
            raise ValueError(f"network: {key} cannot be set; leave it out")
        if not _is_plain({key: value}):
            raise ValueError(
                f"network: {shown(key)} must be a number, text, true, false, null, or a list of these; numbers of"
                f" {_MOST} at most, {', '.join(_REPEATS)} of {_MOST_BLOCKS}"
            )


def _is_plain(value: Any, depth: int = 4, most: int = _MOST) -> bool:
    if isinstance(value, dict):
        limits = {key: _MOST_BLOCKS if key in _REPEATS else most for key in value}
        plain = all(isinstance(key, str) and _is_plain(v, depth - 1, limits[key]) for key, v in value.items())
        return depth > 0 and len(value) <= 64 and plain
    if isinstance(value, list):
        return depth > 0 and len(value) <= 64 and all(_is_plain(v, depth - 1, most) for v in value)
    if isinstance(value, (int, float)):
        return -most <= value <= most
    return value is None or isinstance(value, str)
