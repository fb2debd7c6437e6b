"""The tracks by kind. A new method is a new file here and a line in `KINDS`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from fedsm.core.errors import UserError
from fedsm.core.model import known_words
from fedsm.core.model_store import IN_MEMORY, ModelStore
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.selectors.gaussian import StatisticsSelector
from fedsm.selectors.inference import THRESHOLD
from fedsm.selectors.network import EnsembleSelector, ExtraSelector, NetworkSelector
from fedsm.tracks.apfl import APFLClient, APFLOptions
from fedsm.tracks.base import ClientTrack, ServerTrack, SiteContext
from fedsm.tracks.ditto import DittoClient, DittoOptions
from fedsm.tracks.ema_server import AveragedOverRounds
from fedsm.tracks.fedavg import AveragedServer
from fedsm.tracks.fedbn import FedBNClient, FedBNServer
from fedsm.tracks.fedprox import FedProxClient, FedProxOptions
from fedsm.tracks.fedrep import FedRepClient, FedRepOptions, FedRepServer
from fedsm.tracks.finetune import FineTuneClient, FineTuneOptions
from fedsm.tracks.fraction import check_fraction
from fedsm.tracks.local import LocalClient
from fedsm.tracks.options import TrackOptions
from fedsm.tracks.perfedavg import PerFedAvgClient, PerFedAvgOptions
from fedsm.tracks.pfedme import PFedMeClient, PFedMeOptions, PFedMeServer
from fedsm.tracks.rules import rule_of
from fedsm.tracks.scaffold import ScaffoldClient, ScaffoldOptions, ScaffoldServer
from fedsm.tracks.schedule import rate_factor
from fedsm.tracks.secure_sum import EQUAL, FINE, NOTHING, SHARE, check_secure_sum
from fedsm.tracks.segmentation import SegmentationClient
from fedsm.tracks.selector_ensemble import EnsembleClient, EnsembleServer
from fedsm.tracks.selector_extra import ExtraClient, ExtraOptions, ExtraServer
from fedsm.tracks.selector_fedavg import SelectorClient, SelectorServer
from fedsm.tracks.selector_gradient import SelectorGradientClient, SelectorGradientServer
from fedsm.tracks.selector_statistics import StatisticsClient, StatisticsOptions, StatisticsServer
from fedsm.tracks.shared_and_personal import SharedAndPersonalServer
from fedsm.tracks.site_personal import BesideGlobalServer, SitePersonalServer
from fedsm.tracks.softpull import UNIFORM, SoftPullOptions, SoftPullServer
from fedsm.tracks.softpull_at_site import SoftPullAtSiteClient, SoftPullAtSiteOptions, SoftPullAtSiteServer

_AT_SERVER = (AveragedServer, SoftPullServer)  # U-Nets that travel; what stays at a site is averaged there
_PERSONAL = (SitePersonalServer, SharedAndPersonalServer, SoftPullServer)  # one network for each site


@dataclass(frozen=True)
class Kind:
    """The halves of a kind of track.

    Attributes:
        client: the site's half.
        server: the server's half.
        selector: for selectors, the class that selects at inference.
        options: what a job may set.
        personal: whether it can replace the personal track of a method such as FedSM (`--personal`).
        summed: what a site weighs in a masked sum that stands for single updates (`secure_sum.py`); None: the server
            needs single updates.
        at_site: where it needs them, the kind that does the same without.
    """

    client: type[ClientTrack]
    server: type[ServerTrack]
    selector: type[NetworkSelector] | type[StatisticsSelector] | None = None
    options: type[TrackOptions] = TrackOptions
    personal: bool = False
    summed: str | None = None
    at_site: str = ""

    @property
    def rule(self) -> str | None:
        """How a selector's output is used at inference; None for kinds that are not selectors."""
        return self.selector.rule if self.selector else None

    @property
    def track(self) -> str:
        """The name of a track of this kind: `global`, `personal` or `selector`."""
        if self.selector:
            return "selector"
        return "personal" if issubclass(self.server, _PERSONAL) else "global"


