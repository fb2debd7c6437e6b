"""How each site's updates compare with those of the others, and what a person should look at.

    norm_k   = ||u_k||
    cosine_k = <u_k, m_k> / (||u_k|| ||m_k||),      m_k = sum_{j != k} u_j / ||u_j||

over the updates of one round, as they were sent. Lengths do not matter, the others' neither: two long updates would
else be the mean, and the honest ones against it. It needs the products of all pairs, and so all updates at once. They
are not kept for that: a sample of 4,096 entries of the large tensors of each is, 16 KB. The entries are drawn once in a
run, by a seed that stays at the server (a site that knew them could behave there alone) and in its checkpoint. Where an
update has no more entries the cosine is exact, otherwise it is off by about 0.016 if the change is spread over the
network. A random projection would be as good, but reads every entry once more.

Cosines are judged only of networks that all sites change for the same images (`ServerTrack.shared`), and only where at
least four answered. Near its optimum a shared network is pulled apart by honest sites, too, all of them against the
others' mean; so a cosine is compared with those of the others in its round:

    warned:  cosine_k < 0   and   cosine_k < median_{j != k} cosine_j - 0.5

A site's validation score of a shared model, and its own training loss, are told of once when they turn bad:

    score_k < median_{j != k} score_j / 2,      loss_k > 2 min(loss_k of the five rounds before) + 0.1

These two are also what an honest site with other images, other labels or bad luck looks like. They ask a person to
look, and count nothing in `quarantine`.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from statistics import median

import torch

from fedsm.core.rounds import WINDOW
from fedsm.core.tensors import Tensors
from fedsm.server.guard import norm_groups

SAMPLE = 4 * 1024  # entries of an update that are compared
_FEW = 4  # sites: fewer have no majority
_LARGE = 0.01  # of the entries
_GAP, _PART, _TIMES, _RISE = 0.5, 0.5, 2.0, 0.1
_DIGITS = 4
Plan = dict[str, torch.Tensor]
Row = dict[str, dict[str, dict[str, float | None]]]  # norm group -> site -> `norm` and `cosine`


def new_seed() -> int:
    """Where the entries that are compared are drawn from: nobody else can know it."""
    return secrets.randbits(62)


def drawn(template: Tensors, seed: int) -> Plan:
    """The entries that are compared, of all updates of this shape: key -> places in the flat tensor.

    All float entries where they are few, otherwise some of the tensors that hold at least a hundredth of them: each
    tensor that is looked at costs as much time as thousands of its entries.
    """
    sizes = {key: template[key].numel() for key in sorted(template) if template[key].is_floating_point()}
    rows = torch.arange(sum(sizes.values()))
    if len(rows) > SAMPLE:
        sizes = {key: size for key, size in sizes.items() if size >= _LARGE * len(rows)} or sizes
        rng = torch.Generator().manual_seed(seed)
        rows = torch.randint(sum(sizes.values()), (SAMPLE,), generator=rng).unique()
    start, plan = 0, {}
    for key, size in sizes.items():
        places = rows[(rows >= start) & (rows < start + size)] - start
        if len(places):
            plan[key] = places
        start += size
    return plan


def sample(tensors: Tensors, plan: Plan) -> torch.Tensor:
    """The entries of an update."""
    return torch.cat([torch.take(tensors[key], places).float() for key, places in plan.items()] or [torch.zeros(0)])


def cosines(samples: torch.Tensor) -> list[float | None]:
    """Each row's cosine to the mean direction of the other rows; None where it or that mean is zero."""
    count = len(samples)
    directions = torch.nn.functional.normalize(samples.double(), dim=1)
    products = directions @ directions.T
    squares, sums = products.diagonal(), products.sum(1)
    to_others = sums - squares
    others = (products.sum() - 2 * sums + squares).clamp(min=0)
    found: list[float | None] = []
    for product, own, other in zip(to_others.tolist(), squares.tolist(), others.tolist(), strict=True):
        length = (own * other) ** 0.5
        found.append(max(-1.0, min(1.0, product / length)) if count > 1 and length > 0 else None)
    return found


