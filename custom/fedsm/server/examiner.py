"""Checks the tensors of an answer before they are merged: keys, shapes, values, the tracks' own rules, norms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fedsm.core.state import examine, scaled
from fedsm.core.tensors import Tensors
from fedsm.server.checks import Refused
from fedsm.server.guard import NormGuard, norm_groups
from fedsm.tracks.base import DELIVER, TRAIN, Phase, Report, ServerTrack


@dataclass
class Examined:
    """An answer that may be merged.

    Attributes:
        tracks: track -> its tensors; those that were too long are scaled down.
        norms: norm group -> norm of what will be merged (TRAIN).
        warnings: what a person should know.
        sent: norm group -> norm of what the site sent (TRAIN).
    """

    tracks: dict[str, Tensors]
    norms: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    sent: dict[str, float] = field(default_factory=dict)


class Examiner:
    """Examines the answers to one task after the other.

    Args:
        guard: judges norms.
    """

    def __init__(self, guard: NormGuard):
        self._guard = guard
        self._sent: dict[str, dict[str, float]] = {}  # site -> norm group -> norm of what it sent, merged or not
        self._merged: dict[str, dict[str, float]] = {}

    def begin(self) -> None:
        """Forgets the answers to an earlier task."""
        self._guard.begin()
        self._sent, self._merged = {}, {}

    def compares_first(self, phase: Phase | None, playing: dict[str, ServerTrack]) -> bool:
        """Whether all answers must be there before one is merged: see `NormGuard`."""
        if phase == DELIVER:
            return any(_hands_over_networks(track) for track in playing.values())
        if phase != TRAIN:
            return False
        templates = {name: track.expects(TRAIN) for name, track in playing.items()}
        groups = [group for name, tensors in templates.items() if tensors for group in norm_groups(name, tensors)]
        return not all(map(self._guard.knows, groups))

    def note_norms(self, phase: Phase, site: str, playing: dict[str, ServerTrack], sent: dict[str, Tensors]) -> None:
        """Notes the norms of a good answer that will be examined later, when all are there."""
        for name, tensors in sent.items():
            wanted = norm_groups(name, playing[name].expects(phase))
            for group, held in norm_groups(name, tensors).items():
                reason, norm = examine(held, wanted.get(group, {}))
                if reason is None:
                    self._guard.note(_measure(group, phase), site, norm)

    def examine(
        self,
        phase: Phase,
        site: str,
        playing: dict[str, ServerTrack],
        sent: dict[str, Tensors],
        images: dict[str, int],
        reports: dict[str, Report],
    ) -> Examined:
        """Examines one answer.

        Raises:
            Refused: it may not be merged, and why.
        """
        found = Examined(dict(sent))
        for name, track in playing.items():
            tensors = sent.get(name, {})
            norms = self._norms(name, tensors, track.expects(phase))
            if reason := track.problem(phase, tensors, images, reports.get(name, {})):
                raise Refused(f"track {name!r}: {reason}")
            if phase == TRAIN:
                self._sent.setdefault(site, {}).update(norms)
                found.norms |= norms
                found.sent |= norms
            if phase == TRAIN or (phase == DELIVER and _hands_over_networks(track)):
                for group, norm in norms.items():
                    self._judge_norm(phase, name, group, norm, found)
        self._merged[site] = found.norms
        return found

    def _norms(self, name: str, tensors: Tensors, expected: Tensors) -> dict[str, float]:
        norms = {}
        wanted = norm_groups(name, expected)
        for group, held in norm_groups(name, tensors).items():
            reason, norms[group] = examine(held, wanted.get(group, {}))
            if reason:
                raise Refused(f"track {name!r}: {reason}")
        if missing := wanted.keys() - norms.keys():
            raise Refused(f"track {name!r}: {examine({}, wanted[min(missing)])[0]}")
        return norms

    def _judge_norm(self, phase: Phase, name: str, group: str, norm: float, found: Examined) -> None:
        """Refuses, scales down or warns of a norm that is far from the usual one."""
        held = norm_groups(name, found.tracks[name])[group]
        usual = self._guard.usual(_measure(group, phase), sum(t.numel() for t in held.values()))
        absurd = self._guard.absurd(usual)
        if norm <= min(self._guard.limit(usual) if phase == TRAIN else math.inf, absurd):
            return
        reason = f"track {group!r}: norm {norm:.3g} is far above the usual {usual:.3g}"
        if norm > absurd or (phase == TRAIN and self._guard.mode == "refuse"):
            raise Refused(reason)
        if phase == TRAIN and self._guard.mode == "clip":
            found.tracks[name] = found.tracks[name] | scaled(held, usual / norm)
            found.norms[group] = usual
            reason += "; scaled down to it"
        found.warnings.append(reason)

    def close(self) -> None:
        """Ends a round: the guard remembers its norms, as they were sent and as they were merged."""
        self._guard.close(_by_group(self._sent), _by_group(self._merged))


def _hands_over_networks(track: ServerTrack) -> bool:
    return bool(track.expects(DELIVER)) and not track.sums


def _measure(group: str, phase: Phase) -> str:
    """The key under which a group's norms are kept: networks that are handed over are kept apart from updates."""
    return f"{group}, handed over" if phase == DELIVER else group


def _by_group(norms: dict[str, dict[str, float]]) -> dict[str, list[float]]:
    """Site -> group -> norm as group -> norms."""
    groups: dict[str, list[float]] = {}
    for by_group in norms.values():
        for group, norm in by_group.items():
            groups.setdefault(group, []).append(norm)
    return groups
