"""The federation chooses how its super model uses the selector, from the sites' validation scores.

No test image and no image of another source has a part in it.

1. share, for each site, at each gamma and flip: the best by

       (n_k gain_k + LEAN median_{j != k} gain_j) / (n_k + LEAN),      gain: Dice above share 0

   with n_k its validation images, but none at all unless this is more than `WORTH`, because a share costs a second run
   of a network. Sites differ: the global model helps most of them, and costs points at one whose images are unlike the
   others'. But the Dice of seven images is chance, so a small site leans on the others; on the median, which one of
   them cannot choose. The share holds for the images that the selector takes for this site's.
2. gamma and flip together, at these shares: the best. Each score of a site is taken against the site's own mean, then
   the trimmed mean over sites: one of four or more cannot decide, whatever it reports. Mirror images, which double the
   time, must gain more than `WORTH`. Among equal gammas the largest: it costs nothing on these images and sends more
   images of other sources to the global model.
3. delta, for each site by its own scores at its share: `DELTA_MARGIN` times the smallest that costs it at most
   `delta_cost`, by its own images that go to the global model. A smaller one keeps more foreign images from a personal
   model that does not fit them. The margin is there because the farthest of a few images says little of the next ones.
   At a site with heavy tails the delta of the others would cost points.
4. One model for each volume (majority) or for each slice: both by 1 and 2, then the one that is better by the trimmed
   mean over sites of the difference; of equals by slice. A site without volumes sees no difference.

Mirror images, and one model for each volume, that cost it more than `MOST_LOSS` each site can veto: the site that they
hurt is the one unlike the others, and a trimmed mean does not see it. By a false veto a site can bring about nothing
else.
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from fedsm.core.limits import MOST_DELTA
from fedsm.core.settings import JobSettings
from fedsm.core.shares import trimmed_mean
from fedsm.selectors.policy import Policy, flips_of, shares_of

WORTH = 0.001
LEAN = 10  # images: as many of its own count as much as the others
DELTA_MARGIN = 1.25
MOST_LOSS = 0.005  # half a point: who loses more would do better without the policy
_DIGITS = 12  # equal scores are equal in any order of summation


def choose_policy(validations: dict[str, dict], settings: JobSettings, sites: list[str]) -> Policy:
    """The policy of the super model.

    Args:
        validations: site -> what `validate_candidates` gave.
        settings: the job's settings.
        sites: names of all sites in index order; one that gave no scores has neither share nor delta.

    Returns:
        without a selector only its flip means something.
    """
    grids = {site: _Grid(v, settings) for site, v in validations.items() if v["mixtures"]}
    if not grids:
        return Policy()
    point = _best_point(grids, settings)
    if point.gamma is None:
        return Policy(flip=point.flip, majority=point.majority)
    shares = _own_shares(grids, point)
    deltas = tuple(
        _smallest_delta(validations.get(site, {}).get("deltas", []), shares.get(site, 0.0), settings) for site in sites
    )
    return Policy(
        point.gamma,
        deltas if any(delta is not None for delta in deltas) else None,
        tuple(shares.get(site, 0.0) for site in sites) if any(shares.values()) else 0.0,
        point.flip,
        point.majority,
    )


class _Point(NamedTuple):
    """What is chosen for all sites."""

    gamma: float | None
    flip: bool
    majority: bool


class _Grid:
    """A site's validation Dice at every gamma, share and flip, by slice and by majority.

    Attributes:
        images: how many were scored.
        gammas: the thresholds; only None where the selector has none, or there is no selector.
        has_volumes: whether it has tried one model for each volume.
    """

    def __init__(self, validation: dict, settings: JobSettings):
        self.images: int = validation["images"]
        self.gammas: list[float | None] = [row["gamma"] for row in validation["gammas"]] or [None]
        self.has_volumes = bool(validation["majorities"])
        self._shares = sorted({row["share"] for row in validation["mixtures"]})
        self._rows = {
            (row["share"], _Point(gamma, row["flip"], majority)): dice
            for majority in (False, True)
            for row in _rows(validation, majority)
            for gamma, dice in zip(self.gammas, row["dice"], strict=True)
        }

    def score(self, share: float, point: _Point) -> float:
        """The Dice with this share."""
        return self._rows[share, point]

    def gains(self, point: _Point) -> dict[float, float]:
        """Each share's Dice above that of the smallest, which is 0 unless the settings leave it out."""
        return {s: self.score(s, point) - self.score(self._shares[0], point) for s in self._shares}


def _rows(validation: dict, majority: bool) -> list[dict]:
    """A site's rows by slice or by majority, which are the same where it has no volumes."""
    return (majority and validation["majorities"]) or validation["mixtures"]


def _own_shares(grids: dict[str, _Grid], point: _Point) -> dict[str, float]:
    """Each site's share at this point, the smallest of equals."""
    gains = {site: grid.gains(point) for site, grid in grids.items()}
    chosen = {}
    for site, own in gains.items():
        n, others = grids[site].images, [found for name, found in gains.items() if name != site] or [own]
        usual = {share: median(found[share] for found in others) for share in own}
        leaned = {share: round((n * own[share] + LEAN * usual[share]) / (n + LEAN), _DIGITS) for share in own}
        best = max(leaned, key=lambda share: (leaned[share], -share))
        chosen[site] = best if leaned[best] > WORTH else min(leaned)
    return chosen


