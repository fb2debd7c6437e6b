"""A track's own options: what they may be, and what they are where nothing is said."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

from fedsm.core.errors import UserError
from fedsm.core.limits import shown


@dataclass(frozen=True)
class Number:
    """A number in [least, most]; `whole` allows no fractions."""

    default: float
    least: float
    most: float = math.inf
    whole: bool = False

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, or None."""
        kinds = int if self.whole else (int, float)
        finite = isinstance(value, kinds) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        if finite and self.least <= value <= self.most:
            return None
        limit = f"at least {self.least:g}" if self.most == math.inf else f"in [{self.least:g}, {self.most:g}]"
        return f"must be a {'whole ' if self.whole else ''}number {limit}, got {shown(value)}"


@dataclass(frozen=True)
class Choice:
    """One of some words."""

    default: str
    words: tuple[str, ...]

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, or None."""
        return None if value in self.words else f"must be one of {', '.join(self.words)}, got {shown(value)}"


def _word(value: Any) -> Any:
    """YAML reads an unquoted yes or no as true or false: here they are words again."""
    return ("yes" if value else "no") if isinstance(value, bool) else value


def with_defaults(track: str, given: dict[str, Any], known: dict[str, Number | Choice]) -> dict[str, Any]:
    """The options of a track, complete.

    Args:
        track: the track's name, for messages.
        given: what the job's settings say.
        known: the options that its kind has.

    Raises:
        UserError: an option that the kind has not, or a value that it cannot have.
    """
    given = {name: _word(value) if isinstance(known.get(name), Choice) else value for name, value in given.items()}
    for name, value in given.items():
        if name not in known:
            has = f"; known: {', '.join(known)}" if known else ""
            raise UserError(f"track {track!r} takes no option {name!r}{has}")
        reason = known[name].problem(value)
        if reason:
            raise UserError(f"track {track!r}: {name} {reason}")
    return {name: given.get(name, option.default) for name, option in known.items()}
