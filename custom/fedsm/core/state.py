"""Arithmetic on state dicts, torch and numpy mixed: floats are averaged, integer buffers are not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.nn.utils import get_total_norm

from fedsm.core.tensors import Tensors


def as_tensor(value: Any) -> torch.Tensor:
    """A CPU tensor of a torch or numpy array. Site filters return numpy where torch was sent.

    Raises:
        TypeError: neither, an array of objects or text, or a sparse or quantized tensor.
    """
    if not isinstance(value, torch.Tensor) and callable(getattr(value, "materialize", None)):
        value = value.materialize()  # the server receives tensors to its disk; this reads one
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized:
            raise TypeError(f"expected a plain tensor, got one of layout {value.layout}")
        plain = value.device.type == "cpu" and not value.requires_grad
        return value if plain else value.detach().cpu()
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return torch.from_numpy(np.ascontiguousarray(value))
    raise TypeError(f"expected a tensor or a numeric array, got {type(value).__name__}")


def copy(tensors: Tensors) -> Tensors:
    """A deep copy on the CPU."""
    return {k: v.detach().cpu().clone() for k, v in tensors.items()}


def prefixed(word: str, tensors: Tensors) -> Tensors:
    """The entries under `word/`, so that several dicts fit into one."""
    return {f"{word}/{key}": value for key, value in tensors.items()}


def part(word: str, tensors: Tensors) -> Tensors:
    """What `prefixed` put under a word."""
    return {key.removeprefix(f"{word}/"): v for key, v in tensors.items() if key.startswith(f"{word}/")}


def without(word: str, tensors: Tensors) -> Tensors:
    """The entries that `prefixed` did not put under a word."""
    return {key: value for key, value in tensors.items() if not key.startswith(f"{word}/")}


def subtract(new: Tensors, old: Tensors) -> Tensors:
    """new - old, entry by entry, on the CPU: a WEIGHT_DIFF."""
    return {k: (new[k].detach() - old[k].to(new[k].device)).cpu() for k in old}


def scaled(tensors: Tensors, factor: float) -> Tensors:
    """The floats times a factor; integers as they are."""
    return {k: v * factor if v.is_floating_point() else v for k, v in tensors.items()}


def add_(target: Tensors, diff: Tensors) -> None:
    """target += diff in place, keeping target's dtypes.

    Keeping the dtype matters: dividing by a NumPy scalar somewhere upstream turns float32 into float64,
    which doubles memory and wire. Integer buffers that a filter turned into floats are rounded back.
    """
    changes = []
    for key, value in target.items():
        change = diff[key]
        if change.dtype != value.dtype:
            rounded = change.is_floating_point() and not value.is_floating_point()
            change = (change.round() if rounded else change).to(value.dtype)
        changes.append(change)
    if changes:
        torch._foreach_add_(list(target.values()), changes)
    _keep_variances_(target)


def moved_towards(own: Tensors, target: Tensors, t: float) -> Tensors:
    """own + t (target - own) as new tensors, on the CPU; integers, and entries that `target` lacks, are own's."""
    moved = copy(own)
    for key in target:
        if moved[key].is_floating_point():
            moved[key].lerp_(_cast(target[key], moved[key].dtype), t)
    _keep_variances_(moved)
    return moved


def _keep_variances_(tensors: Tensors) -> None:
    """Sets negative variances of batch norms to zero: their roots would be NaN. Honest updates never lead to them."""
    for key, value in tensors.items():
        if key.endswith("running_var"):
            value.clamp_(min=0)


def examine(update: Tensors, template: Tensors) -> tuple[str | None, float]:
    """Why an update may not be merged, or None; and the norm of its floats (0 where it may not).

    Checks keys, shapes, dtypes and that every value is finite. One norm over all entries is a single pass over the
    bytes: a NaN or an infinity anywhere makes it non-finite, and so does a value beyond 1e19, which no weight has.
    """
    if update.keys() != template.keys():
        return _keys_problem(update, template), 0.0
    floats = []
    for key, expected in template.items():
        value = update[key]
        if value.shape != expected.shape:
            return f"entry {key!r} has shape {tuple(value.shape)}, expected {tuple(expected.shape)}", 0.0
        if value.dtype == expected.dtype:
            if expected.dtype.is_floating_point:
                floats.append(value)
        elif value.is_complex() or value.dtype == torch.bool:
            return f"entry {key!r} has dtype {value.dtype}", 0.0
        elif expected.is_floating_point() or value.is_floating_point():
            # In the dtype that it will get: 1e300 is finite as float64 but infinite as a float32 weight; and whole
            # numbers sent for weights have a norm, too.
            floats.append(value.to(expected.dtype if expected.is_floating_point() else torch.float32))
    norm = _total_norm(floats) if floats else 0.0
    return (None, norm) if math.isfinite(norm) else (_values_problem(update, template), 0.0)