KINDS = {
    "fedavg": Kind(SegmentationClient, AveragedServer, summed=SHARE),
    "softpull": Kind(
        SegmentationClient, SoftPullServer, options=SoftPullOptions, personal=True, at_site="softpull_at_site"
    ),
    "softpull_at_site": Kind(
        SoftPullAtSiteClient, SoftPullAtSiteServer, options=SoftPullAtSiteOptions, personal=True, summed=EQUAL
    ),
    "local": Kind(LocalClient, SitePersonalServer, summed=NOTHING),
    "selector_gradient": Kind(SelectorGradientClient, SelectorGradientServer, NetworkSelector, summed=FINE),
    "selector_fedavg": Kind(SelectorClient, SelectorServer, NetworkSelector, summed=SHARE),
    "selector_extra": Kind(ExtraClient, ExtraServer, ExtraSelector, options=ExtraOptions, summed=SHARE),
    "selector_ensemble": Kind(EnsembleClient, EnsembleServer, EnsembleSelector),
    "selector_statistics": Kind(
        StatisticsClient, StatisticsServer, StatisticsSelector, options=StatisticsOptions, summed=NOTHING
    ),
    "fedprox": Kind(FedProxClient, AveragedServer, options=FedProxOptions, summed=SHARE),
    "finetune": Kind(FineTuneClient, BesideGlobalServer, options=FineTuneOptions, personal=True, summed=NOTHING),
    "ditto": Kind(DittoClient, BesideGlobalServer, options=DittoOptions, personal=True, summed=NOTHING),
    "apfl": Kind(APFLClient, BesideGlobalServer, options=APFLOptions, personal=True, summed=NOTHING),
    "scaffold": Kind(ScaffoldClient, ScaffoldServer, options=ScaffoldOptions),
    "per-fedavg": Kind(PerFedAvgClient, SharedAndPersonalServer, options=PerFedAvgOptions, personal=True, summed=SHARE),
    "pfedme": Kind(PFedMeClient, PFedMeServer, options=PFedMeOptions, personal=True, summed=SHARE),
    "fedbn": Kind(FedBNClient, FedBNServer, personal=True, summed=SHARE),
    "fedrep": Kind(FedRepClient, FedRepServer, options=FedRepOptions, personal=True, summed=SHARE),
}


def kind_of(name: str, spec: dict[str, Any]) -> Kind:
    """The kind of a track's settings.

    Raises:
        UserError: unknown kind.
    """
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(f"track {name!r}: unknown kind {kind!r}", remedy=known_words(kind, KINDS))
    return KINDS[kind]