def _best_point(grids: dict[str, _Grid], settings: JobSettings) -> _Point:
    """By slice or by majority, whichever is better at its own best gamma and flip; by slice where they are equal."""
    by_slice, by_majority = (_gamma_and_flip(grids, settings, majority) for majority in (False, True))
    if not any(grid.has_volumes for grid in grids.values()):
        return by_slice
    if settings.volume_selection == "majority":
        return by_majority
    own, others = (_at_own_shares(grids, [point]) for point in (by_slice, by_majority))
    gains = [round(others[site][by_majority] - own[site][by_slice], _DIGITS) for site in grids]
    better = round(trimmed_mean(gains), _DIGITS) > 0 and min(gains) >= -MOST_LOSS
    return by_majority if better else by_slice


def _gamma_and_flip(grids: dict[str, _Grid], settings: JobSettings, majority: bool) -> _Point:
    """The best of both, at each site's own share."""
    gammas = next(iter(grids.values())).gammas
    tried = [_Point(gamma, flip, majority) for flip in flips_of(settings) for gamma in gammas]
    scores = _at_own_shares(grids, tried)
    gains = dict(zip(tried, _gains([list(own.values()) for own in scores.values()]), strict=True))
    best = {
        flip: max((one for one in tried if one.flip == flip), key=lambda one: (gains[one], one.gamma or 0.0))
        for flip in flips_of(settings)
    }
    plain, mirrored = best[False], best.get(True, best[False])
    cost = max(own[plain] - own[mirrored] for own in scores.values())
    worth = gains[mirrored] > gains[plain] + WORTH and round(cost, _DIGITS) <= MOST_LOSS
    return mirrored if worth else plain


def _at_own_shares(grids: dict[str, _Grid], points: list[_Point]) -> dict[str, dict[_Point, float]]:
    """Site -> point -> Dice at the site's own share there."""
    shares = {point: _own_shares(grids, point) for point in points}
    return {site: {one: grid.score(shares[one][site], one) for one in points} for site, grid in grids.items()}


def choose_gamma(validations: dict[str, dict], gammas: list[float | None], how: str = "dice") -> float | None:
    """The gamma of hard selection alone; `how`: `dice`, or `blend` of soft selection."""
    curves = [[_mean(row[how]) for row in v["gammas"]] for v in validations.values() if v["gammas"]]
    if not curves or gammas == [None]:
        return None
    return max((gain, gamma) for gain, gamma in zip(_gains(curves), gammas, strict=True) if gamma is not None)[1]


def policy_score(validation: dict, site: int, policy: Policy, settings: JobSettings) -> float:
    """One site's validation Dice at a policy with its share, leaving delta out; `site` is its number."""
    share = policy.share[site] if isinstance(policy.share, tuple) else policy.share
    rows = _rows(validation, policy.majority)
    row = next(r for r in rows if (r["share"], r["flip"]) == (share, policy.flip))
    return row["dice"][0 if policy.gamma is None else settings.gammas.index(policy.gamma)]


def policy_table(validations: dict[str, dict], settings: JobSettings) -> list[dict]:
    """One row per share (the same for all sites) and flip, at its best gamma, for results.json: how much it gains over
    plain hard selection. The same by majority, where a site has volumes.

    Returns:
        rows with `share`, `flip`, `majority`, `gamma`, `networks` (runs of a network for one image) and `gain`, the
        trimmed mean over sites of the validation Dice against the first row's.
    """
    found = [v for v in validations.values() if v["mixtures"]]
    ways = (False, True) if any(v["majorities"] for v in found) else (False,)
    tried = [[row | {"majority": way} for way in ways for row in _rows(v, way)] for v in found]
    if not tried:
        return []
    gammas = [row["gamma"] for row in next(iter(validations.values()))["gammas"]] or [None]
    gains = iter(_gains([[dice for row in rows for dice in row["dice"]] for rows in tried]))
    table = []
    for row in tried[0]:
        gain, gamma = max(((next(gains), gamma) for gamma in gammas), key=lambda found: (found[0], found[1] or 0.0))
        policy = Policy(gamma, None, row["share"], row["flip"])
        values = {key: row[key] for key in ("share", "flip", "majority")}
        values |= {"gamma": gamma, "networks": policy.networks}
        table.append(values | {"gain": gain})
    return [row | {"gain": round(row["gain"] - table[0]["gain"], 6)} for row in table]


def _smallest_delta(rows: list[dict], share: float, settings: JobSettings) -> float | None:
    """The delta of a site by its own rows, the last of which is without any; None where every one costs too much, or
    the selector knows no distance."""
    number = shares_of(settings).index(share)
    for row in rows:
        if round(rows[-1]["dice"][number] - row["dice"][number], _DIGITS) <= settings.delta_cost:
            return None if row["delta"] is None else min(MOST_DELTA, DELTA_MARGIN * row["delta"])
    return None


def _gains(curves: list[list[float]]) -> list[float]:
    """For each position of the sites' curves the trimmed mean of what is above the site's own mean."""
    above = [[value - sum(curve) / len(curve) for value in curve] for curve in curves]
    return [round(trimmed_mean(list(column)), _DIGITS) for column in zip(*above, strict=True)]


def _mean(by_label: dict[str, float]) -> float:
    return sum(by_label.values()) / len(by_label)
