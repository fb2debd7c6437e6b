"""What goes wrong in a chaos run, drawn beforehand: the same seed gives the same accidents."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from benchmarks.chaos_filter import LOST, RUBBISH
from benchmarks.process import Failed

LOST_SHARE, RUBBISH_SHARE = 0.20, 0.05  # of all site-rounds
TRAINERS = 3  # trainers that are killed; and one server
_FIRST = 3  # no process is killed before: in the first rounds they are still starting


@dataclass(frozen=True)
class Plan:
    """The accidents of a run.

    Attributes:
        faults: site -> round -> `LOST` or a name of `RUBBISH`; both strike after the site has trained.
        trainers: round -> the site whose trainer is killed in it.
        server: the round in which the server is killed.
        most: accidents that a round may have and still have its quorum.
    """

    faults: dict[str, dict[int, str]]
    trainers: dict[int, str]
    server: int
    most: int

    def struck(self, number: int) -> int:
        """Answers of a round that will not be good."""
        return sum(number in by_round for by_round in self.faults.values())

    def later(self, site: str, after: int, rounds: int, taken: dict[int, str]) -> int | None:
        """The next round in which a site's trainer can be killed, when the kill of round `after` came too late."""
        for number in range(after + 1, rounds + 1):
            free = number not in taken and number != self.server and number not in self.faults[site]
            if free and self.struck(number) < self.most:
                return number
        return None


def draw(seed: int, sites: list[str], rounds: int, min_sites: int) -> Plan:
    """Draws the accidents: exact shares, in random rounds and sites, no round without its quorum.

    Raises:
        Failed: they do not fit into so few rounds or sites.
    """
    dice = random.Random(seed)
    most = len(sites) - min_sites
    kill_rounds = range(_FIRST, rounds + 1)
    cells = [(number, site) for number in range(1, rounds + 1) for site in sites]
    lost, rubbish = round(LOST_SHARE * len(cells)), round(RUBBISH_SHARE * len(cells))
    if len(kill_rounds) < TRAINERS + 1 or lost + rubbish + TRAINERS > rounds * most:
        raise Failed(f"{len(sites)} sites and {rounds} rounds are too few for the accidents of a chaos run")
    *numbers, server = dice.sample(kill_rounds, TRAINERS + 1)
    trainers = {number: dice.choice(sites) for number in sorted(numbers)}
    room = {number: most - (number in trainers) for number in range(1, rounds + 1)}
    kinds = itertools.chain(itertools.repeat(LOST, lost), itertools.islice(itertools.cycle(RUBBISH), rubbish))
    faults: dict[str, dict[int, str]] = {site: {} for site in sites}
    dice.shuffle(cells)
    for number, site in cells:
        if room[number] and trainers.get(number) != site:
            kind = next(kinds, None)
            if kind is None:
                break
            faults[site][number] = kind
            room[number] -= 1
    return Plan(faults, trainers, server, most)
