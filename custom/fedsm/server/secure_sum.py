"""The server's part in a secure sum: it adds up what it cannot read, and takes off the masks of the whole.

    T     = sum over the sites U that answered of y_i                                                   mod 2^k
    S     = T - sum_(i in U) PRG(b_i) - sum_(i in U, d missing) (+-) PRG(k_id)       = sum_(i in U) q_i  mod 2^k
    mean  = S / (s sum_(i in U) p_i)

The seeds b_i and the keys k_id come in shares from the members, of which a majority must agree on who is missing. A
masked update is added to T and dropped, so that only one is in memory.
"""

from __future__ import annotations

import numpy as np
import torch

from fedsm.core.secure_settings import SecureSum
from fedsm.core.secure_sum import fixed_point, masks, shamir
from fedsm.core.secure_sum.group import Group
from fedsm.core.tensors import Tensors

MASKED, SEALED, OPENED = "masked", "sealed", "opened"  # tracks of the sites' answers; a tensor for each member
_SLACK = 1.001  # of the clip, for rounding


class ServerSum:
    """One round's sum.

    Args:
        group: its members.
        templates: track -> what an update of it looks like, for the tracks that are summed.
        weighing: track -> whether a site weighs its share there; otherwise all members weigh the same.
        settings: the job's `secure_sum`.
        context: what all members agree on.
    """

    def __init__(
        self, group: Group, templates: dict[str, Tensors], weighing: dict[str, bool], settings: SecureSum,
        context: bytes,
    ):  # fmt: skip
        self.group = group
        self._settings, self._context = settings, context
        self._templates = templates
        self._weighing = weighing
        self._lengths = {n: sum(t[k].numel() for k in fixed_point.float_entries(t)) for n, t in templates.items()}
        self._total = np.zeros(sum(self._lengths.values()), fixed_point.unsigned(settings.bits))
        self._sealed: dict[str, Tensors] = {}  # sender -> holder -> its shares, sealed for the holder
        self._opened: dict[str, Tensors] = {}  # holder -> sender -> the holder's shares of the sender's secrets

    @property
    def summed(self) -> list[str]:
        """The sites whose masked update was added, in the members' order."""
        return [site for site in self.group.sites if site in self._sealed]

    @property
    def missing(self) -> list[str]:
        """The other members."""
        return [site for site in self.group.sites if site not in self._sealed]

    def expects_masked(self) -> dict[str, Tensors]:
        """What the first answer must look like: the update under masks, and a sealed message for each member."""
        members = len(self.group.members)
        row = torch.empty(len(self._total), dtype=fixed_point.WIRE[self._settings.bits], device="meta")
        return {MASKED: {MASKED: row}, SEALED: self._of_bytes(members * shamir.SHARE_BYTES + masks.SEAL_BYTES)}

    def add(self, site: str, tracks: dict[str, Tensors]) -> None:
        """Adds a masked update."""
        self._total += tracks[MASKED][MASKED].numpy().view(self._total.dtype)
        self._sealed[site] = dict(tracks[SEALED])

    def sealed_for(self, site: str) -> Tensors:
        """What the others have sealed for a member."""
        return {sender: self._sealed[sender][site] for sender in self.summed}

    def expects_opened(self) -> dict[str, Tensors]:
        """What the second answer must look like: for each site of the sum a share of its seed, and of its keys with
        the missing ones."""
        template = self._of_bytes((1 + len(self.missing)) * shamir.SHARE_BYTES)
        return {OPENED: {site: template[site] for site in self.summed}}

    def take_opened(self, site: str, tracks: dict[str, Tensors]) -> None:
        """Takes a member's shares."""
        self._opened[site] = dict(tracks[OPENED])

    def means(self) -> dict[str, Tensors]:
        """Track -> the mean update of the sites in the sum, weighted by their shares.

        Raises:
            ValueError: it is longer than any mean of clipped updates: a site sent something else; nobody knows which.
        """
        total, bits, clip = self._unmasked(), self._settings.bits, self._settings.clip
        means: dict[str, Tensors] = {}
        start = 0
        for name, length in self._lengths.items():
            shares = [self._share(site, self._weighing[name]) for site in self.summed]
            mean = fixed_point.decode(total[start : start + length], sum(shares), clip, bits)
            norm = float(np.linalg.norm(mean))
            if norm > clip * _SLACK:
                raise ValueError(f"track {name!r}: the mean of masked updates has the norm {norm:.3g}, above {clip:g}")
            means[name] = fixed_point.shaped(mean, self._templates[name])
            start += length
        return means

    def _share(self, site: str, by_share: bool) -> float:
        own = next(member.share for member in self.group.members if member.site == site)
        return own if by_share else 1 / len(self.group.members)

    def _unmasked(self) -> fixed_point.Whole:
        """The total without the masks that are left in it: those of the seeds, and those shared with missing sites."""
        total, bits, order = self._total.copy(), self._settings.bits, self.group.sites
        for site in self.summed:
            secrets = [self._joined(site, place) for place in range(1 + len(self.missing))]
            owners = [other for other in order if other in (site, *self.missing)]
            for other, secret in zip(owners, secrets, strict=True):
                mask = masks.key_stream(secret, len(total), bits)
                # The site added its mask with a later member, and took off that with an earlier one.
                total -= mask if order.index(other) >= order.index(site) else -mask
        return total

    def _joined(self, site: str, place: int) -> bytes:
        """One secret of a site, from the shares of those who opened."""
        size, order = shamir.SHARE_BYTES, self.group.sites
        parts = {
            order.index(holder): bytes(opened[site].numpy())[place * size : (place + 1) * size]
            for holder, opened in self._opened.items()
        }
        return shamir.join(parts)

    def _of_bytes(self, count: int) -> Tensors:
        return {site: torch.empty(count, dtype=torch.uint8, device="meta") for site in self.group.sites}
