"""The super model as one TorchScript module: selection and segmentation together, which runs without this package.

The networks and the selector are traced; what joins them is scripted, so that each network sees only the images that
it was chosen for. `fedsm export` writes it into a MONAI bundle, and to ONNX, where the branches become `If` nodes.
"""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.nn import functional

from fedsm.selectors.inference import GLOBAL, MIXTURE
from fedsm.selectors.policy import Policy
from fedsm.selectors.selection import shares_by_model
from fedsm.super_model.model import SuperModel

SLICE_BY_SLICE = (  # for a super model whose policy has `majority`
    "Each slice of a volume selects its own model. The super model itself gives all slices the one that most of them"
    " select, for which it must see all of them at once."
)
OUTPUTS = ("probabilities", "choice", "yhat", "distance")


class _Selecting(nn.Module):
    """Images to choices (B,), yhat (B, K or K + 1), distance (B,); to be traced: the selector becomes constants."""

    def __init__(self, model: SuperModel):
        super().__init__()
        self._model = model

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        selection = self._model.select(images)
        unknown = images[:, 0, 0, 0] * 0
        yhat = unknown[:, None] + 1 if selection.yhat is None else selection.yhat
        distance = unknown / 0 if selection.distance is None else selection.distance
        # Not `selection.choices` if there is no selector: tracing would turn it into a constant of one batch size.
        choices = unknown.long() if selection.yhat is None else selection.choices
        return choices, yhat, distance


class ScriptedSuperModel(nn.Module):
    """Selection and segmentation.

    Shape:
        input (B, C, S, S) in 0..1; output probabilities (B, L, S, S), choice (B,) (0 is the global model, k + 1 the
        personal one of site k), yhat (B, K or K + 1), distance (B,), NaN if the selector gives none.
    """

    def __init__(self, select: nn.Module, nets: list[nn.Module], labels: int, mixture: bool, policy: Policy):
        super().__init__()
        self.select = select
        self.nets = nn.ModuleList(nets)
        self.labels = labels
        self.mixture = mixture
        self.shares: list[float] = shares_by_model(policy.share, len(nets)).tolist()
        self.flip = policy.flip

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        choice, yhat, distance = self.select(images)
        output = torch.zeros(
            [images.shape[0], self.labels, images.shape[2], images.shape[3]], dtype=images.dtype, device=images.device
        )
        for m, net in enumerate(self.nets):
            # The mixture takes all networks. With shares, the global one (0) has a part in every image.
            every = self.mixture or (m == 0 and max(self.shares) > 0)
            if every:
                rows = torch.arange(images.shape[0], device=images.device)
            else:
                rows = (choice == m).nonzero().reshape(-1).to(images.device)
            if rows.numel() > 0:
                seen = images.index_select(0, rows)
                found = net(seen).sigmoid()
                if self.flip:
                    found = (found + net(seen.flip([3])).sigmoid().flip([3])) / 2
                if self.mixture:
                    weight = yhat[:, m].to(images.device)
                elif every:
                    of_model = torch.tensor(self.shares, dtype=images.dtype)
                    weight = of_model[choice].to(images.device) + (choice == 0).to(images.dtype).to(images.device)
                else:
                    weight = torch.full([rows.shape[0]], 1 - self.shares[m], dtype=images.dtype, device=images.device)
                part = output.index_select(0, rows) + weight.reshape(-1, 1, 1, 1) * found
                output = output.index_copy(0, rows, part)
        return output, choice, yhat, distance


class AnySize(nn.Module):
    """For images of any size in 0..1, along the axes in which MONAI's readers give them.

    Args:
        inner: the super model at its own size.
        size: that size.
        volume: slices (x, y) of a volume in RAS orientation; else pictures (x, y). In this package rows come first,
            and the first row of a volume's slice is the front of the patient.

    Shape:
        input (B, C, X, Y), output probabilities (B, L, X, Y).
    """

    def __init__(self, inner: nn.Module, size: int, volume: bool):
        super().__init__()
        self.inner = inner
        self.size = size
        self.volume = volume

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images.transpose(2, 3)
        if self.volume:
            x = x.flip([2])
        shown = functional.interpolate(x, [self.size, self.size], mode="bilinear", antialias=True).clamp(0, 1)
        output = functional.interpolate(self.inner(shown)[0], [x.shape[2], x.shape[3]], mode="bilinear", antialias=True)
        if self.volume:
            output = output.flip([2])
        return output.transpose(2, 3)


def script_super_model(model: SuperModel) -> torch.jit.ScriptModule:
    """A super model as one module, on the CPU.

    Raises:
        UserError: there is neither a selector nor a global model.
    """
    model.check()
    size, task = model.settings.size, model.settings.task
    example = torch.rand(3, task.channels, size, size, generator=torch.Generator().manual_seed(0))
    names = model.models if model.rule else [GLOBAL]
    with warnings.catch_warnings(), torch.no_grad():
        # Deprecated in favour of torch.export, which has no branches on data that could become ONNX.
        warnings.simplefilter("ignore")
        select = torch.jit.trace(_Selecting(model), example, check_trace=False)
        nets = [torch.jit.trace(model.net(name), example, check_trace=False) for name in names]
        mixture, policy = model.rule == MIXTURE, model.policy if model.rule else model.policy.changed(share=0.0)
        module = ScriptedSuperModel(select, nets, len(task.labels), mixture, policy)
        return torch.jit.script(module.eval())
