"""The federation chooses how its super model uses the selector, from the sites' validation scores.

No test image and no image of another source has a part in it.

1. gamma, share and flip together: the best. Each score of a site is taken against the site's own mean over all
   policies, then the trimmed mean over sites: one of four or more cannot decide, whatever it reports. A policy that
   costs fewer runs of a network is taken instead if it is at most `WORTH` below: twice the time for less than that is
   not worth it. Among equal gammas the largest: it costs nothing on these images and sends more images of other sources
   to the global model.
2. delta, at that share, for each site by its own scores: the smallest that costs it at most `delta_cost`, by its own
   images that go to the global model. It holds for the images that are nearest to this site, so a site decides for
   those alone. A smaller one keeps more foreign images from a personal model that does not fit them. Sites differ: at
   one with heavy tails the delta of the others would cost points.

A share or a flip that costs it more than `MOST_LOSS` against Algorithm 2 each site can veto. The site that these hurt
is the one unlike the others, and a trimmed mean does not see it. By a false veto a site can only bring about
Algorithm 2.
"""

from __future__ import annotations

from fedsm.core.settings import JobSettings
from fedsm.core.shares import trimmed_mean
from fedsm.selectors.policy import Policy, shares_of

WORTH = 0.001
MOST_LOSS = 0.005  # half a point: who loses more would do better without the policy
_DIGITS = 12  # equal scores are equal in any order of summation


def choose_policy(validations: dict[str, dict], settings: JobSettings, sites: list[str]) -> Policy:
    """The policy of the super model.

    Args:
        validations: site -> what `validate_candidates` gave.
        settings: the job's settings.
        sites: names of all sites in index order; one that gave no scores has no delta.

    Returns:
        without a selector only its flip means something.
    """
    best = _best_mixture(validations, settings)
    if best is None:
        return Policy()
    return best if best.gamma is None else best.changed(delta=_deltas(validations, sites, best.share, settings))


def choose_gamma(validations: dict[str, dict], gammas: list[float | None], how: str = "dice") -> float | None:
    """The gamma of hard selection alone; `how`: `dice`, or `blend` of soft selection."""
    curves = [[_mean(row[how]) for row in v["gammas"]] for v in validations.values() if v["gammas"]]
    if not curves or gammas == [None]:
        return None
    return max((gain, gamma) for gain, gamma in zip(_gains(curves), gammas, strict=True) if gamma is not None)[1]


def policy_score(validation: dict, policy: Policy, settings: JobSettings) -> float:
    """One site's validation Dice at a policy, leaving delta out."""
    row = next(r for r in validation["mixtures"] if (r["share"], r["flip"]) == (policy.share, policy.flip))
    return row["dice"][0 if policy.gamma is None else settings.gammas.index(policy.gamma)]


def policy_table(validations: dict[str, dict], settings: JobSettings) -> list[dict]:
    """One row per share and flip, at its best gamma, for results.json: how much it gains over plain hard selection.

    Returns:
        rows with `share`, `flip`, `gamma`, `networks` (runs of a network for one image) and `gain`, the trimmed mean
        over sites of the validation Dice against the first row's.
    """
    policies, gains = _mixtures(validations, settings)
    rows: dict[tuple[float, bool], dict] = {}
    for policy, gain in zip(policies, gains, strict=True):
        held = rows.get((policy.share, policy.flip))
        if held is None or (gain, policy.gamma or 0) > (held["gain"], held["gamma"] or 0):
            row = {"share": policy.share, "flip": policy.flip, "gamma": policy.gamma, "networks": policy.networks}
            rows[(policy.share, policy.flip)] = row | {"gain": gain}
    first = next(iter(rows.values()))["gain"] if rows else 0.0
    return [row | {"gain": round(row["gain"] - first, 6)} for row in rows.values()]


def _best_mixture(validations: dict[str, dict], settings: JobSettings) -> Policy | None:
    policies, gains = _mixtures(validations, settings)
    if not policies:
        return None
    allowed = _without_vetoes(policies, gains, validations)
    policies, gains = [policies[i] for i in allowed], [gains[i] for i in allowed]
    close = [(p, g) for p, g in zip(policies, gains, strict=True) if g >= max(gains) - WORTH]
    cheapest = min(p.networks for p, _ in close)
    return max(((g, p.gamma or 0.0, p) for p, g in close if p.networks == cheapest), key=lambda found: found[:2])[2]


def _without_vetoes(policies: list[Policy], gains: list[float], validations: dict[str, dict]) -> list[int]:
    """The numbers of the policies that cost no site more than `MOST_LOSS`; Algorithm 2 has all of its gammas."""
    hard = [i for i, policy in enumerate(policies) if not policy.share and not policy.flip]
    best = max(hard, key=lambda i: (gains[i], policies[i].gamma or 0.0))
    scores = [[dice for row in v["mixtures"] for dice in row["dice"]] for v in validations.values() if v["mixtures"]]
    cost = [max(site[best] - site[i] for site in scores) for i in range(len(policies))]
    return [i for i in range(len(policies)) if i in hard or round(cost[i], _DIGITS) <= MOST_LOSS]


def _mixtures(validations: dict[str, dict], settings: JobSettings) -> tuple[list[Policy], list[float]]:
    """Every policy that was tried, and what it gains over their mean."""
    tried = [v["mixtures"] for v in validations.values() if v["mixtures"]]
    if not tried:
        return [], []
    gammas = [row["gamma"] for row in next(iter(validations.values()))["gammas"]] or [None]
    policies = [Policy(gamma, None, row["share"], row["flip"]) for row in tried[0] for gamma in gammas]
    return policies, _gains([[dice for row in rows for dice in row["dice"]] for rows in tried])


def _deltas(
    validations: dict[str, dict], sites: list[str], share: float, settings: JobSettings
) -> tuple[float | None, ...] | None:
    """One for each site; None where no site has one, as with a selector that knows no distance."""
    number = shares_of(settings).index(share)
    found = tuple(_smallest_delta(validations.get(site, {}).get("deltas", []), number, settings) for site in sites)
    return found if any(delta is not None for delta in found) else None


def _smallest_delta(rows: list[dict], number: int, settings: JobSettings) -> float | None:
    """The delta of a site by its own rows, the last of which is without any; None where every one costs too much."""
    for row in rows:
        if round(rows[-1]["dice"][number] - row["dice"][number], _DIGITS) <= settings.delta_cost:
            return row["delta"]
    return None


def _gains(curves: list[list[float]]) -> list[float]:
    """For each position of the sites' curves the trimmed mean of what is above the site's own mean."""
    above = [[value - sum(curve) / len(curve) for value in curve] for curve in curves]
    return [round(trimmed_mean(list(column)), _DIGITS) for column in zip(*above, strict=True)]


def _mean(by_label: dict[str, float]) -> float:
    return sum(by_label.values()) / len(by_label)
