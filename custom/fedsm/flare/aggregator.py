"""Shareables in, checked one by one; the good ones merged by the tracks as they arrive.

This is where SoftPull is called from. `accept` gives each site's update to the personal track, which adds it to the
site's own model, and `aggregate` closes the round: `SoftPullServer.close` (tracks/softpull.py) then pulls the personal
models towards each other, as `AveragedServer.close` (tracks/fedavg.py) averages the global one. The formulas are in
the tracks, because a job may have other tracks than FedSM's, and because they need no FLARE.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.aggregator import Aggregator

from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors, payload_bytes
from fedsm.core.text import one_line
from fedsm.core.wire import Wire, wire_of
from fedsm.flare import exchange
from fedsm.flare.compat import intake
from fedsm.flare.identity import sender_of, sender_problem
from fedsm.flare.task import TaskResults, TaskSpec
from fedsm.server import checks
from fedsm.server.checks import Refused
from fedsm.server.conduct import Conduct, Row
from fedsm.server.examiner import Examined, Examiner
from fedsm.server.guard import NormGuard
from fedsm.server.registry import Registry
from fedsm.tracks.base import TRAIN, Phase, ServerTrack

REFUSED, WARNED = "refused", "warned"


class SoftPullAggregator(Aggregator):
    """Checks every shareable of a task, and merges or refuses it.

    A shareable is refused, by the site's name and with the reason, when it is an error reply, no COLLECTION of
    DXOs, of another round, a second answer, larger than the model, lacks a track or brings an unknown one, has other
    keys or shapes than the model, holds NaN or infinite values, claims an image count that is not positive or above
    what the site registered (at the registration: above `max_images`), or gives itself another name than that of the
    client that FLARE authenticated. Its norm is judged by the `NormGuard`. A refused shareable changes nothing. Entries
    that a site's `ExcludeVars` filter kept back count as unchanged: zero in the average, and its personal model keeps
    the server's. In averages a site weighs what the `Registry` says: its registered images, or as much as others.

    What happens when only some sites answer is decided by each track: see its docstring.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tracks: dict[str, ServerTrack] = {}
        self.sites: list[str] = []
        self._phase: Phase | None = None
        self._wire = Wire("float32")
        self._playing: dict[str, ServerTrack] = {}
        self.reset(None)

    def bind(
        self, tracks: dict[str, ServerTrack], sites: list[str], settings: JobSettings, norms: dict | None = None,
        tell: Callable[[str, str, str], object] = lambda kind, site, reason: None, conduct_seed: int = 0,
    ) -> None:  # fmt: skip
        """Gives the aggregator the job's tracks and sites. Called once, by the controller.

        Args:
            tracks: the server halves.
            sites: all sites, in index order.
            settings: the job's settings.
            norms: the norms of earlier rounds, which the guard goes on with; they are changed.
            tell: called with `refused` or `warned`, the site and the reason.
            conduct_seed: draws the entries by which updates are compared; see `server/conduct.py`.
        """
        self.tracks = tracks
        self.sites = sites
        self.registry = Registry(settings.max_share, settings.site_weights)
        self._settings = settings
        self._max_images = settings.max_images
        self._secure = settings.secure_sum is not None
        self._conduct = Conduct(conduct_seed)
        # A verdict that depends on other sites' norms would let one site change what others add.
        factor = math.inf if settings.update_privacy else settings.norm_factor
        self._examiner = Examiner(NormGuard(settings.norm_check, factor, norms))
        self._tell = tell

    def begin(self, spec: TaskSpec) -> TaskResults:
        """Opens a task for the sites' answers; the returned results are filled as answers arrive."""
        self.reset(None)
        self._spec = spec
        self._phase = checks.phase_of(spec.task)
        self._wire = wire_of(self._settings, spec.task) if spec.expects is None else Wire("float32")
        self._playing = {n: t for n, t in self.tracks.items() if spec.tracks is None or n in spec.tracks}
        self._examiner.begin()
        self._conduct.begin()
        intake.expect(checks.most_bytes(self._wire.templates(self._templates())))
        return self.results

    def reset(self, fl_ctx: FLContext | None) -> None:
        """Closes the open task, so that none is open."""
        self._spec = TaskSpec("", "", -1)
        self._phase = None
        self._playing = {}
        self.results = TaskResults()

    @property
    def compares_first(self) -> bool:
        """Whether the answers of the open task must all be there before one is merged: see `NormGuard`."""
        return self._spec.expects is None and self._examiner.compares_first(self._phase, self._playing)

    def compare(self, shareable: Shareable, fl_ctx: FLContext) -> None:
        """Notes the norms of an answer that `accept` will be given later, if it is a good one."""
        try:
            site = sender_of(fl_ctx)
            _, tracks, _ = self._check(site, shareable, fl_ctx)
        except Exception:  # `accept` will refuse it and name the site
            return
        if self._phase:
            self._examiner.note_norms(self._phase, site, self._playing, tracks)

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Merges one site's answer, or refuses it."""
        site = sender_of(fl_ctx)
        try:
            meta, tracks, size = self._check(site, shareable, fl_ctx)
            examined = Examined(tracks)
            if self._phase and self._spec.expects is None:
                reports = meta.get("reports", {})
                examined = self._examiner.examine(self._phase, site, self._playing, tracks, meta["images"], reports)
        except Refused as e:
            return self._refuse(site, str(e), e.answered, fl_ctx)
        except Exception as e:  # a bad answer costs only the site that sent it a round
            return self._refuse(site, f"malformed answer ({type(e).__name__})", True, fl_ctx)
        for reason in examined.warnings:
            self.log_warning(fl_ctx, f"fedsm round={self._spec.number} site={site} warned: {reason}")
            self._tell(WARNED, site, reason)
            self.results.suspect[site] = reason
        if self._phase == TRAIN and self._spec.expects is None:
            self._conduct.note(site, tracks, checks.templates_of(self._spec.task, self._playing), examined.sent)
        tracks = {}  # what is merged is freed, track by track
        try:
            self._merge(site, examined.tracks, meta)
        except Exception as e:  # should not happen with a checked answer: the models may be half merged
            self.results.broken = f"the answer of site {site!r} could not be merged: {type(e).__name__}: {e}"
            return self._refuse(site, self.results.broken, True, fl_ctx)
        self.results.accepted[site] = checks.known_meta(meta)
        self.results.norms[site] = examined.norms
        self.results.refused.pop(site, None)
        self.results.up[site] = size
        return True

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """Ends the round: every track makes its next model. Returns the sites that took part, for FLARE's listeners."""
        if self._phase:
            for track in self._playing.values():
                track.close(self._phase)
        self._examiner.close()
        meta = {"accepted": sorted(self.results.accepted), "refused": dict(self.results.refused)}
        return exchange.pack({}, {"round": self._spec.number} | meta)

    def _templates(self) -> dict[str, Tensors]:
        """What an answer to the open task must hold."""
        expected = self._spec.expects
        return checks.templates_of(self._spec.task, self._playing) if expected is None else expected

    def conduct(self) -> Row:
        """How the updates of the open round compare with each other."""
        return self._conduct.close()

    def _merge(self, site: str, tracks: dict[str, Tensors], meta: dict) -> None:
        if self._spec.expects is not None:
            self._spec.take(site, tracks)
            return
        weight = self.registry.shares().get(site, 0)
        if self._phase:
            for name in list(tracks):
                self.tracks[name].accept(self._phase, site, tracks.pop(name), weight)
        if self._spec.task == exchange.REGISTER:
            self.registry.add(site, meta)

    def _refuse(self, site: str, reason: str, answered: bool, fl_ctx: FLContext) -> bool:
        reason = one_line(reason)
        # A second answer is refused without taking back the first.
        if site not in self.results.accepted:
            self.results.refused[site] = reason
        self.log_error(fl_ctx, f"fedsm round={self._spec.number} site={site} refused: {reason}")
        if answered:
            self._tell(REFUSED, site, reason)
            if site in self.results.refused:
                self.results.suspect[site] = reason
        return False

    def _check(self, site: str, shareable: Shareable, fl_ctx: FLContext) -> tuple[dict, dict[str, Tensors], int]:
        """The answer's meta and tracks, and the bytes that travelled; cheap checks are made before tensors are read."""
        if site not in self.sites:
            raise Refused("not a site of this job")
        if reason := sender_problem(fl_ctx):
            raise Refused(reason)
        if site in self.results.accepted:
            raise Refused("a second answer in one round")
        if not isinstance(shareable, Shareable):
            raise Refused(f"not a shareable but {type(shareable).__name__}")
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            if shareable.get_header(exchange.UNREADY_HEADER) is True:
                self.results.unready.add(site)
            raise Refused(str(shareable.get_header(exchange.ERROR_HEADER) or code), answered=False)
        templates = self._templates()
        travels = self._wire.templates(templates)
        try:
            meta, tracks = exchange.unpack(
                shareable, checks.most_bytes(travels), lambda meta: self._meta_problem(site, meta)
            )
        except exchange.BadShareable as e:
            raise Refused(str(e)) from e
        if set(tracks) != set(travels):
            raise Refused(f"tracks are {sorted(map(str, tracks))}, expected {sorted(travels)}")
        size = payload_bytes(tracks)
        try:
            tracks = self._wire.receive(tracks, templates)
        except UserError as e:
            raise Refused(e.message) from e
        if self._spec.expects is not None and (reason := checks.exact_problem(tracks, templates)):
            raise Refused(reason)
        if self._spec.task == exchange.TRAIN:
            for name in templates.keys() & exchange.excluding(shareable):
                # Entries that a site's filter keeps back count as unchanged; others that are missing are refused later.
                template, sent = templates[name], tracks[name]
                tracks[name] = sent | {k: torch.zeros_like(v) for k, v in template.items() if k not in sent}
        return meta, tracks, size

    def _needs_key(self) -> bool:
        return self._secure and self._spec.task == exchange.REGISTER

    def _meta_problem(self, site: str, meta: dict) -> str | None:
        number = meta.get("round")
        if isinstance(number, bool) or not isinstance(number, int) or number != self._spec.number:
            return f"answer of round {number!r}, expected {self._spec.number}"
        limits, why = dict.fromkeys(checks.PARTS, self._max_images), "max_images is"
        if self._spec.task != exchange.REGISTER:
            if site not in self.registry.images:
                return "it has not registered"
            limits, why = self.registry.images[site], "but registered"
        images = meta.get("images")
        if (reason := checks.counts_problem(images, limits, why)) or not isinstance(images, dict):
            return reason
        return (
            checks.losses_problem(meta.get("losses", {}), self._playing)
            or checks.reports_problem(meta.get("reports", {}), self._playing, images["validation"])
            or (checks.privacy_problem(meta["privacy"]) if "privacy" in meta else None)
            or (checks.key_problem(meta.get("sum_key")) if self._needs_key() or "sum_key" in meta else None)
            or (checks.dp_problem(meta["dp"]) if "dp" in meta else None)
            or self._spec.meta_problem(site, meta)
        )
