"""Sites whose updates are not merged for some rounds, because they were warned of again and again: `quarantine`.

    warned   <- warned + 1       a round in which its answer was refused for what it held, scaled down, or pointed
                                 against the others'
    warned   <- max(0, warned - 1)    any other round that it answered
    warned = quarantine          it is not asked for `quarantine_rounds` rounds, then again, with warned one lower

So a site that goes on as before is out again after its first answer, and one that was unlucky now and then never is. A
site in quarantine is not drawn (`fraction`), and keeps its personal model, its index and its part in the selector, as
one that is away, and takes part in the validation and evaluation at the end. Nobody goes into quarantine where fewer
than `min_sites` would be left. `fedsm forget` takes a site out for good.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedsm.core.settings import JobSettings


class Quarantine:
    """Counts warnings and says who rests.

    Args:
        settings: the job's.
        state: site -> `warned` and, once it was in quarantine, `until`, the last round that it is not asked in. It is
            changed, and kept in the checkpoint.
    """

    def __init__(self, settings: JobSettings, state: dict[str, dict[str, int]]):
        self._most, self._rounds, self._least = settings.quarantine, settings.quarantine_rounds, settings.min_sites
        self._state = state

    def until(self, site: str, number: int) -> int | None:
        """The last round that a site is not asked in; None if it is asked in round `number`."""
        until = self._state.get(site, {}).get("until", 0)
        return until if self._most and number <= until else None

    def close(self, number: int, answered: Iterable[str], warned: set[str], here: list[str]) -> dict[str, int]:
        """Ends a round.

        Args:
            number: the round.
            answered: the sites whose updates were merged.
            warned: the sites that were warned of, merged or not.
            here: the sites that could be asked.

        Returns:
            the sites that go into quarantine -> the last round that they are not asked in.
        """
        if not self._most:
            return {}
        new: dict[str, int] = {}
        for site in sorted({*answered, *warned} & set(here), key=here.index):
            entry = self._state.setdefault(site, {"warned": 0})
            entry["warned"] = entry["warned"] + 1 if site in warned else max(0, entry["warned"] - 1)
            left = [other for other in here if other != site and self.until(other, number + 1) is None]
            if entry["warned"] >= self._most and len(left) >= self._least:
                new[site] = entry["until"] = number + self._rounds
                entry["warned"] = self._most - 1
        return new
