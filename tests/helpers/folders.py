"""Where things are in the repository."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "jobs"
