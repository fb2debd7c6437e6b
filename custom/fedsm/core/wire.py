"""How networks travel in a training round: as they are (`float32`), or rounded to fewer bits.

`int8`, for each block b of B = 256 values of an entry (the last block may be shorter):

    s_b = max|x| / 127      q = round(x / s_b)      x' = s_b q                      so |x - x'| <= s_b / 2

(s_b = 0: q = 0). `bfloat16`, `float16`: x' is the nearest number of that type. Up and down differ in what becomes of
the rest x - x':

    up      x_t = D_t + e_(t-1)     sent: x'_t      e_t = x_t - x'_t        D_t: the site's update, e_0 = 0
    down    sent: w', the site trains from w' and sends D = y - w', the server: w <- w + D

Up is error feedback: sum_t x'_t = sum_t D_t - e_T, so over any number of rounds the server lacks one rounding. The site
keeps e_t with its other state. Down nothing is kept, and nothing builds up: the server's own w is never rounded, and
the site says how far it went, not where it is. So an error of w' is in the point at which one round's training starts,
and gone with it.

Only float32 entries of two or more dimensions are rounded: the kernels, nearly all bytes. Biases, and what norm layers
have, are small and sensitive: beside a large variance a small one would become 0. Integers and float64 are never
rounded, and nothing outside training rounds is: sums of descriptors, last models, candidates.

Error feedback: Seide et al., "1-bit stochastic gradient descent", Interspeech 2014. Blocks: Dettmers et al., "8-bit
optimizers via block-wise quantization", ICLR 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.task_names import TRAIN
from fedsm.core.tensors import Tensors

BLOCK = 256  # values that share a scale: 4 bytes more for 256
SCALES = ".scales"  # what is added to a track's name for the scales of its entries
_LARGEST = 127
_MOST_SCALE = 1e16  # with it a value is below 1e19, which no weight has (`core/state.py`)


@dataclass(frozen=True)
class _Cast:
    """The nearest number of a smaller type."""

    dtype: torch.dtype

    def round(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What travels of an entry: the numbers, and their scales if there are any."""
        return x.to(self.dtype), None

    def restore(self, sent: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        """x' of what travelled."""
        return sent.float()

    def scales(self, count: int) -> int | None:
        """How many scales an entry of so many values has; None: there is nothing like it."""
        return None


class _Blocks(_Cast):
    """Whole numbers from -127 to 127, and a scale for each block."""

    def round(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows = _rows(x)
        scales = rows.abs().amax(1) / _LARGEST
        steps = (rows / torch.where(scales > 0, scales, 1)[:, None]).round_().clamp_(-_LARGEST, _LARGEST)
        return steps.flatten()[: x.numel()].to(self.dtype).reshape(x.shape), scales

    def restore(self, sent: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        assert scales is not None
        return (_rows(sent.float()) * scales[:, None]).flatten()[: sent.numel()].reshape(sent.shape)

    def scales(self, count: int) -> int | None:
        return -(-count // BLOCK)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """A row for each block, the last one filled up with zeros."""
    return functional.pad(x.flatten(), (0, -x.numel() % BLOCK)).reshape(-1, BLOCK)


_FORMS = {
    "float32": None,
    "bfloat16": _Cast(torch.bfloat16),
    "float16": _Cast(torch.float16),
    "int8": _Blocks(torch.int8),
}


class Wire:
    """Rounds networks before they are sent, and checks and restores what was received.

    A track's entries travel under its name, with their own keys and shapes, and the scales under `<track>.scales` with
    the same keys: a site's filter that keeps an entry back by its name keeps both back.

    Args:
        word: `float32`, `bfloat16`, `float16` or `int8`.
    """

    def __init__(self, word: str):
        self._form = _FORMS[word]
        self._word = word

    @property
    def rounds(self) -> bool:
        """Whether anything is rounded."""
        return self._form is not None

    def send(self, tracks: dict[str, Tensors], made: dict[int, Any] | None = None) -> dict[str, Tensors]:
        """What travels of these tracks.

        Args:
            tracks: tensors by track.
            made: what was rounded already, by the identity of the tensor; sites that get the same model share it. The
                caller keeps the tensors alive meanwhile.

        Raises:
            UserError: a value is not finite, or too large for the type.
        """
        if not (form := self._form):
            return tracks
        made = {} if made is None else made
        sent: dict[str, Tensors] = {}
        for name, tensors in tracks.items():
            entries = sent.setdefault(name, {})
            scales: Tensors = {}
            for key, value in tensors.items():
                entries[key] = value
                if self._rounds(value):
                    if id(value) not in made:
                        made[id(value)] = form.round(value)
                    entries[key], scale = made[id(value)]
                    if not torch.isfinite(entries[key] if scale is None else scale).all():
                        reason = f"track {name!r}: entry {key!r} has values that do not fit into {self._word}"
                        raise _refused(reason, "set wire to bfloat16 or float32")
                    scales |= {} if scale is None else {key: scale}
            sent |= {name + SCALES: scales} if scales else {}
        return sent

    def send_update(
        self, updates: dict[str, Tensors], left: dict[str, Tensors]
    ) -> tuple[dict[str, Tensors], dict[str, Tensors]]:
        """What travels of updates, and what rounding left out of them.

        Args:
            updates: tensors by track.
            left: what was left out before, by track; entries that are missing count as zero.

        Returns:
            what travels, and the new `left` of the same tracks.

        Raises:
            UserError: as `send`.
        """
        if not self._form:
            return updates, {}
        due = {
            name: {
                key: value + left[name][key] if self._rounds(value) and key in left.get(name, {}) else value
                for key, value in tensors.items()
            }
            for name, tensors in updates.items()
        }
        sent = self.send(due)
        arrives = self.receive({name: dict(tensors) for name, tensors in sent.items()}, due)
        rest = {
            name: {key: value - arrives[name][key] for key, value in tensors.items() if self._rounds(value)}
            for name, tensors in due.items()
        }
        return sent, rest

    def receive(self, tracks: dict[str, Tensors], templates: dict[str, Tensors] | None = None) -> dict[str, Tensors]:
        """The tracks of what travelled. Entries are removed from `tracks` as they are restored.

        Args:
            tracks: what was received.
            templates: track -> what its entries look like; an entry of another shape is refused before it is restored,
                an unknown one is left as it is. None: any entries.

        Raises:
            UserError: an entry is of another type or shape, or its scales are missing, too many, too few or no scales.
        """
        if not self._form:
            return tracks
        scales = {n.removesuffix(SCALES): dict(tracks.pop(n)) for n in list(tracks) if str(n).endswith(SCALES)}
        received: dict[str, Tensors] = {}
        for name in list(tracks):
            entries, own = tracks.pop(name), scales.pop(name, {})
            likes = None if templates is None else templates.get(name, {})
            received[name] = {}
            for key in list(entries):
                value, scale = entries.pop(key), own.pop(key, None)
                try:
                    received[name][key] = self._restored(value, scale, None if likes is None else likes.get(key, value))
                except ValueError as e:
                    raise _refused(f"track {str(name)[:40]!r}: entry {str(key)[:80]!r} {e}") from None
            if own:
                raise _refused(f"track {str(name)[:40]!r}: scales without an entry")
        if scales:
            raise _refused("scales without a track")
        return received

    def templates(self, templates: dict[str, Tensors]) -> dict[str, Tensors]:
        """What travels of tracks that look like this."""
        if not (form := self._form):
            return templates
        sent: dict[str, Tensors] = {}
        for name, tensors in templates.items():
            sent[name] = {
                key: torch.empty(like.shape, dtype=form.dtype, device="meta") if self._rounds(like) else like
                for key, like in tensors.items()
            }
            scales = {key: form.scales(like.numel()) for key, like in tensors.items() if self._rounds(like)}
            if rows := {key: torch.empty(n, device="meta") for key, n in scales.items() if n is not None}:
                sent[name + SCALES] = rows
        return sent

    def _rounds(self, value: torch.Tensor) -> bool:
        return self._form is not None and value.dtype == torch.float32 and value.ndim > 1

    def _restored(self, value: torch.Tensor, scales: torch.Tensor | None, like: torch.Tensor | None) -> torch.Tensor:
        """One entry; `like`: what it must look like, None: that is not known.

        Raises:
            ValueError: what is wrong with it.
        """
        form = self._form
        assert form
        rounded = self._rounds(value if like is None else like) or (like is None and value.dtype == form.dtype)
        if not rounded:
            if scales is not None:
                raise ValueError("has scales, and is none that is rounded")
            return value
        if value.dtype != form.dtype:
            raise ValueError(f"is {_type(value)}, expected {self._word}")
        if like is not None and value.shape != like.shape:
            raise ValueError(f"has shape {tuple(value.shape)}, expected {tuple(like.shape)}")
        wanted = form.scales(value.numel())
        if (scales is None) != (wanted is None):
            raise ValueError("has no scales" if scales is None else "has scales")
        if scales is not None:
            if scales.dtype != torch.float32 or scales.shape != (wanted,):
                raise ValueError(
                    f"has {_type(scales)} scales of shape {tuple(scales.shape)}, expected {wanted} float32"
                )
            if not ((scales >= 0) & (scales <= _MOST_SCALE)).all():  # NaN is neither
                raise ValueError(f"has a scale that is no number in [0, {_MOST_SCALE:g}]")
        elif not torch.isfinite(value).all():
            raise ValueError("holds NaN or infinite values")
        return form.restore(value, scales)


def wire_of(settings: JobSettings, task: str) -> Wire:
    """How the tracks of a task travel: as the job says in training rounds, and as they are in all other tasks."""
    return Wire(settings.wire if task == TRAIN else "float32")


def _type(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _refused(reason: str, remedy: str | None = None) -> UserError:
    return UserError(reason, remedy=remedy, public=f"refused: {reason}")
