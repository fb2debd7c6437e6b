"""`compile: true` at a site: the compiler is tried before anything costs time, and (slow) rounds are the same."""

from pathlib import Path

import pytest
import torch

from fedsm.client import compiler, site_trainer
from fedsm.client.compiler import check_compiler_there, prepare_compiler
from fedsm.client.site_settings import load_site_settings
from fedsm.core.errors import UserError
from tests.helpers.small_jobs import small_settings
from tests.helpers.small_site import CPU
from tests.helpers.trainer_site import furthest, make_trainer, payload_of

SAME = 1e-4  # of weights that Adam moves by 1e-3 a step: a tenth of one


def load(folder: Path, text: str):
    (folder / "fedsm_site.yaml").write_text(f"data: /somewhere\ndevice: cpu\n{text}")
    return load_site_settings(folder, folder, "a", fair_share=1)


def test_off_unless_asked_for(tmp_path):
    assert not load(tmp_path, "").compile
    assert load(tmp_path, "compile: yes\n").compile


def test_without_a_compiler_the_site_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError) as caught:
        load(tmp_path, "compile: true\n")
    assert "compile: true, but this machine has no C++ compiler (g++); install g++" in str(caught.value)
    assert not load(tmp_path, "").compile


def test_gpus_need_triton(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="this Python has no triton"):
        check_compiler_there(torch.device("cuda"), tmp_path, "a")


def test_not_with_private_gradients(tmp_path):
    with pytest.raises(UserError, match="`dp` looks at the gradient of each image"):
        load(tmp_path, "compile: true\ndp: {epsilon: 1, delta: 0.1}\n")


@pytest.fixture
def broken(monkeypatch):
    """A compiler that is there and does not work."""

    def fails(function, **options):
        def run(*args):
            raise RuntimeError("CppCompileError: fatal error: Python.h:\nNo such file or directory")

        return run

    monkeypatch.setattr(torch, "compile", fails)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # it is put back afterwards


def test_a_compiler_that_does_not_work(broken, tmp_path):
    with pytest.raises(UserError) as caught:
        prepare_compiler(CPU, tmp_path, "a")
    assert "Python.h: No such file or directory" in str(caught.value) and "python3-dev" in caught.value.remedy
    assert caught.value.public == "compile: true, but the compiler of this machine does not work"


def test_it_is_tried_before_images_are_read(broken, tmp_path, data_root, monkeypatch):
    monkeypatch.setattr(site_trainer, "load_site", lambda *args: pytest.fail("images were read"))
    with pytest.raises(UserError, match="does not work"):
        make_trainer(small_settings(), tmp_path, data_root, compile=True)


@pytest.mark.slow
def test_compiled_rounds_are_the_same_rounds(tmp_path, data_root, monkeypatch):
    """Two epochs of 4 + 2 images, twice: one graph for both networks, none is broken or made again."""
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    settings = small_settings(selector="statistics", rounds=4, overrides=["local_epochs=2"])
    plain = make_trainer(settings, tmp_path / "plain", data_root)
    fast = make_trainer(settings, tmp_path / "compiled", data_root, compile=True)
    graphs = []
    for number in (1, 2):
        one, other = (t.train(number, payload_of(settings, number)) for t in (plain, fast))
        graphs.append(counters["stats"]["unique_graphs"])
        far = furthest(one[0], other[0])
        assert 0 < far < SAME and one[2] == pytest.approx(other[2], abs=1e-4), far
        assert one[0]["global"].keys() == other[0]["global"].keys()
    assert graphs == [2, 2], "that of the trial, and that of the U-Nets"
    assert not counters["graph_break"] and not counters["recompiles"]
    assert plain.tracks["personal"].state().keys() == fast.tracks["personal"].state().keys()
    assert list((tmp_path / "compiled").rglob("compiled/**/*.so")), "compiled code is kept below the site's state"