def _options(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A track's options, complete and checked.

    Raises:
        UserError: an option that the kind does not have, or a value that is not allowed.
    """
    given = {key: value for key, value in spec.items() if key != "kind"}
    try:
        return kind_of(name, spec).options.from_dict(given).model_dump(exclude_none=True)
    except UserError as e:
        raise e.within(f"track {name!r}") from e


def complete_tracks(settings: JobSettings) -> dict[str, dict[str, Any]]:
    """A job's tracks with every option that is not given at its default.

    A job states everything that it is trained with, so that a later change of a default does not change it.

    Raises:
        UserError: an unknown kind or option, or a value that is not allowed.
    """
    return {name: {"kind": spec.get("kind")} | _options(name, spec) for name, spec in settings.tracks.items()}


def at_sites(settings: JobSettings) -> JobSettings:
    """The job with what its setting `secure_sum` asks for: kinds whose server half sees sums alone.

    Raises:
        UserError: an option for which the server needs single networks.
    """
    if not settings.secure_sum:
        return settings
    tracks = {}
    for name, spec in settings.tracks.items():
        own = kind_of(name, spec)
        tracks[name] = own_options = dict(spec)
        known = KINDS[own.at_site].options.model_fields if own.at_site else own.options.model_fields
        for option in own.options.model_fields.keys() - known:
            usual = own.options.model_fields[option].default
            if own_options.pop(option, usual) != usual:
                message = f"secure_sum hides single networks, and `{option}: {spec[option]}` needs them"
                raise UserError(message, remedy=f"set tracks.{name}.{option} to {usual}")
        own_options["kind"] = own.at_site or spec["kind"]
    return settings.replace(tracks=tracks)


def summed_tracks(settings: JobSettings) -> dict[str, bool]:
    """The tracks whose updates a job's secure sums hold -> whether a site weighs its share there, and not as all."""
    summed = {name: kind_of(name, spec).summed for name, spec in settings.tracks.items()}
    return {name: how != EQUAL for name, how in summed.items() if how in (SHARE, FINE, EQUAL)}


def client_tracks(settings: JobSettings, site: SiteContext) -> dict[str, ClientTrack]:
    """The client halves of a job's tracks; they are also put into `site.tracks`."""
    site.tracks.update(
        {
            name: kind_of(name, spec).client(settings, _options(name, spec), site)
            for name, spec in settings.tracks.items()
        }
    )
    return site.tracks


def sends_sums(settings: JobSettings) -> bool:
    """Whether a job asks sites for sums over their images."""
    return any(kind_of(name, spec).client.sums for name, spec in settings.tracks.items())


def check_tracks(settings: JobSettings, sites: list[str]) -> None:
    """Refuses a job that cannot work with these sites.

    Raises:
        UserError: fewer than 2 sites, too few for `min_sites`, unknown kind, or options that do not fit.
    """
    if len(sites) < 2:
        raise UserError(f"FedSM needs at least 2 sites, got {len(sites)}: {', '.join(sites) or 'none'}")
    if settings.min_sites > len(sites):
        raise UserError(f"min_sites is {settings.min_sites}, but there are {len(sites)} sites")
    check_options(settings, len(sites))


def check_options(settings: JobSettings, n_sites: float = math.inf) -> None:
    """Refuses tracks whose kind or options cannot work with this number of sites; inf: with any number.

    Raises:
        UserError: with the remedy.
    """
    if settings.secure_sum:
        check_secure_sum(settings, {name: kind_of(name, spec).summed for name, spec in settings.tracks.items()})
    for name, spec in settings.tracks.items():
        kind = kind_of(name, spec)
        if name != kind.track:
            fit = [known for known, other in KINDS.items() if other.track == name]
            known = f"it can be {', '.join(fit)}" if fit else "tracks are global, personal and selector"
            raise UserError(f"track {name!r} cannot be of kind {spec['kind']!r}", remedy=known)
        kind.server.check(settings, _options(name, spec), n_sites)
        if settings.update_privacy and not kind.server.update_private:
            raise UserError(
                f"update_privacy cannot hide what a site sends for track {name!r} of kind {spec['kind']!r}",
                remedy="use a method that shares one network alone (fedavg or fedprox), or leave update_privacy out",
            )
    _check_rule(settings)
    servers = {name: kind_of(name, spec).server for name, spec in settings.tracks.items()}
    at_site = next((name for name, server in servers.items() if issubclass(server, SoftPullAtSiteServer)), None)
    pulls = any(issubclass(server, SoftPullServer) for server in servers.values())
    check_fraction(settings, n_sites, lam_of(settings) if pulls else None, at_site, _own_rounds(settings))
    if settings.personal_models == "disk":
        _check_on_disk(settings)
    if settings.update_privacy and settings.quarantine:
        raise UserError("quarantine judges single updates, which update_privacy hides", remedy="leave one of them out")
    if settings.personal_mix and "personal" not in settings.tracks:
        raise UserError(f"personal_mix is about personal models, and {settings.method} has none", remedy="leave it out")
    if settings.personal_mix and selection_rule(settings) not in (None, THRESHOLD):
        raise UserError(
            f"personal_mix would change the models that the selector of {settings.method} has learnt about",
            remedy="leave it out",
        )


def _check_on_disk(settings: JobSettings) -> None:
    """Refuses `personal_models: disk` where it would have no effect, or the memory grew with the sites all the same.

    Raises:
        UserError: with the remedy.
    """
    what = "personal_models: disk"
    if "personal" not in settings.tracks:
        raise UserError(f"{what} is about personal models, and {settings.method} has none", remedy="leave it out")
    if rule_of(settings).needs_single_updates:
        raise UserError(
            f"{what} keeps the server's memory from growing with the sites, and aggregation {settings.aggregation!r}"
            " needs all their updates in it",
            remedy="leave one of them out",
        )
    if settings.personal_mix:
        raise UserError(
            f"{what} keeps the server's memory from growing with the sites, and personal_mix makes a model for each"
            " in it",
            remedy="leave one of them out",
        )


def _check_rule(settings: JobSettings) -> None:
    """Refuses an `aggregation` that this job cannot have.

    Raises:
        UserError: with the remedy.
    """
    rule, word = rule_of(settings), settings.aggregation
    if not rule.needs_single_updates:
        return
    if settings.update_privacy:
        raise UserError(
            f"update_privacy knows by how much one site can move a mean, not what aggregation {word!r} makes of it",
            remedy="leave one of them out",
        )
    servers = {name: kind_of(name, spec).server for name, spec in settings.tracks.items()}
    for name, server in servers.items():
        if server.against_rules:
            instead = "the selector `statistics`" if name == "selector" else "the method fedavg or fedprox"
            raise UserError(
                f"aggregation {word!r} cannot combine what sites send for {settings.tracks[name]['kind']}:"
                f" {server.against_rules}",
                remedy=f"{instead}, or aggregation mean",
            )
    pulls = any(s is SoftPullServer and _options(n, settings.tracks[n])["pull"] == UNIFORM for n, s in servers.items())
    if not pulls and not any(server.shared for server in servers.values()):
        raise UserError(f"no network of {settings.method} is combined over sites", remedy="leave aggregation out")
    needed = rule.least + pulls
    if settings.min_sites < needed:
        whom = f"{rule.least} others of each site" if pulls else f"{rule.least} answers"
        raise UserError(
            f"aggregation {word!r} with {settings.outliers} outliers needs {whom} in every round, so min_sites must be"
            f" at least {needed}, got {settings.min_sites}",
            remedy=f"set min_sites to {needed}, or choose fewer outliers or another rule",
        )


def server_tracks(settings: JobSettings, sites: list[str], store: ModelStore = IN_MEMORY) -> dict[str, ServerTrack]:
    """The server halves of a job's tracks; `store` keeps the networks of single sites.

    Raises:
        UserError: see `check_tracks`.
    """
    check_tracks(settings, sites)
    tracks: dict[str, ServerTrack] = {}
    for name, spec in settings.tracks.items():
        track = kind_of(name, spec).server(name, settings, _options(name, spec), sites, tracks, store)
        tracks[name] = AveragedOverRounds(track) if settings.ema and isinstance(track, _AT_SERVER) else track
    return tracks


def selection_rule(settings: JobSettings) -> str | None:
    """How the selector's output is used at inference (see `fedsm.selectors.inference`); None without a selector."""
    spec = settings.tracks.get("selector")
    return kind_of("selector", spec).rule if spec else None


def knows_distance(settings: JobSettings) -> bool:
    """Whether the selector can tell how foreign an image is: only Gaussian classes have a distance."""
    spec = settings.tracks.get("selector")
    return spec is not None and kind_of("selector", spec).selector is StatisticsSelector


def lam_of(settings: JobSettings) -> float | None:
    """SoftPull's lam; None where the personal track is of another kind."""
    spec = settings.tracks.get("personal")
    knows_lam = spec is not None and "lam" in kind_of("personal", spec).options.model_fields
    return spec.get("lam", settings.task.lam) if spec and knows_lam else None


def score_names(settings: JobSettings) -> dict[str, str]:
    """What each track's validation score measures: Dice, or accuracy for a selector that names the image's site."""
    names_sites = selection_rule(settings) == THRESHOLD
    return {t: "accuracy" if t == "selector" and names_sites else "Dice" for t in settings.tracks}


def playing(tracks: dict[str, ServerTrack], number: int) -> list[str]:
    """The tracks that are trained in a round.

    A track with an option `rounds` has that many rounds at the end to itself: the others have finished by then.
    """
    own = {n: t.settings.rounds - t.options["rounds"] for n, t in tracks.items() if "rounds" in t.options}
    names = [name for name in tracks if number > own.get(name, 0)]
    return [name for name in names if name in own] or names


def _own_rounds(settings: JobSettings) -> int:
    """The rounds at the end that a selector has to itself."""
    return max((_options(n, spec).get("rounds", 0) for n, spec in settings.tracks.items()), default=0)


def rate_factor_in(settings: JobSettings, number: int) -> float:
    """The schedule's factor on the learning rate of the U-Nets in a round.

    Its length is that of the networks' training: the rounds that a selector has to itself do not count.
    """
    rounds = settings.rounds - _own_rounds(settings)
    return rate_factor(settings.schedule, settings.warmup_rounds, min(number, rounds), rounds)


def build_inference_selector(settings: JobSettings, n_sites: int, tensors: Tensors, device: torch.device) -> Any:
    """The object whose `probabilities(images)` gives yhat, from the selector track's final tensors."""
    selector = kind_of("selector", settings.tracks["selector"]).selector
    assert selector is not None
    return selector(settings, n_sites, tensors, device)
