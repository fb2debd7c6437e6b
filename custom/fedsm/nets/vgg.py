"""VGG-11 (Simonyan & Zisserman, 2015), the paper's model selector, with two heads."""

import torch
from torch import nn

from fedsm.core.task_settings import TaskSettings
from fedsm.nets.first_weights import built_alone

_PLAN = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")


class VGG11(nn.Module):
    """VGG-11 for any number of input channels.

    Args:
        in_channels: image channels.
        classes: outputs; one per site.
        head: `fc`, the paper's three fully connected layers on a 7 x 7 grid (128.8 M parameters in all for
            six sites), or `gap`, global average pooling and one linear layer (9.2 M).
        width: factor on every layer's width, for small runs.

    Shape:
        input (B, in_channels, H, W) with H, W >= 32; output (B, classes) logits.
    """

    def __init__(self, in_channels: int, classes: int, head: str = "gap", width: float = 1.0):
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_channels
        for item in _PLAN:
            if isinstance(item, str):  # "pool"
                layers.append(nn.MaxPool2d(2))
                continue
            out = max(1, round(item * width))
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(inplace=True)]
            channels = out
        self.features = nn.Sequential(*layers)

        if head == "gap":
            self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
        else:
            hidden = max(1, round(4096 * width))
            self.head = nn.Sequential(
                nn.AdaptiveAvgPool2d(7),
                nn.Flatten(),
                nn.Linear(channels * 49, hidden),
                nn.ReLU(inplace=True),
                nn.Dropout(0.5),
                nn.Linear(hidden, hidden),
                nn.ReLU(inplace=True),
                nn.Dropout(0.5),
                nn.Linear(hidden, classes),
            )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                # Eleven layers without batch norm do not start to learn with torch's default initial weights.
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits over the sites."""
        logits: torch.Tensor = self.head(self.features(images))
        return logits


def build_selector(task: TaskSettings, classes: int) -> VGG11:
    """Builds the selector network of a task for `classes` sites."""
    net = task.selector_net
    return built_alone(lambda: VGG11(task.channels, classes, net.head, net.width))
