"""A site's part in a secure sum: it masks its update, and helps to open the sum of those that have masked theirs."""

from __future__ import annotations

import secrets
from pathlib import Path

import numpy as np
import torch

from fedsm.client.kit_identity import identity_of
from fedsm.client.sum_keys import SumKeys
from fedsm.core.errors import UserError
from fedsm.core.limits import shown
from fedsm.core.secure_settings import SecureSum
from fedsm.core.secure_sum import fixed_point, masks, shamir
from fedsm.core.secure_sum.group import Group, PublicKey
from fedsm.core.tensors import Tensors

MASKED, SEALED, OPENED = "masked", "sealed", "opened"  # tracks of the answers; a tensor for each member
_WHERE = "the server's task"


class SiteSum:
    """The secure sums of one run at one site.

    Args:
        settings: the job's `secure_sum`.
        weighing: track -> whether a site weighs its share there; otherwise all members weigh the same.
        site: the site's name.
        run_id: the run's name.
        state_dir: the site's `state_dir`.
        startup: the kit's `startup/` folder, with the site's certificate.
        fewest: the fewest updates that a sum may be of, as job and site want it.
    """

    def __init__(
        self, settings: SecureSum, weighing: dict[str, bool], site: str, run_id: str, state_dir: Path, startup: Path,
        fewest: int,
    ):  # fmt: skip
        self._settings, self._weighing = settings, weighing
        self._site, self._run_id, self._fewest = site, run_id, fewest
        self._keys = SumKeys(state_dir, run_id, site)
        self._identity = identity_of(startup, site)
        self._kept: tuple[int, dict[str, Tensors]] = (0, {})
        self._sent: tuple[bytes, dict[str, Tensors]] = (b"", {})

    def register(self) -> dict[str, str]:
        """A new key pair for the run: its public key, signed where the site has a certificate."""
        key = self._keys.renew()
        public = self._identity.sign(self._run_id, self._site, key) if self._identity else PublicKey(key=key)
        return public.to_dict()

    def keep(self, number: int, updates: dict[str, Tensors]) -> None:
        """Keeps a round's updates until they are summed."""
        self._kept = (number, {name: tensors for name, tensors in updates.items() if tensors})

    def mask(self, meta: dict) -> dict[str, Tensors]:
        """The site's update under masks, and shares of the secrets behind them, each sealed for one member.

        y_i = sum of q_i  + PRG(b_i)  + sum_(j after i) PRG(k_ij)  - sum_(j before i) PRG(k_ij)      mod 2^k

        Raises:
            UserError: the group is not one that the site sums with, or there is nothing to sum.
        """
        group = self._group(meta)
        context = group.context(self._run_id, self._settings)
        if self._sent[0] == context:  # asked again: the same answer, never a second one
            return self._sent[1]
        number, updates = self._kept
        if number != group.round:
            message = f"the site has no update of round {group.round}: it was restarted since it trained"
            raise UserError(message, site=self._site, public=message)
        secret = self._secrets(group)
        self._keys.note_masked(group.round, context)
        own = secrets.token_bytes(masks.KEY_BYTES)
        pairs = {s: masks.mask_key(secret[s], context, self._site, s) for s in group.sites if s != self._site}
        total = self._encoded(updates, group)
        bits, after = self._settings.bits, False
        total += masks.key_stream(own, len(total), bits)
        for other in group.sites:
            if other == self._site:
                after = True
                continue
            mask = masks.key_stream(pairs[other], len(total), bits)
            total += mask if after else -mask
        parts = [shamir.split(pairs.get(s, own), len(group.members), group.threshold) for s in group.sites]
        sealed = {
            holder: masks.seal(secret[holder], context, self._site, holder, b"".join(part[m] for part in parts))
            for m, holder in enumerate(group.sites)
        }
        self._kept = (0, {})
        whole = torch.from_numpy(total).view(fixed_point.WIRE[bits])
        self._sent = (context, {MASKED: {MASKED: whole}, SEALED: {s: _as_tensor(part) for s, part in sealed.items()}})
        return self._sent[1]

    def open(self, meta: dict, payload: dict[str, Tensors]) -> dict[str, Tensors]:
        """The site's shares of what hides the sum of those that have answered: of their own seeds b_i, and of the keys
        that they share with the members that have not.

        Never both for one member: of a site that answered its seed, of one that did not the keys of its pairs.

        Raises:
            UserError: the sum is of too few, or the site has opened another one of this round.
        """
        group = self._group(meta)
        context = group.context(self._run_id, self._settings)
        summed = meta.get("summed")
        if not isinstance(summed, list) or [s for s in group.sites if s in summed] != summed:
            raise _refused(f"{shown(summed)} are no members of the sum", self._site)
        if self._site not in summed:
            raise _refused("the site is not in the sum", self._site)
        if len(summed) < (fewest := max(group.threshold, self._fewest)):
            raise _refused(f"a sum of {len(summed)} sites, this one expects {fewest} or more", self._site)
        secret = self._secrets(group)
        self._keys.note_opened(group.round, context, summed)
        self._sent = (b"", {})
        missing = [site for site in group.sites if site not in summed]
        opened: Tensors = {}
        for sender in summed:
            try:
                sealed = bytes(payload[SEALED][sender].numpy())
                content = masks.unseal(secret[sender], context, sender, self._site, sealed)
            except (KeyError, AttributeError, TypeError, ValueError) as e:
                raise _refused(f"the shares of site {sender!r} cannot be read", self._site) from e
            shares = dict(zip(group.sites, _cut(content), strict=True))
            opened[sender] = _as_tensor(b"".join(shares[site] for site in group.sites if site in (sender, *missing)))
        return {OPENED: opened}

    def _group(self, meta: dict) -> Group:
        """The group, checked: a server that means harm could make one in which the site is alone with itself."""
        group = Group.from_dict(meta.get("group"), site=self._site)
        own = [member.key for member in group.members if member.site == self._site]
        if own != [self._keys.public]:
            raise _refused("the sum does not know the site's present key", self._site)
        if len(group.members) < self._fewest:
            raise _refused(f"a sum of {len(group.members)} sites, this one expects {self._fewest} or more", self._site)
        for member in group.members if self._identity else ():
            assert self._identity
            if reason := self._identity.problem(self._run_id, member):
                raise _refused(f"the key of site {member.site!r}: {reason}", self._site)
        return group

    def _secrets(self, group: Group) -> dict[str, bytes]:
        private, secret = self._keys.private, {}
        for member in group.members:
            try:
                secret[member.site] = masks.secret_of(private, member.raw)
            except ValueError as e:
                raise _refused(f"the key of site {member.site!r} gives no secret", self._site) from e
        return secret

    def _encoded(self, updates: dict[str, Tensors], group: Group) -> fixed_point.Whole:
        """All networks in one row, each clipped and weighed."""
        share = next(member.share for member in group.members if member.site == self._site)
        clip, bits = self._settings.clip, self._settings.bits
        rows = [
            fixed_point.encode(
                fixed_point.clipped(fixed_point.flat(updates[name]), clip),
                share if by_share else 1 / len(group.members),
                clip,
                bits,
            )
            for name, by_share in self._weighing.items()
            if name in updates
        ]
        return np.concatenate(rows) if rows else np.zeros(0, fixed_point.unsigned(bits))


def _as_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _cut(content: bytes) -> list[bytes]:
    size = shamir.SHARE_BYTES
    return [content[start : start + size] for start in range(0, len(content), size)]


def _refused(reason: str, site: str) -> UserError:
    return UserError(f"{_WHERE}: {reason}", site=site, public=f"refused: {reason}")
