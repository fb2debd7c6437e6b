"""Names in the order in which people count: site-2 before site-10."""

from __future__ import annotations

import re


def natural_key(name: str) -> list[int | str]:
    """Sorts `site-2` before `site-10`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
