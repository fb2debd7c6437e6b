"""SoftPull's arithmetic on K' models in files (`core/model_store.py`): the formulas are those of `pull_in_place.py`.

Towards a mean, the models are read one after the other, and each is changed on its own: one mean and one model are in
memory. Each site's own mean, of `pull: similarity`, needs all models at once: a piece of every one is in memory, twice.
Every number is computed as it is in memory, in the same order, so the weights are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import torch

from fedsm.core.mapped import release, release_tensor
from fedsm.core.model_store import StoredModel
from fedsm.core.tensors import Tensors

_PIECES = 1024 * 1024  # entries of all models together that are in memory at a time
_LEAST = 64  # entries of one model: whole registers of the processor, so that no entry is computed in another way


def soft_pull_(models: list[StoredModel], lam: float, held: Set[str]) -> None:
    """See `pull_in_place.soft_pull_`."""
    count = len(models)
    if count < 2:
        return
    first, *others = models
    start = first.open()
    mean = {key: value.clone() for key, value in start.items() if _pulled(key, value, held)}
    release(start)
    for model in others:
        tensors = model.open()
        torch._foreach_add_(list(mean.values()), [tensors[key] for key in mean])
        release(tensors)
    torch._foreach_div_(list(mean.values()), count)
    _lerp_(models, mean, (1 - lam) * count / (count - 1))


def pull_to_(models: list[StoredModel], target: Tensors, lam: float, held: Set[str]) -> None:
    """See `pull_in_place.pull_to_`."""
    if models:
        keys = [key for key, value in models[0].open().items() if _pulled(key, value, held)]
        _lerp_(models, {key: target[key] for key in keys}, 1 - lam)


def weighted_pull_(models: list[StoredModel], lam: float, shares: torch.Tensor, held: Set[str]) -> None:
    """See `pull_in_place.weighted_pull_`."""
    rows = shares.tolist()
    for pieces in _pieces(models, held):
        old = torch.stack(pieces)
        mean = torch.empty_like(pieces[0])
        for own, row in zip(pieces, rows, strict=True):
            mean.zero_()
            for before, share in zip(old, row, strict=True):
                if share:
                    mean.add_(before, alpha=share)
            own.lerp_(mean, 1 - lam)


def _pulled(key: str, value: torch.Tensor, held: Set[str]) -> bool:
    return key not in held and value.is_floating_point()


def _lerp_(models: list[StoredModel], towards: Tensors, t: float) -> None:
    for model in models:
        with model.editing() as tensors:
            torch._foreach_lerp_([tensors[key] for key in towards], list(towards.values()), t)


def _pieces(models: list[StoredModel], held: Set[str]) -> Iterator[list[torch.Tensor]]:
    """The same piece of every model, flat and to be changed, one piece after the other.

    One entry of all models is mapped at a time: K' whole models, mapped, have more tensors than memory should hold.
    """
    length = max(_LEAST, _PIECES // len(models) // _LEAST * _LEAST)
    for model in models:
        model.detach()
    keys = [key for key, value in models[0].open().items() if _pulled(key, value, held)]
    for key in keys:
        entries = [model.open(writable=True)[key] for model in models]
        flat = [entry.view(-1) for entry in entries]
        for start in range(0, len(flat[0]), length):
            yield [values[start : start + length] for values in flat]
            for entry in entries:
                release_tensor(entry)
