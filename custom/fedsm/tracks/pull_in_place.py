"""SoftPull's arithmetic on K' models at once, in place and block by block: no second copy of the models is made."""

from __future__ import annotations

from collections.abc import Iterator, Set

import torch

from fedsm.core.tensors import Tensors

Block = list[torch.Tensor]
_BLOCK = 128 * 1024  # entries pulled at a time


def soft_pull_(weights: list[Tensors], lam: float, held: Set[str] = frozenset()) -> None:
    """Pulls K' models towards each other, in place.

    The pull is linear: with m the mean of all K' models, `lam * w_k + (1 - lam) / (K' - 1) * (K' m - w_k)`
    equals `w_k + t (m - w_k)` with `t = (1 - lam) K' / (K' - 1)`. So one mean serves all sites: O(K') work and
    one small buffer. Integer buffers are not pulled. With one model nothing is pulled.

    Args:
        weights: the models that answered.
        lam: weight of a site's own model.
        held: entries that stay as they are.
    """
    count = len(weights)
    if count < 2:
        return
    t = (1 - lam) * count / (count - 1)
    for models, (mean,) in _walk(weights, held, buffers=1):
        torch._foreach_copy_(mean, models[0])
        for values in models[1:]:
            torch._foreach_add_(mean, values)
        torch._foreach_div_(mean, count)
        for values in models:
            torch._foreach_lerp_(values, mean, t)


def weighted_pull_(weights: list[Tensors], lam: float, shares: torch.Tensor, held: Set[str] = frozenset()) -> None:
    """Pulls each of K' models towards its own mean of the others: `w_k + (1 - lam) (sum_j p_kj w_j - w_k)`, in place.

    O(K'^2) work, because every site has a mean of its own. Of the old models only one block at a time is copied.

    Args:
        weights: the models that answered, at least two.
        lam: weight of a site's own model.
        shares: (K', K') p: rows add up to 1, the diagonal is 0.
        held: entries that stay as they are.
    """
    rows = shares.tolist()
    for models, (mean, *old) in _walk(weights, held, buffers=1 + len(weights)):
        for values, before in zip(models, old, strict=True):
            torch._foreach_copy_(before, values)
        for k, values in enumerate(models):
            torch._foreach_zero_(mean)
            for before, share in zip(old, rows[k], strict=True):
                if share:
                    torch._foreach_add_(mean, before, alpha=share)
            torch._foreach_lerp_(values, mean, 1 - lam)


def pull_to_(weights: list[Tensors], target: Tensors, lam: float, held: Set[str] = frozenset()) -> None:
    """Pulls models towards one that is none of them: `lam * w_k + (1 - lam) * target`, in place.

    Args:
        weights: the models.
        target: has at least their entries.
        lam: weight of a site's own model.
        held: entries that stay as they are.
    """
    for models, _ in _walk([*weights, {key: target[key] for key in weights[0]}], held, buffers=0):
        *own, towards = models
        for values in own:
            torch._foreach_lerp_(values, towards, 1 - lam)


def _walk(weights: list[Tensors], held: Set[str], buffers: int) -> Iterator[tuple[list[Block], list[Block]]]:
    """Block by block: the block's entries of every model, and so many buffers of the same shapes."""
    blocks = list(_blocks({key: value for key, value in weights[0].items() if key not in held}))
    scratch: dict[torch.dtype, torch.Tensor] = {}
    for dtype in {dtype for dtype, _ in blocks}:
        largest = max(sum(weights[0][k].numel() for k in keys) for d, keys in blocks if d == dtype)
        scratch[dtype] = torch.empty(buffers, largest, dtype=dtype)
    for dtype, keys in blocks:
        models = [[w[k] for k in keys] for w in weights]
        sizes = [v.numel() for v in models[0]]
        parts = [torch.split(row[: sum(sizes)], sizes) for row in scratch[dtype]]
        yield models, [[p.view(v.shape) for p, v in zip(part, models[0], strict=True)] for part in parts]


def _blocks(tensors: Tensors) -> Iterator[tuple[torch.dtype, list[str]]]:
    """The float entries in blocks of one dtype: small ones together, so that fewer calls are made, and large ones
    each in a block of its own, so that it stays in the processor's cache between the mean and the pull."""
    by_dtype: dict[torch.dtype, list[str]] = {}
    for key, value in tensors.items():
        if not value.is_floating_point():
            continue
        keys = by_dtype.setdefault(value.dtype, [])
        if keys and sum(tensors[k].numel() for k in keys) + value.numel() > _BLOCK:
            yield value.dtype, list(keys)
            keys.clear()
        keys.append(key)
    yield from ((dtype, keys) for dtype, keys in by_dtype.items() if keys)
