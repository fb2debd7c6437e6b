"""Tables of an experiment as Markdown and CSV: mean and standard deviation over seeds, the worst site, the spread."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedsm.core.spread import SPREAD, WORST, mean_std, site_spread, spread_cells, worst_site
from fedsm.core.tables import csv_table, markdown_table
from fedsm.evaluation.tables import ALL_IMAGES, CLIENT_AVG, TEST_IMAGES

ACCURACY = [f"selector acc., {CLIENT_AVG}", f"selector acc., {ALL_IMAGES}"]


@dataclass
class Line:
    """A line of a table.

    Attributes:
        name: its row's, and what else tells it apart.
        cells: column -> the values of all seeds.
        images: site -> how many test images it had with each seed; empty where the columns are not Dice of sites.
    """

    name: str
    cells: dict[str, list[float | None]] = field(default_factory=dict)
    images: dict[str, list[int]] = field(default_factory=dict)

    def seeds(self) -> int:
        """How many there are."""
        return max((len(values) for values in self.cells.values()), default=0)

    def dice(self) -> dict[str, float | None]:
        """Site -> mean over seeds, of which the worst site and the spread are told."""
        return {site: mean_std(self.cells.get(site, []))[0] for site in self.images}


def columns_of(lines: list[Line]) -> list[str]:
    """All columns, in the order in which they come up; the selector's accuracy last."""
    columns = list(dict.fromkeys(column for line in lines for column in line.cells))
    return sorted(columns, key=lambda c: c in ACCURACY)


def as_csv(lines: list[Line]) -> str:
    """For other programs: mean and deviation in columns of their own, empty where there is none."""
    columns, sites = columns_of(lines), _sites(lines)
    rows: list[list] = []
    for line in lines:
        cells = [mean_std(line.cells.get(c, [])) for c in columns]
        rows.append([line.name, line.seeds(), *(_six(value) for cell in cells for value in cell)])
        if sites:
            dice = line.dice()
            worst = worst_site(dice)
            rows[-1] += [worst or "", _six(dice[worst] if worst else None), _six(site_spread(dice))]
            rows[-1] += [_count(line.images.get(site, [])) for site in sites]
    head = ["run", "seeds", *(name for c in columns for name in (c, f"{c} std"))]
    fair = [WORST, f"{WORST}, Dice", SPREAD, *(f"{site} {TEST_IMAGES}" for site in sites)] if sites else []
    return csv_table([*head, *fair], rows)


def as_markdown(lines: list[Line]) -> str:
    """For people, in Markdown and in a terminal. Its first row counts the test images."""
    columns, sites = columns_of(lines), _sites(lines)
    rows = [[TEST_IMAGES, "", *_counts(lines, columns, sites), *["", ""]]] if sites else []
    for line in lines:
        cells = [_cell(*mean_std(line.cells.get(c, []))) for c in columns]
        rows.append([line.name, str(line.seeds()), *cells, *(spread_cells(line.dice()) if sites else [])])
    return markdown_table(["run", "seeds", *columns, *([WORST, SPREAD] if sites else [])], rows) + "\n"


def _sites(lines: list[Line]) -> list[str]:
    return list(dict.fromkeys(site for line in lines for site in line.images))


def _counts(lines: list[Line], columns: list[str], sites: list[str]) -> list[str]:
    """The counts of test images under their columns: of each site, and of all in one run."""
    counts = {site: [n for line in lines for n in line.images.get(site, [])] for site in sites}
    per_run = [sum(run) for line in lines for run in zip(*line.images.values(), strict=False)]
    return [_count(per_run if column == ALL_IMAGES else counts.get(column, [])) for column in columns]


def _count(found: list[int]) -> str:
    """`12`, or `11 to 13` where the runs differ: seeds split the patients in different ways."""
    if not found:
        return ""
    return str(found[0]) if len(set(found)) == 1 else f"{min(found)} to {max(found)}"


def _six(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"


def _cell(mean: float | None, std: float | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:.4f}" if std is None else f"{mean:.4f} ± {std:.4f}"
