"""Shareables in, checked one by one; the good ones merged by the tracks as they arrive."""

from __future__ import annotations

import math

import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.aggregator import Aggregator

from fedsm import exchange
from fedsm.tracks.base import ServerTrack, Tensors, is_fraction
from fedsm.tracks.state import problem


class SoftPullAggregator(Aggregator):
    """Checks every shareable of a round, and merges or refuses it.

    A shareable is refused, by the site's name and with the reason, when it is an error reply, no COLLECTION of
    DXOs, of another round, a second answer, lacks a track or brings an unknown one, has other keys or shapes than
    the model, holds NaN or infinite values, or claims an image count that is not positive or above what the site
    registered. A refused shareable changes nothing. Entries that a site's `ExcludeVars` filter kept back count as
    unchanged: zero in the average, and its personal model keeps the server's.

    What partial participation does is each track's own affair: see its docstring.
    """

    def __init__(self):
        super().__init__()
        self.tracks: dict[str, ServerTrack] = {}
        self.registered: dict[str, dict[str, int]] = {}  # site -> images of each part, as first told
        self.privacy: dict[str, dict[str, float]] = {}  # site -> what it says of the privacy of its sums
        self.reset(None)

    def bind(self, tracks: dict[str, ServerTrack], sites: list[str]) -> None:
        """Gives the aggregator the job's tracks and sites. Called once, by the controller."""
        self.tracks = tracks
        self.sites = sites

    def begin(self, task: str, round_number: int, names: list[str] | None = None) -> None:
        """Opens a round for the answers to one task, in which these tracks play (None: all)."""
        self.reset(None)
        self._playing = {n: t for n, t in self.tracks.items() if names is None or n in names}
        self._task = task
        self._round = round_number

    def reset(self, fl_ctx: FLContext | None):
        self._task = ""
        self._round = -1
        self._playing: dict[str, ServerTrack] = {}
        self.accepted: dict[str, dict] = {}  # site -> its answer's meta
        self.refused: dict[str, str] = {}  # site -> reason
        self.up_bytes: dict[str, int] = {}  # site -> bytes of what it sent

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Merges one site's answer, or refuses it."""
        peer = fl_ctx.get_peer_context()
        site = peer.get_identity_name() if peer else None
        try:
            meta, tracks, reason = self._check(site, shareable)
        except Exception as e:  # whatever a site sends costs that site its round and nobody else's
            reason = f"malformed answer ({type(e).__name__})"
        if reason:
            # A second answer is refused without taking back the first.
            if site not in self.accepted:
                self.refused[str(site)] = reason
            self.log_error(fl_ctx, f"fedsm round={self._round} site={site} refused: {reason}")
            return False
        for name, tensors in tracks.items():
            if self._task == exchange.REGISTER:
                self.tracks[name].register(site, tensors)
            elif self._task == exchange.VALIDATE:
                self.tracks[name].deliver(site, tensors)
            else:
                self.tracks[name].merge(site, tensors, meta["images"]["train"])
        if self._task == exchange.REGISTER:
            self.registered[site] = dict(meta["images"])
            if "privacy" in meta:
                self.privacy[site] = dict(meta["privacy"])
        self.accepted[site] = meta
        self.refused.pop(site, None)
        self.up_bytes[site] = exchange.payload_bytes(tracks)
        return True

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """Ends the round: every track makes its next model. Returns who took part, for whoever listens."""
        for track in self._playing.values():
            track.close()
        return exchange.pack(
            {}, {"round": self._round, "accepted": sorted(self.accepted), "refused": dict(self.refused)}
        )

    def _check(self, site, shareable) -> tuple[dict, dict[str, Tensors], str | None]:
        """The answer's meta and tracks, and why it is refused, if it is."""
        if site not in self.sites:
            return {}, {}, "not a site of this job"
        if site in self.accepted:
            return {}, {}, "a second answer in one round"
        if not isinstance(shareable, Shareable):
            return {}, {}, f"not a shareable but {type(shareable).__name__}"
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return {}, {}, str(shareable.get_header(exchange.ERROR_HEADER) or code)
        try:
            meta, tracks = exchange.unpack(shareable)
        except exchange.BadShareable as e:
            return {}, {}, str(e)
        if self._task == exchange.TRAIN:
            for name in exchange.excluding(shareable):
                # What a site's filter keeps back did not change there; entries missing for no reason are refused below.
                template, sent = self._playing[name].template(), tracks[name]
                tracks[name] = sent | {k: torch.zeros_like(v) for k, v in template.items() if k not in sent}
        return meta, tracks, self._meta_problem(site, meta) or self._tracks_problem(tracks, meta["images"])

    def _meta_problem(self, site: str, meta: dict) -> str | None:
        if meta.get("round") != self._round or isinstance(meta.get("round"), bool):
            return f"answer of round {meta.get('round')!r}, expected {self._round}"
        images = meta.get("images")
        if not isinstance(images, dict):
            return "image counts are missing"
        for part in ("train", "validation", "test"):
            count = images.get(part)
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                return f"count of {part} images is {count!r}, expected a positive whole number"
            limit = self.registered.get(site, {}).get(part)
            if self._task != exchange.REGISTER and (limit is None or count > limit):
                return f"claims {count} {part} images but registered {limit}"
        if "privacy" in meta and not _is_privacy(meta["privacy"]):
            return "what it says of privacy is malformed"
        return self._losses_problem(meta.get("losses", {})) or self._reports_problem(
            meta.get("reports", {}), images["validation"]
        )

    def _losses_problem(self, losses) -> str | None:
        if not isinstance(losses, dict) or set(losses) - set(self._playing):
            return "losses are malformed"
        if not all(isinstance(v, float) and math.isfinite(v) for v in losses.values()):
            return "a loss is no finite number"
        return None

    def _reports_problem(self, reports, limit: int) -> str | None:
        if not isinstance(reports, dict) or set(reports) - set(self._playing):
            return "validation reports are malformed"
        for name, report in reports.items():
            if not isinstance(report, dict) or report.get("images") != limit:
                return f"validation report of track {name!r} is malformed"
            if not is_fraction(report.get("score")):
                return f"validation score of track {name!r} is not a number in [0, 1]"
            reason = self.tracks[name].report_problem(report)
            if reason:
                return f"validation report of track {name!r}: {reason}"
        return None

    def _tracks_problem(self, tracks: dict[str, Tensors], images: dict[str, int]) -> str | None:
        if self._task == exchange.REGISTER:
            templates = {name: track.registration_template() for name, track in self.tracks.items()}
        elif self._task == exchange.TRAIN:
            templates = {name: track.template() for name, track in self._playing.items()}
        elif self._task == exchange.VALIDATE:
            templates = {name: track.delivery_template() for name, track in self._playing.items()}
        else:
            templates = {}
        expected = {name for name, template in templates.items() if template}
        if set(tracks) != expected:
            return f"tracks are {sorted(map(str, tracks))}, expected {sorted(expected)}"
        for name, tensors in tracks.items():
            reason = problem(tensors, templates[name])
            if not reason and self._task == exchange.REGISTER:
                reason = self.tracks[name].registration_problem(tensors, images)
            elif not reason and self._task == exchange.VALIDATE:
                reason = self.tracks[name].delivery_problem(tensors, images)
            if reason:
                return f"track {name!r}: {reason}"
        return None


def _is_privacy(report) -> bool:
    """Whether it is what `PrivateSums.report` gives."""
    keys = {"epsilon", "delta", "sigma", "clip", "releases"}
    numbers = (
        isinstance(report, dict) and report.keys() == keys and all(type(v) in (int, float) for v in report.values())
    )
    return numbers and all(math.isfinite(v) and v > 0 for v in report.values())
