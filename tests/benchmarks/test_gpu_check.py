"""`make gpu-check` on a machine without a GPU."""

import pytest
import torch

from benchmarks import gpu_check
from tests.helpers.small_jobs import small_settings


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_a_gpu_it_says_so_in_one_line(capsys):
    assert gpu_check.main() == 2
    assert capsys.readouterr().out.startswith("gpu-check: no GPU here (") and "\n" not in capsys.readouterr().out


def test_both_loops_train_the_same():
    """On the CPU both are float32: the same loss in the second pass."""
    lines = gpu_check.report(torch.device("cpu"), small_settings(method="fedavg", selector=None), 8)
    assert lines[1].partition("loss ")[2] == lines[2].partition("loss ")[2].partition(";")[0]


def test_streams_are_compared():
    """On the CPU they have no effect: the same weights."""
    settings = small_settings(method="fedavg", selector=None)
    lines = gpu_check.compare(torch.device("cpu"), settings, 8, compiler=False)
    assert len(lines) == 2 and lines[1].endswith("weights apart by 0.0e+00")


@pytest.mark.slow
def test_two_devices_are_compared_with_one(tmp_path):
    (line,) = gpu_check.split("cpu", 2, small_settings(method="fedavg", selector=None), tmp_path, 16)
    assert line.startswith("2 devices: ") and float(line.rpartition(" ")[2]) < 1e-5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: `make gpu-check` on a machine with one")
def test_a_pass_on_a_gpu_waits_nowhere():
    settings, device = small_settings(method="fedavg", selector=None), torch.device("cuda")
    walk = gpu_check.ours(settings, gpu_check.images_of(settings, 8), device)
    walk(1)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with pytest.warns(UserWarning, match="synchroniz") as seen:
            walk(2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(seen) == 1, "the read of the mean loss"
