"""Paired comparisons as rows of a table: the difference in Dice, first minus second, with its interval."""

from __future__ import annotations

from fedsm.evaluation.bootstrap import DRAWS, LEVEL
from fedsm.evaluation.tables import ALL_IMAGES, CLIENT_AVG

NOTE = (
    f"Difference in Dice on the same images, first minus second: {LEVEL:.0%} intervals, bootstrap by patient, {DRAWS}"
    " draws. p: Wilcoxon's signed-rank test on the patients' mean differences, of one comparison each (not corrected"
    " for their number)."
)


def paired_head(sites: list[str], corner: str = "difference in Dice") -> list[str]:
    """The columns."""
    return [corner, *sites, CLIENT_AVG, ALL_IMAGES, "p (Wilcoxon)", "patients"]


def paired_cells(title: str, found: dict, sites: list[str]) -> list[str]:
    """A row.

    Args:
        title: of the two that were compared.
        found: as `compare` gives it.
        sites: the columns.
    """
    values = [found["per_site"].get(site) for site in sites] + [found["client_avg"], found["global"]]
    p = "-" if found["p"] is None else p_text(found["p"])
    return [title, *(difference_text(value) for value in values), p, str(found["patients"])]


def difference_text(value: dict | None) -> str:
    """`+0.012 (+0.003 to +0.021)`."""
    if value is None:
        return "-"
    mean = f"{value['mean']:+.4f}"
    return mean if value["low"] is None else f"{mean} ({value['low']:+.4f} to {value['high']:+.4f})"


def p_text(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"
