"""What a benchmark hands back, the table a person reads and the file that keeps it."""

from __future__ import annotations

import datetime
import json
import os
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True)
class Check:
    """One figure against its bar; it passes when it is not above."""

    what: str
    measured: float
    bar: float
    unit: str = ""

    @property
    def passed(self) -> bool:
        """Whether the bar is held."""
        return self.measured <= self.bar

    def row(self, name: str) -> list[str]:
        """A row of the table."""
        cells = [f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in (self.measured, self.bar)]
        unit = f" {self.unit}" if self.unit else ""
        return [f"{name}: {self.what}", cells[0] + unit, f"at most {cells[1]}{unit}", "PASS" if self.passed else "FAIL"]


@dataclass(frozen=True)
class Outcome:
    """What one benchmark found.

    Attributes:
        checks: the figures that have a bar.
        figures: everything measured, bar or not.
        error: why it could not be measured.
    """

    checks: list[Check] = field(default_factory=list)
    figures: dict = field(default_factory=dict)
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether it was measured and every bar is held."""
        return not self.error and all(check.passed for check in self.checks)

    def rows(self, name: str) -> list[list[str]]:
        """Its rows of the table."""
        return [[name, self.error, "", "FAIL"]] if self.error else [check.row(name) for check in self.checks]

    def to_dict(self) -> dict:
        """Plain values for JSON."""
        bars = [asdict(check) | {"pass": check.passed} for check in self.checks]
        error = {"error": self.error} if self.error else {}
        return {"pass": self.passed, "date": _now(), "bars": bars, "figures": self.figures} | error


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def table(outcomes: dict[str, Outcome]) -> str:
    """`name | measured | bar | PASS/FAIL`, a line a check."""
    rows = [["name", "measured", "bar", ""], *(row for name, o in outcomes.items() for row in o.rows(name))]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [" | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "-+-".join("-" * w for w in widths))
    return "\n".join(lines)


def save(path: Path, outcomes: dict[str, Outcome]) -> None:
    """Writes the outcomes; those of earlier runs that were not measured again stay, each with its own date."""
    earlier = json.loads(path.read_text())["benchmarks"] if path.is_file() else {}
    machine = {"cores": os.cpu_count(), "cpu": _cpu_model(), "torch": version("torch"), "date": _now()}
    benchmarks = earlier | {name: outcome.to_dict() for name, outcome in outcomes.items()}
    path.write_text(json.dumps({"machine": machine, "benchmarks": benchmarks}, indent=1) + "\n")
