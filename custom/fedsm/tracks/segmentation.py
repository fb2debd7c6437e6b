"""The client half that the global and the personal track share: one U-Net, Dice loss, Adam."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from monai.losses import DiceLoss
from torch import nn

from fedsm.core.dice import dice_per_image
from fedsm.core.state import subtract
from fedsm.core.tensors import Batch, Tensors
from fedsm.nets import build_unet
from fedsm.tracks.base import ClientTrack


class NetworkClient(ClientTrack):
    """A network that takes one Adam step a batch and sends what it changed.

    Adam's moments stay at the site across rounds (`state`): only weights travel. Subclasses give the
    network, the learning rate, the loss and the score.
    """

    lr: float
    trains = True
    keeps_moments = True  # whether Adam steps here, at the site

    def __init__(self, *args):
        super().__init__(*args)
        self.net = self.build().to(self.device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=self.lr, betas=(0.9, 0.999))
        self._received: Tensors = {}

    def build(self) -> nn.Module:
        """The network."""
        raise NotImplementedError

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Loss of a batch."""
        raise NotImplementedError

    @property
    def received(self) -> Tensors:
        """The model that came down for this round, for tracks that look at it; not to be changed."""
        return self._received

    def receive(self, payload: Tensors) -> None:
        self._received = payload
        self.net.load_state_dict(payload)

    def forward(self, images: torch.Tensor, net: nn.Module | None = None) -> torch.Tensor:
        """Logits of the track's network, or of another, under autocast where the device and the settings allow it."""
        use_amp = self.settings.amp and self.device.type == "cuda"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=use_amp):
            return (net or self.net)(images).float()

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        self.net.train()
        loss = self.loss(self.forward(images), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def update(self) -> Tensors:
        return subtract(self.net.state_dict(), self._received)

    def state(self) -> Tensors:
        moments = self.optimizer.state_dict()["state"]
        return {f"{i}.{k}": v.detach().cpu() for i, entry in moments.items() for k, v in entry.items()}

    def load_state(self, state: Tensors) -> None:
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in state.items():
            index, _, name = key.partition(".")
            moments.setdefault(int(index), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})


class SegmentationClient(NetworkClient):
    """w <- Adam(w, grad of the Dice loss of f(w; x) against y), batch by batch (Algorithm 1, lines 8 and 9).

    The global track starts each round from the server's average and the personal one from the site's own
    pulled model; both arrive as the round's payload, so one class serves both.
    """

    def __init__(self, *args):
        self._dice_loss = DiceLoss(sigmoid=True)
        super().__init__(*args)

    @property
    def lr(self) -> float:
        return self.settings.lr

    def build(self) -> nn.Module:
        return build_unet(self.settings.task)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self._dice_loss(logits, labels)

    @torch.no_grad()
    def validate(self, batches: Iterable[Batch]) -> dict:
        self.net.eval()
        scores = [dice_per_image(self.forward(x) > 0, y > 0).mean(dim=1) for x, y in batches]
        values = torch.cat(scores)
        return {"score": values.mean().item(), "images": len(values)}