class Conduct:
    """Takes note of the updates of one round after the other.

    Args:
        seed: see `new_seed`.
    """

    def __init__(self, seed: int):
        self._seed = seed
        self._plans: dict[str, Plan] = {}
        self.begin()

    def begin(self) -> None:
        """Opens a round."""
        self._samples: dict[str, dict[str, torch.Tensor]] = {}  # norm group -> site -> sample
        self._norms: dict[str, dict[str, float]] = {}

    def note(
        self, site: str, tracks: Mapping[str, Tensors], templates: Mapping[str, Tensors], norms: Mapping[str, float]
    ) -> None:
        """Notes a good answer, as it was sent; the templates say what is a float, whatever a site made of it."""
        for name, tensors in tracks.items():
            for group, held in norm_groups(name, tensors).items():
                if group not in self._plans:
                    self._plans[group] = drawn(norm_groups(name, templates[name])[group], self._seed)
                self._samples.setdefault(group, {})[site] = sample(held, self._plans[group])
                self._norms.setdefault(group, {})[site] = norms.get(group, 0.0)

    def close(self) -> Row:
        """Ends a round: what is kept of it."""
        row: Row = {}
        for group, by_site in self._samples.items():
            found = cosines(torch.stack(list(by_site.values())))
            for site, cosine in zip(by_site, found, strict=True):
                rounded = None if cosine is None else round(cosine, _DIGITS)
                row.setdefault(group, {})[site] = {"norm": self._norms[group][site], "cosine": rounded}
        self.begin()
        return row


def against_the_others(row: Row, shared: list[str]) -> dict[str, str]:
    """Sites whose update of a shared network points against the others': site -> what a person should know."""
    found: dict[str, list[str]] = {}
    for track in shared:
        known = {site: by["cosine"] for site, by in row.get(track, {}).items()}
        numbers = {site: cosine for site, cosine in known.items() if cosine is not None}
        for site, cosine in numbers.items() if len(numbers) >= _FEW else ():
            usual = _of_others(numbers, site)
            if cosine < min(0.0, usual - _GAP):
                found.setdefault(site, []).append(
                    f"track {track!r}: its update points against the others' (cosine {cosine:.2f}, theirs {usual:.2f});"
                    " have its labels looked at (`fedsm data check`)"
                )
    return {site: "; ".join(reasons) for site, reasons in found.items()}


def turned_bad(history: list[dict], shared: list[str], fraction: float = 1.0) -> dict[str, str]:
    """Sites whose loss, or score of the model that they received, has just turned bad: site -> what to know.

    Args:
        history: the rows of all rounds; the last one's validation is not known yet.
        shared: the tracks to look at.
        fraction: the job's; a site is drawn once in about 1 / fraction rounds, so its past is as many times longer.
    """
    found: dict[str, list[str]] = {}
    span = math.ceil(1 / fraction)
    for track in shared:
        *past, last = [*[{}] * (span + 1), *history[:-1]][-span - 1 :]
        now, before = _low_scores(last, track), {site for row in past for site in _low_scores(row, track)}
        for site in now.keys() - before:
            score, usual = now[site]
            found.setdefault(site, []).append(
                f"track {track!r}: it scores the shared model {score:.2f}, the others {usual:.2f}; other images, or"
                " labels by another rule: look at `fedsm data check`"
            )
        losses = [row.get("loss", {}).get(track, {}) for row in history]
        for site, loss in losses[-1].items() if losses else ():
            earlier = [row[site] for row in losses[-1 - WINDOW * span : -1] if site in row]
            if earlier and earlier[-1] <= _limit(earlier[:-1]) and loss > _limit(earlier):
                found.setdefault(site, []).append(
                    f"track {track!r}: its training loss rose from {min(earlier):.3g} to {loss:.3g}; have its images"
                    " looked at if it stays so"
                )
    return {site: "; ".join(reasons) for site, reasons in found.items()}


def _low_scores(row: dict, track: str) -> dict[str, tuple[float, float]]:
    """The sites with far lower scores than the others: site -> its score and theirs."""
    scores: dict[str, float] = row.get("validation", {}).get(track, {})
    compared = {site: (score, _of_others(scores, site)) for site, score in scores.items() if len(scores) >= _FEW}
    return {site: (score, usual) for site, (score, usual) in compared.items() if score < _PART * usual}


def _limit(losses: list[float]) -> float:
    """The loss from which one has risen; infinite where nothing is known. Losses may be negative."""
    return max(min(losses), 0.0) * _TIMES + _RISE if losses else float("inf")


def _of_others(values: Mapping[str, float], site: str) -> float:
    return median(value for other, value in values.items() if other != site)
