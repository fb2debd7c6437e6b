"""What a job's tracks and settings cannot be together, found before anything costs time."""

from __future__ import annotations

import math

from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.selectors.inference import THRESHOLD
from fedsm.tracks.fraction import check_fraction
from fedsm.tracks.kinds import KINDS, kind_of, lam_of, options_of, own_rounds, selection_rule
from fedsm.tracks.rules import rule_of
from fedsm.tracks.secure_sum import check_secure_sum
from fedsm.tracks.softpull import UNIFORM, SoftPullServer
from fedsm.tracks.softpull_at_site import SoftPullAtSiteServer


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
        kind.server.check(settings, options_of(name, spec), n_sites)
        if settings.update_privacy and not kind.server.update_private:
            raise UserError(
                f"update_privacy cannot hide what a site sends for track {name!r} of kind {spec['kind']!r}",
                remedy="use a method that shares one network alone (fedavg or fedprox), or leave update_privacy out",
            )
    _check_rule(settings)
    servers = {name: kind_of(name, spec).server for name, spec in settings.tracks.items()}
    at_site = next((name for name, server in servers.items() if issubclass(server, SoftPullAtSiteServer)), None)
    pulls = any(issubclass(server, SoftPullServer) for server in servers.values())
    check_fraction(settings, n_sites, lam_of(settings) if pulls else None, at_site, own_rounds(settings))
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
    pulls = any(
        s is SoftPullServer and options_of(n, settings.tracks[n])["pull"] == UNIFORM for n, s in servers.items()
    )
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
