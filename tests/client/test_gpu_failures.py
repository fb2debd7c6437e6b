"""Failures of a GPU in one line. There is none here: the exceptions are those of torch, raised by hand."""

import pytest
import torch

from fedsm.client import devices, site_trainer
from fedsm.client.failures import explain
from fedsm.client.gpu_failures import GpuFailure, gpu_failure, why_no_cuda
from fedsm.core.errors import UserError

CUDA = torch.device("cuda", 1)
OUT = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of 8.00 GiB."


def test_out_of_memory_says_what_was_asked_what_was_free_and_what_to_halve(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**29, 2**33))
    found = gpu_failure(torch.cuda.OutOfMemoryError(OUT), CUDA, 8, 256)
    assert str(found) == (
        "out of memory on cuda:1: 2.50 GiB asked for, 0.50 GiB of 8.00 GiB free; halve batch_size (to 4), or end other"
        " programs that use the GPU (nvidia-smi)"
    )
    assert found.public == "out of GPU memory at the site: halve batch_size (to 4)"


def test_after_batch_size_it_is_size(monkeypatch):
    """A context that is broken does not say what is free either."""

    def broken(device):
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "mem_get_info", broken)
    found = gpu_failure(torch.cuda.OutOfMemoryError("no numbers"), CUDA, 1, 256)
    assert "more asked for" in str(found) and "batch_size is 1: halve size (to 128)" in str(found)


@pytest.mark.parametrize(
    ("error", "what", "remedy"),
    [
        (RuntimeError("Found no NVIDIA driver on your system."), "no NVIDIA driver", "device: cpu"),
        (RuntimeError("The NVIDIA driver on your system is too old (found 11040)"), "older than", "update the NVIDIA"),
        (torch.AcceleratorError("CUDA error: invalid device ordinal"), "is not there", "nvidia-smi -L"),
        (
            torch.AcceleratorError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
            "another job holds the GPU", "nvidia-smi",
        ),
        (
            torch.AcceleratorError("CUDA error: all CUDA-capable devices are busy or unavailable"),
            "another job holds the GPU", "name another `device`",
        ),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "no code for", "build"),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), "failed", "starts again"),
        (torch.AcceleratorError("CUDA error: something new"), "the GPU failed", "nvidia-smi"),
        (AssertionError("Torch not compiled with CUDA enabled"), "without CUDA", "device: cpu"),
    ],
)  # fmt: skip
def test_what_cuda_says_in_words(error, what, remedy):
    found = gpu_failure(error, CUDA, 8, 256)
    assert what in found.message and remedy in found.remedy
    assert "\n" not in str(found) and what in found.public


@pytest.mark.parametrize("error", [RuntimeError("shape '[2]' is invalid"), ValueError("CUDA"), UserError("no images")])
def test_other_errors_are_left_alone(error):
    assert gpu_failure(error, CUDA, 8, 256) is None


def test_a_gpu_that_failed_ends_the_trainers_process():
    """`explain` keeps it as it is, and the process asks for its class."""
    assert explain(error := GpuFailure("gone")) is error


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_why_there_is_no_gpu():
    assert "without CUDA" in why_no_cuda() or "driver" in why_no_cuda()


def test_a_number_that_no_gpu_has(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.site_devices("cuda:1", None, tmp_path, "a") == (CUDA,)
    with pytest.raises(UserError, match="'cuda:2' asked for, but this machine has 2 GPUs; use cuda:0 to cuda:1"):
        devices.site_devices("cuda:2", None, tmp_path, "a")


def test_a_task_that_runs_out_of_memory_says_so(monkeypatch):
    """Whatever the task was doing."""

    def full(self, *args):
        raise torch.cuda.OutOfMemoryError(OUT)

    trainer = object.__new__(site_trainer.SiteTrainer)
    trainer.name, trainer.device = "a", CUDA
    trainer.settings = type("Settings", (), {"batch_size": 8, "size": 256})
    monkeypatch.setattr(site_trainer.SiteTrainer, "_do", full)
    with pytest.raises(GpuFailure, match="2.50 GiB asked for") as caught:
        trainer.do("train", {}, {}, lambda: False)
    assert caught.value.site == "a"
