"""Shareables in, checked one by one; the good ones merged by the tracks as they arrive."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.aggregator import Aggregator

from fedsm.core.settings import JobSettings
from fedsm.core.shares import bounded_shares
from fedsm.core.state import examine, scaled
from fedsm.core.tensors import Tensors, payload_bytes
from fedsm.flare import exchange
from fedsm.flare.compat import intake
from fedsm.flare.identity import sender_of, sender_problem
from fedsm.server import checks
from fedsm.server.guard import NormGuard
from fedsm.tracks.base import ServerTrack

REFUSED, WARNED = "refused", "warned"


class _Refused(Exception):
    """An answer that is not taken; the message says why. `answered` is False for a site that reported a failure."""

    def __init__(self, reason: str, answered: bool = True):
        super().__init__(reason)
        self.answered = answered


class SoftPullAggregator(Aggregator):
    """Checks every shareable of a round, and merges or refuses it.

    A shareable is refused, by the site's name and with the reason, when it is an error reply, no COLLECTION of
    DXOs, of another round, a second answer, larger than the model, lacks a track or brings an unknown one, has other
    keys or shapes than the model, holds NaN or infinite values, claims an image count that is not positive or above
    what the site registered (at the registration: above `max_images`), or gives itself another name than that of the
    client that FLARE authenticated. Its norm is judged by the `NormGuard`. A refused shareable changes nothing. Entries
    that a site's `ExcludeVars` filter kept back count as unchanged: zero in the average, and its personal model keeps
    the server's. In averages a site weighs as many images as it registered, at most `max_share` times the median.

    What partial participation does is each track's own affair: see its docstring.
    """

    def __init__(self):
        super().__init__()
        self.tracks: dict[str, ServerTrack] = {}
        self.sites: list[str] = []
        self.registered: dict[str, dict[str, int]] = {}  # site -> images of each part, as first told
        self.privacy: dict[str, dict[str, float]] = {}  # site -> what it says of the privacy of its sums
        self.reset(None)

    def bind(
        self, tracks: dict[str, ServerTrack], sites: list[str], settings: JobSettings, norms: dict | None = None,
        tell: Callable[[str, str, str], None] = lambda kind, site, reason: None,
    ) -> None:  # fmt: skip
        """Gives the aggregator the job's tracks and sites. Called once, by the controller.

        Args:
            tracks: the server halves.
            sites: all sites, in index order.
            settings: the job's settings.
            norms: the norms of earlier rounds, which the guard goes on with; they are changed.
            tell: called with `refused` or `warned`, the site and the reason.
        """
        self.tracks = tracks
        self.sites = sites
        self._max_images = settings.max_images
        self._max_share = settings.max_share
        self._guard = NormGuard(settings.norm_check, settings.norm_factor, norms)
        self._tell = tell

    def begin(
        self, task: str, round_number: int, names: list[str] | None = None,
        judge: Callable[[str, dict], str | None] = lambda site, meta: None,
    ) -> None:  # fmt: skip
        """Opens a round for the answers to one task, in which these tracks play (None: all).

        Args:
            task: the task.
            round_number: the round.
            names: the tracks.
            judge: says what else is wrong with a site's meta, or None.
        """
        self.reset(None)
        self._playing = {n: t for n, t in self.tracks.items() if names is None or n in names}
        self._task = task
        self._round = round_number
        self._judge = judge
        self._guard.begin()
        intake.expect(checks.most_bytes(checks.templates_of(task, self._playing)))

    def reset(self, fl_ctx: FLContext | None):
        self._task = ""
        self._round = -1
        self._playing: dict[str, ServerTrack] = {}
        self.accepted: dict[str, dict] = {}  # site -> its answer's meta, in the order in which they were merged
        self.refused: dict[str, str] = {}  # site -> reason
        self.up_bytes: dict[str, int] = {}  # site -> bytes of what it sent
        self.norms: dict[str, dict[str, float]] = {}  # site -> track -> norm of what was merged
        self._sent: dict[str, dict[str, float]] = {}  # site -> track -> norm of what it sent, merged or not
        self.broken = ""  # why the models are in no state to go on with

    @property
    def compares_first(self) -> bool:
        """Whether the answers of the open round must all be there before one is merged: see `NormGuard`."""
        if self._task == exchange.VALIDATE:
            return any(track.hands_over_networks for track in self._playing.values())
        if self._task != exchange.TRAIN:
            return False
        templates = {name: track.template() for name, track in self._playing.items()}
        parts = [part for name, tensors in templates.items() if tensors for part in self.tracks[name].judged(tensors)]
        return not all(map(self._guard.knows, parts))

    def compare(self, shareable: Shareable, fl_ctx: FLContext) -> None:
        """Notes the norms of an answer that `accept` will be given later, if it is a good one."""
        try:
            site = sender_of(fl_ctx)
            _, tracks = self._check(site, shareable, fl_ctx)
        except Exception:  # it will be refused, by name, when it is its turn
            return
        templates = checks.templates_of(self._task, self._playing)
        for name, tensors in tracks.items():
            wanted = self.tracks[name].judged(templates[name])
            for part, held in self.tracks[name].judged(tensors).items():
                reason, norm = examine(held, wanted[part])
                if reason is None:
                    self._guard.note(self._measure(part), site, norm)

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Merges one site's answer, or refuses it."""
        site = sender_of(fl_ctx)
        try:
            meta, tracks = self._check(site, shareable, fl_ctx)
            norms = self._examine(site, tracks, meta["images"], fl_ctx)
        except _Refused as e:
            return self._refuse(site, str(e), e.answered, fl_ctx)
        except Exception as e:  # whatever a site sends costs that site its round and nobody else's
            return self._refuse(site, f"malformed answer ({type(e).__name__})", True, fl_ctx)
        try:
            self._merge(site, tracks, meta)
        except Exception as e:  # no answer that was checked should come here: the models may be half merged
            self.broken = f"the answer of site {site!r} could not be merged: {type(e).__name__}: {e}"
            return self._refuse(site, self.broken, True, fl_ctx)
        self.accepted[site] = checks.known_meta(meta)
        self.norms[site] = norms
        self.refused.pop(site, None)
        self.up_bytes[site] = payload_bytes(tracks)
        return True

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """Ends the round: every track makes its next model. Returns who took part, for whoever listens."""
        for track in self._playing.values():
            track.close()
        self._guard.close(_by_track(self._sent), _by_track(self.norms))
        return exchange.pack(
            {}, {"round": self._round, "accepted": sorted(self.accepted), "refused": dict(self.refused)}
        )

    def shares(self) -> dict[str, float]:
        """What each registered site weighs in averages."""
        return bounded_shares({site: images["train"] for site, images in self.registered.items()}, self._max_share)

    def bounded(self) -> dict[str, str]:
        """Sites whose image counts are so far from the others' that a person should know, and what that means.

        A share in averages is bounded. Scores over all images are what they say, and one site's word where it has more
        images than all others together.
        """
        found: dict[str, list[str]] = {}
        for site, share in self.shares().items():
            count = self.registered[site]["train"]
            if share != count:
                found.setdefault(site, []).append(
                    f"registered {count} training images, more than max_share ({self._max_share:g}) times the"
                    f" median; it weighs as {share:g} in averages"
                )
        for part in ("validation", "test") if len(self.registered) > 2 else ():
            total = sum(images[part] for images in self.registered.values())
            for site, images in self.registered.items():
                if 2 * images[part] > total:
                    found.setdefault(site, []).append(
                        f"registered {images[part]} {part} images, more than all others together: {part} scores over"
                        " all images are mostly its own word"
                    )
        return {site: "; ".join(reasons) for site, reasons in found.items()}

    def _refuse(self, site: str, reason: str, answered: bool, fl_ctx: FLContext) -> bool:
        reason = checks.one_line(reason)
        # A second answer is refused without taking back the first.
        if site not in self.accepted:
            self.refused[site] = reason
        self.log_error(fl_ctx, f"fedsm round={self._round} site={site} refused: {reason}")
        if answered:
            self._tell(REFUSED, site, reason)
        return False

    def _check(self, site: str, shareable, fl_ctx: FLContext) -> tuple[dict, dict[str, Tensors]]:
        """The answer's meta and tracks; whatever costs little is checked before tensors are read."""
        if site not in self.sites:
            raise _Refused("not a site of this job")
        if reason := sender_problem(fl_ctx):
            raise _Refused(reason)
        if site in self.accepted:
            raise _Refused("a second answer in one round")
        if not isinstance(shareable, Shareable):
            raise _Refused(f"not a shareable but {type(shareable).__name__}")
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            raise _Refused(str(shareable.get_header(exchange.ERROR_HEADER) or code), answered=False)
        templates = checks.templates_of(self._task, self._playing)
        try:
            meta, tracks = exchange.unpack(
                shareable, checks.most_bytes(templates), lambda meta: self._meta_problem(site, meta)
            )
        except exchange.BadShareable as e:
            raise _Refused(str(e)) from e
        if set(tracks) != set(templates):
            raise _Refused(f"tracks are {sorted(map(str, tracks))}, expected {sorted(templates)}")
        if self._task == exchange.TRAIN:
            for name in exchange.excluding(shareable):
                # What a site's filter keeps back did not change there; entries missing for no reason are refused later.
                template, sent = templates[name], tracks[name]
                tracks[name] = sent | {k: torch.zeros_like(v) for k, v in template.items() if k not in sent}
        return meta, tracks

    def _meta_problem(self, site: str, meta: dict) -> str | None:
        number = meta.get("round")
        if isinstance(number, bool) or not isinstance(number, int) or number != self._round:
            return f"answer of round {number!r}, expected {self._round}"
        limits, why = dict.fromkeys(checks.PARTS, self._max_images), "max_images is"
        if self._task != exchange.REGISTER:
            if site not in self.registered:
                return "it has not registered"
            limits, why = self.registered[site], "but registered"
        images = meta.get("images")
        return (
            checks.counts_problem(images, limits, why)
            or checks.losses_problem(meta.get("losses", {}), self._playing)
            or checks.reports_problem(meta.get("reports", {}), self._playing, images["validation"])
            or (checks.privacy_problem(meta["privacy"]) if "privacy" in meta else None)
            or self._judge(site, meta)
        )

    def _examine(
        self, site: str, tracks: dict[str, Tensors], images: dict[str, int], fl_ctx: FLContext
    ) -> dict[str, float]:
        """The norms of what a site sent; tracks that are clipped are replaced."""
        templates = checks.templates_of(self._task, self._playing)
        norms: dict[str, float] = {}
        warnings = []
        for name, tensors in tracks.items():
            track = self.tracks[name]
            parts, wanted = track.judged(tensors), track.judged(templates[name])
            for part, held in parts.items():
                reason, norms[part] = examine(held, wanted[part])
                if reason:
                    raise _Refused(f"track {name!r}: {reason}")
            if self._task == exchange.REGISTER:
                reason = track.registration_problem(tensors, images)
            elif self._task == exchange.VALIDATE:
                reason = track.delivery_problem(tensors, images)
            if reason:
                raise _Refused(f"track {name!r}: {reason}")
            train = self._task == exchange.TRAIN
            if train:
                self._sent.setdefault(site, {}).update({part: norms[part] for part in parts})
            handed = self._task == exchange.VALIDATE and track.hands_over_networks
            for part, held in parts.items() if train or handed else ():
                usual = self._guard.usual(self._measure(part), sum(t.numel() for t in held.values()))
                limit = self._guard.limit(usual) if train else math.inf
                if norms[part] <= min(limit, self._guard.absurd(usual)):
                    continue
                reason = f"track {part!r}: norm {norms[part]:.3g} is far above the usual {usual:.3g}"
                if train and self._guard.mode == "refuse" or norms[part] > self._guard.absurd(usual):
                    raise _Refused(reason)
                if train and self._guard.mode == "clip":
                    tracks[name] = tracks[name] | scaled(held, usual / norms[part])
                    norms[part] = usual
                    reason += "; scaled down to it"
                warnings.append(reason)
        for reason in warnings:  # when all tracks are good: a refused answer has a reason of its own
            self.log_warning(fl_ctx, f"fedsm round={self._round} site={site} warned: {reason}")
            self._tell(WARNED, site, reason)
        return norms if self._task == exchange.TRAIN else {}

    def _measure(self, part: str) -> str:
        """What the norms of a part are remembered under: a network that is handed over is no update."""
        return f"{part}, handed over" if self._task == exchange.VALIDATE else part

    def _merge(self, site: str, tracks: dict[str, Tensors], meta: dict) -> None:
        for name, tensors in tracks.items():
            if self._task == exchange.REGISTER:
                self.tracks[name].register(site, tensors)
            elif self._task == exchange.VALIDATE:
                self.tracks[name].deliver(site, tensors)
            else:
                self.tracks[name].merge(site, tensors, self.shares()[site])
        if self._task == exchange.REGISTER:
            self.registered[site] = {part: meta["images"][part] for part in checks.PARTS}
            if "privacy" in meta:
                self.privacy[site] = dict(meta["privacy"])


def _by_track(norms: dict[str, dict[str, float]]) -> dict[str, list[float]]:
    """Site -> track -> norm as track -> norms."""
    tracks: dict[str, list[float]] = {}
    for by_track in norms.values():
        for track, norm in by_track.items():
            tracks.setdefault(track, []).append(norm)
    return tracks
