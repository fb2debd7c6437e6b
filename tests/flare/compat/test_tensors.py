"""Workaround: `fedsm.flare.compat.tensors`.

Symptoms: torch tensors do not travel unless a job registers their decomposer (a client loops on "cannot find handler
for Datum Object Type"); what was sent is kept for other receivers and the next bytes are made ahead, which with six
sites was as much memory as four models. FLARE 2.9.0. With the workaround: `tests/flare/test_memory.py`.
"""

import subprocess
import sys

import torch
from nvflare.app_opt.pt.tensor_downloader import TensorDownloadable

_PROGRAM = """
import sys
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs.dots import TENSOR_DOWNLOAD
sys.exit(0 if fobs.get_dot_handler(TENSOR_DOWNLOAD) is None else 3)
"""


def test_flare_does_not_register_tensors_by_itself():
    assert subprocess.run([sys.executable, "-c", _PROGRAM]).returncode == 0


def test_flare_keeps_what_was_sent_and_makes_the_next_ahead():
    source = TensorDownloadable({"a": torch.ones(3), "b": torch.zeros(2)}, 1)
    source.num_receivers = 2
    source.produce({}, "site-1")
    kept = [data for data, _ in source.cache if data is not None]
    assert kept or source._prefetch_futures
