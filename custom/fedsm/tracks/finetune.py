"""FT: each round, the personal network is the received global model, trained on the site's own images.

    site k:  w_{p,k} <- w_g,  m, v <- 0;   then w_{p,k} <- Adam(w_{p,k}, grad F_k(w_{p,k}))      for every batch
             with the learning rate lr_factor * lr, which the job's schedule scales as it scales lr

"FT" among the personalization methods of Xu et al., CVPR 2022; the idea as in Wang et al., "Federated evaluation of
on-device personalization", 2019. It sends nothing of its own: the global model comes anyway.

Beside a `fedavg` track the site's copy of the global network sees the same start and the same batches. What differs,
with an lr_factor of 1, is Adam: that copy keeps its moments across rounds, this one starts each round with none. With
the same moments the two networks would be the same to the bit. Without them the result depends only on w_g and the
site's images, as when a finished model is fine-tuned, and a site that missed rounds or lost its disk gets the same
result. The price: Adam's first steps have the size of its rate in every weight, however small the gradient, so that on
nuclei (RESULTS.md) a factor of 1 ended below the global model itself. The default of 0.1 was the best of 1, 0.3 and 0.1
there. Beside `fedprox` or another global track, F_k does not include that track's terms.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from fedsm.core.tensors import Batch, Tensors
from fedsm.tracks.options import TrackOptions
from fedsm.tracks.site_personal import SitePersonalClient


class FineTuneOptions(TrackOptions):
    """Options of `finetune`."""

    lr_factor: float = Field(default=0.1, ge=1e-6, description="The learning rate, as a factor of the job's `lr`.")


class FineTuneClient(SitePersonalClient):
    """Starts each round from the received global model. The network of the round before is scored."""

    @property
    def lr(self) -> float:
        return float(self.options["lr_factor"] * self.settings.lr)

    def begin(self, n_images: int, training_images: Iterable[Batch] = ()) -> None:
        self.net.load_state_dict(self.global_track.received)
        self.learner.optimizer.state.clear()

    def state(self) -> Tensors:
        """Without Adam's moments: the next round starts with none."""
        return {key: value for key, value in super().state().items() if not key.startswith("adam/")}
