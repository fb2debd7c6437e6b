"""The real trainer process, but round 2 stops at its first batch: it waits there to be killed, or for another
device's process to be killed, or faults by itself."""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

from fedsm.client import trainer_process
from fedsm.client.site_trainer import SiteTrainer

_train = SiteTrainer.train
fault, mark = sys.argv.pop(1), Path(sys.argv.pop(1))


def _faulty(self, number, payload, aborted, names):
    def at_a_batch() -> bool:
        mark.touch()
        if fault == "segfault":
            ctypes.string_at(0)
        if fault == "waits_for_other":  # and goes on: the trainer sees by itself that the process is gone
            while all(other.process.poll() is None for other in self.others._others):
                time.sleep(0.02)
            return False
        while not aborted():
            time.sleep(0.02)
        return True

    return _train(self, number, payload, at_a_batch if number == 2 else aborted, names)


SiteTrainer.train = _faulty
trainer_process.main()
