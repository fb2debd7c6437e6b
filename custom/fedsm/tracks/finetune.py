"""FT: each round, the personal network is the received global model, trained on the site's own images.

    site k:  w_{p,k} <- w_g,  m, v <- 0;   then w_{p,k} <- Adam(w_{p,k}, grad F_k(w_{p,k}))      for every batch
             with the learning rate lr_factor * lr

"FT" among the personalization methods of Xu et al., CVPR 2022; the idea as in Wang et al., "Federated evaluation of
on-device personalization", 2019. Nothing of its own travels: the global model comes anyway.

Beside a `fedavg` track the site's copy of the global network sees the same start and the same batches. What differs,
with an lr_factor of 1, is Adam: that copy keeps its moments across rounds, this one starts each round with none.
Moments are an average of gradients at points that were left when the round's model came, and with them the two networks
would be the same to the bit. Without them the result depends on w_g and the site's images alone, as fine-tuning a
finished model does, and a site that missed rounds or lost its disk gets the same one. The price: Adam's first steps are
as large as its rate in every weight, however small its gradient, so that on nuclei (RESULTS.md) a factor of 1 ended
below the global model itself. The default of 0.1 was the best of 1, 0.3 and 0.1 there. Beside `fedprox` or another
global track, F_k has none of that track's terms.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedsm.core.tensors import Batch, Tensors
from fedsm.tracks.site_personal import SitePersonalClient


class FineTuneClient(SitePersonalClient):
    """Starts each round from the received global model. Scored is what the round before made of it."""

    @property
    def lr(self) -> float:
        return float(self.options["lr_factor"] * self.settings.lr)

    def begin(self, n_images: int, training_images: Iterable[Batch] = ()) -> None:
        self.net.load_state_dict(self.global_track.received)
        self.learner.optimizer.state.clear()

    def state(self) -> Tensors:
        """Without Adam's moments: the next round starts with none."""
        return {key: value for key, value in super().state().items() if not key.startswith("adam/")}
