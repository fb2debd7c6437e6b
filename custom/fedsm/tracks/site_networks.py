"""Networks of single sites, at the server: those that were handed over, and what happens when sites join or leave."""

from __future__ import annotations

from fedsm.core.model_store import IN_MEMORY, ModelStore
from fedsm.core.settings import JobSettings
from fedsm.core.state import add_, copy
from fedsm.core.tensors import Tensors
from fedsm.nets import build_unet
from fedsm.nets.first_weights import initial_weights


class NetworkPerSite:
    """`Membership` of tracks in which each site has a network of its own, as a file of the checkpoint."""

    name: str  # the track's

    def join(self, files: dict[str, Tensors], new: list[str]) -> list[str]:
        """A new site's network is made at the site."""
        return []

    def leave(self, files: dict[str, Tensors], site: str) -> None:
        files.pop(f"{self.name}.{site}", None)

    def leave_model(self, model: Tensors, files: dict[str, Tensors], site: str) -> Tensors:
        """What the sites share, and the other sites' networks, stay as they are."""
        return model


class DeliveredNetworks:
    """The personal networks that sites have handed over, at the server.

    Args:
        track: the track's name.
        settings: the job's settings.
        sites: all sites.
        store: keeps them.
    """

    def __init__(self, track: str, settings: JobSettings, sites: list[str], store: ModelStore = IN_MEMORY):
        self._names = {site: f"{track}.{site}" for site in sites}
        self.first = initial_weights(lambda: build_unet(settings.task), settings.seed)
        self._store = store
        self._delivered: dict[str, Tensors] = {}

    def add(self, site: str, difference: Tensors) -> None:
        """Takes a network as its difference to the first weights."""
        network = copy(self.first)
        add_(network, difference)
        self._delivered[site] = self._store.put(self._names[site], network)

    def forget(self) -> None:
        """Drops what was handed over before a finished run went on: it is handed over again later."""
        self._delivered = {}

    def files(self) -> dict[str, Tensors]:
        """The networks so far, as file stem -> tensors."""
        return {self._names[site]: tensors for site, tensors in self._delivered.items()}

    def load_files(self, files: dict[str, Tensors]) -> None:
        """Takes back what `files` gave."""
        self._delivered = {
            site: self._store.adopt(name, files[name]) for site, name in self._names.items() if name in files
        }

    def models(self) -> dict[str, list[str]]:
        """A personal model of every site, scored by its own site alone."""
        return {name: [site] for site, name in self._names.items()}
