"""A machine whose clock is set while a run goes on, by hand or by a time server.

Found: waits and durations were differences of the wall clock. A jump of an hour made a followed job be given up as lost
with its server, a POC's start fail, and a round's seconds in the results an hour, or negative.
"""

import ast
from pathlib import Path

import pytest

import app_fedsm
import fedsm

# What is written down is a time of day (in progress.py the clock of tqdm); everything else is a duration.
WRITTEN = {"record.py": 1, "digests.py": 1, "progress.py": 1}


@pytest.mark.parametrize("package", [fedsm, app_fedsm])
def test_durations_are_not_taken_from_the_wall_clock(package):
    for path in Path(package.__file__).parent.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        wall = [c for c in calls if ast.unparse(c.func) == "time.time"]
        assert len(wall) <= WRITTEN.get(path.name, 0), f"{path}: line {wall[0].lineno}"


def test_a_jump_of_the_clock_loses_no_job(monkeypatch):
    from app_fedsm.federation import following

    monkeypatch.setattr(following.sessions, "runs", lambda session, job_id: False)
    pulse = following._LostJobCheck("job")
    pulse.check(None, "RUNNING")
    monkeypatch.setattr(following.time, "time", lambda: 1e12)
    pulse.check(None, "RUNNING")  # it has been silent for a moment only