def _total_norm(values: list[torch.Tensor]) -> float:
    """torch's `get_total_norm`, without what that does for tensors on several devices: it takes as long as a pass."""
    if any(value.dtype != values[0].dtype for value in values):
        return float(get_total_norm(values).item())
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(values, 2.0)), 2.0).item())


def _keys_problem(update: Tensors, template: Tensors) -> str:
    missing = sorted(set(template) - set(update))
    if missing:
        return f"entry {missing[0]!r} is missing ({len(missing)} in all)"
    extra = sorted(set(update) - set(template), key=str)
    return f"unexpected entry {str(extra[0])[:80]!r} ({len(extra)} in all)"


def _values_problem(update: Tensors, template: Tensors) -> str:
    for key, expected in template.items():
        value = update[key]
        value = value.to(expected.dtype if expected.is_floating_point() else torch.float32)
        if not torch.isfinite(torch.linalg.vector_norm(value)):
            return f"entry {key!r} holds NaN or infinite values"
    return "values are too large to be weights"


def _cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return value if value.dtype == dtype else value.to(dtype)


class RunningMean:
    """Weighted mean of state dicts that come one by one.

    Floats are summed in the model's own precision (float64 costs five times as much), so the result depends on the
    order of the calls in its last bits: the controller keeps to the order of the sites. Integer buffers are not
    averaged: those of the site with most data are taken (the first site by index where two are equal).

    Args:
        template: says which entries there are and what is a float.
        spare: unused tensors like the template's, to sum into: allocating new ones takes as long as summing three
            sites.
    """

    def __init__(self, template: Tensors, spare: Tensors | None = None):
        # The template says what is a float: a site's filter may have turned an integer buffer into one.
        self._dtypes = {k: v.dtype for k, v in template.items() if v.is_floating_point()}
        self._spare = spare or dict.fromkeys(template)
        self._sums: Tensors = {}
        self._integers: Tensors = {}
        self._largest: tuple[float, int] | None = None
        self.weight = 0.0
        self.count = 0

    def add(self, tensors: Tensors, weight: float, index: int = 0) -> None:
        """Adds one state dict with its weight (number of images); `index` is the site's."""
        floats = [_cast(tensors[k], dtype) for k, dtype in self._dtypes.items()]
        if self.count and floats:
            torch._foreach_add_(list(self._sums.values()), floats, alpha=weight)
        else:
            self._sums = {
                k: torch.mul(v, weight, out=self._spare[k]) for k, v in zip(self._dtypes, floats, strict=True)
            }
        if self._largest is None or (weight, -index) > self._largest:
            self._largest = (weight, -index)
            self._integers = {k: v for k, v in tensors.items() if k not in self._sums}
        self.weight += weight
        self.count += 1

    def take(self) -> Tensors:
        """The weighted mean of the floats. Ends this mean.

        Raises:
            ZeroDivisionError: nothing was added.
        """
        sums, self._sums = self._sums, {}
        scale = 1 / self.weight
        if sums:
            torch._foreach_mul_(list(sums.values()), scale)
        return sums

    def added_to(self, old: Tensors) -> Tensors:
        """old + the weighted mean, as new tensors; integers: old + the largest site's values. Ends this mean.

        New tensors, because a slow download may still read the old ones; the sums are reused, which saves a copy.

        Raises:
            ZeroDivisionError: nothing was added.
        """
        sums = self.take()
        if sums:
            torch._foreach_add_(list(sums.values()), [old[k] for k in sums])
        _keep_variances_(sums)
        integers = {k: old[k].clone() for k in self._integers}
        add_(integers, self._integers)
        return {k: sums[k] if k in sums else integers[k] for k in old}
