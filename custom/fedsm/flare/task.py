"""A task for the sites, and its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fedsm.core.tensors import Tensors


@dataclass
class TaskSpec:
    """What the sites are asked to do.

    Attributes:
        what: names it in messages.
        task: the task's name.
        number: the round.
        sites: who is asked, in index order.
        needed: the fewest good answers with which the job can go on.
        spare: who takes the place of sites that give no good answer, where too few do; in this order.
        tracks: the tracks that take part; None: all.
        meta: plain values that go down to every site.
        payload: site -> what goes down to it, by track.
        meta_problem: returns what else is wrong with a site's meta, or None.
        timeout: seconds; None: the job's `round_timeout`.
        expects: track -> what an answer must hold; None: what the tracks of the job expect in this phase, and take.
        take: where `expects` is given, called with a site and the tensors of its good answer.
    """

    what: str
    task: str
    number: int
    sites: list[str] = field(default_factory=list)
    needed: int = 0
    tracks: list[str] | None = None
    meta: dict = field(default_factory=dict)
    payload: Callable[[str], dict[str, Tensors]] = lambda site: {}
    meta_problem: Callable[[str, dict], str | None] = lambda site, meta: None
    timeout: float | None = None
    expects: dict[str, Tensors] | None = None
    take: Callable[[str, dict[str, Tensors]], None] = lambda site, tracks: None
    spare: list[str] = field(default_factory=list)


@dataclass
class TaskResults:
    """The results of a task.

    Attributes:
        accepted: site -> the good answer's meta, in the order in which they were merged.
        refused: site -> why its answer was not taken.
        unready: the sites at which a person must act first: they are not asked again.
        missing: site -> why there is no good answer: refused or silent.
        down: site -> bytes sent to it.
        up: site -> bytes of what it sent.
        norms: site -> norm group -> norm of what was merged.
        suspect: site -> why its answer was refused for what it held, or taken with a warning.
        attempts: how often it was asked.
        asked: who was asked, the spare ones last.
        broken: why the models cannot be used any further; empty: they can.
    """

    accepted: dict[str, dict] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    unready: set[str] = field(default_factory=set)
    missing: dict[str, str] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)
    norms: dict[str, dict[str, float]] = field(default_factory=dict)
    suspect: dict[str, str] = field(default_factory=dict)
    attempts: int = 0
    asked: list[str] = field(default_factory=list)
    broken: str = ""

    def leave_out(self, missing: dict[str, str], down: dict[str, int], up: dict[str, int]) -> None:
        """Counts sites as missing that gave a good answer, but are not in what was made of them; adds bytes."""
        for site, reason in missing.items():
            self.accepted.pop(site, None)
            self.missing[site] = reason
        for total, more in ((self.down, down), (self.up, up)):
            for site, count in more.items():
                total[site] = total.get(site, 0) + count

    def reports(self) -> dict[str, dict]:
        """Site -> track -> its report on the model, from its validation images."""
        return {site: meta.get("reports", {}) for site, meta in self.accepted.items()}
