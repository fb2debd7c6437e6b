"""Sites at which a federated model is worse than the one that the site trains alone: a hospital that would leave."""

from __future__ import annotations

from collections.abc import Mapping

LOCAL = "local"  # the method
_SHOWN = 0.00005  # half of the last digit in a table


def sites_below(dice: Mapping[str, float | None], alone: Mapping[str, float | None]) -> dict[str, tuple[float, float]]:
    """Site -> its Dice and that of its local model, where the first is lower by a digit that a table shows.

    Args:
        dice: site -> Dice of a federated model.
        alone: site -> Dice of the model that it trained alone.
    """
    both = {site: (value, alone.get(site)) for site, value in dice.items() if value is not None}
    return {site: (a, b) for site, (a, b) in both.items() if b is not None and a < b - _SHOWN}


def below_local_text(name: str, local: str, below: Mapping[str, tuple[float, float]]) -> str:
    """One line for a person."""
    sites = ", ".join(f"{site} ({a:.4f} against {b:.4f})" for site, (a, b) in below.items())
    leaves = "that hospital" if len(below) == 1 else "those hospitals"
    return f"{name} is worse than {local} at {sites}: {leaves} would leave"
