"""The kinds of tracks, and what follows from a job's choice of them: a new method is a new file and a line here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedsm.core.errors import UserError
from fedsm.core.model import known_words
from fedsm.core.settings import JobSettings
from fedsm.selectors.gaussian import StatisticsSelector
from fedsm.selectors.inference import THRESHOLD
from fedsm.selectors.network import EnsembleSelector, ExtraSelector, NetworkSelector
from fedsm.tracks.apfl import APFLClient, APFLOptions
from fedsm.tracks.base import ClientTrack, ServerTrack
from fedsm.tracks.ditto import DittoClient, DittoOptions
from fedsm.tracks.fedavg import AveragedServer
from fedsm.tracks.fedbn import FedBNClient, FedBNServer
from fedsm.tracks.fedprox import FedProxClient, FedProxOptions
from fedsm.tracks.fedrep import FedRepClient, FedRepOptions, FedRepServer
from fedsm.tracks.finetune import FineTuneClient, FineTuneOptions
from fedsm.tracks.local import LocalClient
from fedsm.tracks.options import TrackOptions
from fedsm.tracks.perfedavg import PerFedAvgClient, PerFedAvgOptions
from fedsm.tracks.pfedme import PFedMeClient, PFedMeOptions, PFedMeServer
from fedsm.tracks.scaffold import ScaffoldClient, ScaffoldOptions, ScaffoldServer
from fedsm.tracks.secure_sum import EQUAL, FINE, NOTHING, SHARE
from fedsm.tracks.segmentation import SegmentationClient
from fedsm.tracks.selector_ensemble import EnsembleClient, EnsembleServer
from fedsm.tracks.selector_extra import ExtraClient, ExtraOptions, ExtraServer
from fedsm.tracks.selector_fedavg import SelectorClient, SelectorServer
from fedsm.tracks.selector_gradient import SelectorGradientClient, SelectorGradientServer
from fedsm.tracks.selector_statistics import StatisticsClient, StatisticsOptions, StatisticsServer
from fedsm.tracks.shared_and_personal import SharedAndPersonalServer
from fedsm.tracks.site_personal import BesideGlobalServer, SitePersonalServer
from fedsm.tracks.softpull import SoftPullOptions, SoftPullServer
from fedsm.tracks.softpull_at_site import SoftPullAtSiteClient, SoftPullAtSiteOptions, SoftPullAtSiteServer

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


def options_of(name: str, spec: dict[str, Any]) -> dict[str, Any]:
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
    return {name: {"kind": spec.get("kind")} | options_of(name, spec) for name, spec in settings.tracks.items()}


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


def sends_sums(settings: JobSettings) -> bool:
    """Whether a job asks sites for sums over their images."""
    return any(kind_of(name, spec).client.sums for name, spec in settings.tracks.items())


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


def own_rounds(settings: JobSettings) -> int:
    """The rounds at the end that a selector has to itself."""
    return max((options_of(n, spec).get("rounds", 0) for n, spec in settings.tracks.items()), default=0)
