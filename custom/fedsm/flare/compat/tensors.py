"""Torch tensors through FLARE, without needless copies and within limits."""

from __future__ import annotations

from typing import Any

from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.app_opt.pt.tensor_downloader import TensorDownloadable
from nvflare.fuel.utils import fobs

from fedsm.core.mapped import release_tensor
from fedsm.flare.compat import intake, memory


class _LeanDownloadable(TensorDownloadable):
    """Tensors that are serialised only when they are requested, and freed once they are sent; those that are mapped
    from files are read only then.

    FLARE's own class serialises the next item of every download ahead of time and keeps what was sent for other
    receivers. Here every site has its own payload, so there are no other receivers; with six sites at once that cost as
    much memory as four models.
    """

    def prefetch_item(self, index: int) -> None:
        """Does nothing: no item is prepared ahead of time."""

    def produce(self, state: dict, requester: str) -> tuple[str, Any, dict]:
        """The next piece, when what is left of earlier ones is freed."""
        memory.look()
        piece: tuple[str, Any, dict] = super().produce(state, requester)
        return piece

    def _get_item(self, index: int, requester: str) -> bytes:
        item = self.produce_item(index)
        if (source := self.base_obj) is not None:
            release_tensor(source[self.keys[index]])  # of a file: it was read for this item alone
        return item


class _LeanDecomposer(TensorDecomposer):
    def to_downloadable(self, items: dict, max_chunk_size: int, fobs_ctx: dict) -> _LeanDownloadable:
        return _LeanDownloadable(items, max_chunk_size)

    def _download_from_remote_cell(self, fobs_ctx: dict, ref: dict) -> object:
        return intake.pull(super()._download_from_remote_cell, fobs_ctx, ref)


def enable_tensors() -> None:
    """Lets FLARE carry torch tensors. Both sides call it at START_RUN, or a client loops on unknown datums."""
    fobs.register(_LeanDecomposer)
    intake.limit_arrays()
