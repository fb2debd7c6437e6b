"""What a site has spent stays spent: across jobs, at once, after kill -9, and with a damaged file."""

import signal
import stat
import subprocess
import sys
from dataclasses import replace

import pytest

from fedsm.client.privacy_ledger import FILE_NAME, PrivacyLedger
from fedsm.core.errors import UserError
from fedsm.core.privacy_loss import NoisySteps

ROUND = NoisySteps(2.0, 0.25, 5)

# Adds one step at a time, as often as all together may; says how often it could, and waits to be killed.
SPENDER = """
import sys, time
from pathlib import Path
from fedsm.client.privacy_ledger import PrivacyLedger
from fedsm.core.privacy_loss import NoisySteps

def check(history):
    if sum(steps.count for _, steps in history) > 30:
        raise RuntimeError

ledger, done = PrivacyLedger(Path(sys.argv[1]), "a"), 0
print("ready", flush=True)
sys.stdin.readline()
try:
    while True:
        ledger.reserve(sys.argv[2], NoisySteps(2.0, 0.25, 1), check)
        done += 1
except RuntimeError:
    print(done, flush=True)
time.sleep(600)
"""


def anything(history) -> None:
    """No limit."""


def test_steps_of_one_kind_add_up_and_others_stand_beside_them(tmp_path):
    ledger = PrivacyLedger(tmp_path, "a")
    assert ledger.history() == []
    ledger.reserve("run1", ROUND, anything)
    ledger.reserve("run1", ROUND, anything)
    other = replace(ROUND, noise=3.0)
    assert PrivacyLedger(tmp_path, "a").reserve("run2", other, anything) == [
        ("run1", replace(ROUND, count=10)),
        ("run2", other),
    ]
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


def test_what_is_refused_is_not_added(tmp_path):
    ledger = PrivacyLedger(tmp_path, "a")
    ledger.reserve("run1", ROUND, anything)

    def refuse(history):
        assert history == [("run1", replace(ROUND, count=10))], "it is asked about the list as it would be"
        raise UserError("spent")

    with pytest.raises(UserError, match="spent"):
        ledger.reserve("run1", ROUND, refuse)
    assert ledger.history() == [("run1", ROUND)]


def test_two_processes_at_once_spend_it_once_and_kill_9_forgets_nothing(tmp_path):
    """Two jobs of one site share a budget of 30 steps. Both are then killed, and all 30 are still on the disk."""
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", SPENDER, str(tmp_path), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for name in ("job1", "job2")
    ]
    try:
        for job in jobs:
            assert job.stdout.readline() == b"ready\n"
        for job in jobs:
            job.stdin.write(b"go\n")
            job.stdin.flush()
        done = [int(job.stdout.readline()) for job in jobs]
    finally:
        for job in jobs:
            job.send_signal(signal.SIGKILL)
            job.communicate()
    assert sum(done) == 30
    history = dict(PrivacyLedger(tmp_path, "a").history())
    assert {name: steps.count for name, steps in history.items()} == {
        name: count for name, count in zip(("job1", "job2"), done, strict=True) if count
    }
    PrivacyLedger(tmp_path, "a").reserve("job3", ROUND, anything)  # the lock went with its process


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", '{"entries": 3}', '{"entries": [{}]}',
        '{"entries": [{"run": "r", "noise_multiplier": 0, "sample_rate": 0.5, "steps": 1}]}',
        '{"entries": [{"run": "r", "noise_multiplier": 1, "sample_rate": 0.5, "steps": -1}]}',
        '{"entries": [{"run": "r", "noise_multiplier": NaN, "sample_rate": 0.5, "steps": 1}]}',
    ],
)  # fmt: skip
def test_a_damaged_ledger_stops_the_training(tmp_path, content):
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(UserError, match="restore it from a backup") as caught:
        PrivacyLedger(tmp_path, "a").reserve("run", ROUND, anything)
    assert str(tmp_path) in str(caught.value) and str(tmp_path) not in caught.value.public
    assert (tmp_path / FILE_NAME).read_text() == content
