"""Local: every site trains a network on its own, the baseline that a federation has to beat.

    site k:  v_k <- Adam(v_k, grad F_k(v_k))     for every batch

Xu et al., CVPR 2022, "Client k Local" of Tables 3 and 4. Nothing goes down or up in a round; once, after the last one,
the site hands over its best network, so that it can be tried on the other sites' images.
"""

from __future__ import annotations

from fedsm.core.tensors import Tensors
from fedsm.tracks.base import Phase
from fedsm.tracks.site_personal import SitePersonalClient


class LocalClient(SitePersonalClient):
    """A network that stays at its site and learns from nothing else, not even at its start."""

    def receive(self, phase: Phase, payload: Tensors) -> None:
        """Nothing comes."""
