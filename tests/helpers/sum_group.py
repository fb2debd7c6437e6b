"""The sites and the server of one secure sum, without FLARE."""

from __future__ import annotations

from pathlib import Path

import torch

from fedsm.client.secure_sum import SiteSum
from fedsm.core.secure_settings import SecureSum
from fedsm.core.secure_sum.group import Group
from fedsm.core.tensors import Tensors
from fedsm.server.secure_sum import ServerSum

RUN = "0123456789ab"


def update_of(seed: int, entries: int = 40) -> Tensors:
    """Some update of a network, with a counter that is not summed."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(entries, generator=generator)
    return {"w": values[: entries // 2].reshape(2, -1), "b": values[entries // 2 :], "steps": torch.tensor(7)}


class SumGroup:
    """K sites with keys, and the server's sum of their round 1.

    Args:
        folder: where the sites keep their state.
        sites: their names.
        shares: their shares in the sum; default: equal ones.
        fewest: the fewest updates a sum may be of.
        **settings: of `secure_sum`.
    """

    def __init__(
        self, folder: Path, sites: list[str], shares: list[float] | None = None, fewest: int = 3, **settings: object
    ):
        self.settings = SecureSum(**settings)
        self.folder, self.fewest = folder, fewest
        self.shares = shares or [1 / len(sites)] * len(sites)
        self.sites = {site: self.process(site) for site in sites}
        self.keys = {site: part.register() for site, part in self.sites.items()}
        self.meta = {"group": self.group(1).to_dict()}
        self.server = self.server_sum(self.group(1))

    def process(self, site: str) -> SiteSum:
        """A new process of a site; what it had in memory is gone."""
        kit = self.folder / site / "startup"
        return SiteSum(self.settings, {"global": True}, site, RUN, self.folder / site / "state", kit, self.fewest)

    def group(self, number: int, sites: list[str] | None = None) -> Group:
        """What the server says of a round."""
        names = sites or list(self.sites)
        members = [self.keys[s] | {"site": s, "share": self.shares[list(self.sites).index(s)]} for s in names]
        return Group.from_dict({"round": number, "members": members})

    def server_sum(self, group: Group) -> ServerSum:
        context = group.context(RUN, self.settings)
        return ServerSum(group, {"global": update_of(0)}, {"global": True}, self.settings, context)

    def mask(self, updates: dict[str, Tensors]) -> dict[str, dict[str, Tensors]]:
        """Site -> its masked answer; the server adds it."""
        sent = {}
        for site, update in updates.items():
            self.sites[site].keep(1, {"global": update})
            sent[site] = self.sites[site].mask(self.meta)
            self.server.add(site, sent[site])
        return sent

    def ask_to_open(self, site: str, summed: list[str] | None = None) -> dict[str, Tensors]:
        """A site's shares of the secrets behind a sum."""
        payload = {"sealed": self.server.sealed_for(site)}
        return self.sites[site].open(self.meta | {"summed": summed or self.server.summed}, payload)

    def open(self, sites: list[str]) -> Tensors:
        """The mean of the sum, opened by these sites."""
        for site in sites:
            self.server.take_opened(site, self.ask_to_open(site))
        return self.server.means()["global"]
