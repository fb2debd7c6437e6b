"""Several devices at a site: which, how a batch is split, and what is refused. Two processes on the CPU, with gloo."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from fedsm.client import device_link, site_trainer
from fedsm.client.batch_parts import part_of
from fedsm.client.device_plan import plan_of
from fedsm.client.devices import site_devices
from fedsm.client.gpu_failures import GpuFailure
from fedsm.client.site_settings import load_site_settings
from fedsm.client.training_pass import Step
from fedsm.client.work import Aborted
from fedsm.core.errors import UserError
from fedsm.data.dataset import Part
from fedsm.tracks import kind_of
from fedsm.tracks.learner import Learner
from fedsm.tracks.shared_gradients import SharedGradients, check_shareable
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.small_site import CPU, Line, beside_global
from tests.helpers.trainer_site import SITE, furthest, make_trainer, payload_of

SAME = 1e-5
CUDA = torch.device("cuda", 0)
# Every way in which images reach a network through `Learner.descend`, with a penalty, and every ingredient of the loss.
TRACKS = "{global: {kind: fedprox, mu: 0.1}, personal: {kind: ditto, prox: 0.1}, selector: {kind: selector_fedavg}}"
AUGMENT = "task.augment={flip: horizontal, rotate: 15, intensity: 0.1}"


def job(**given):
    overrides = ["loss=dice+ce", "batch_size=5", AUGMENT, *given.pop("overrides", [])]
    return small_settings(rounds=4, **given, overrides=overrides)


def load(folder: Path, text: str):
    (folder / "fedsm_site.yaml").write_text(f"data: /somewhere\n{text}")
    return load_site_settings(folder, folder, "a", fair_share=3)


def trainer_of(settings, folder: Path, data_root: Path, devices: int):
    return make_trainer(settings, folder, data_root, device="cpu", devices=devices)


def test_devices_of_a_site(tmp_path, monkeypatch):
    assert load(tmp_path, "device: cpu\ndevices: 3\n").devices == (CPU,) * 3
    assert load(tmp_path, "device: cpu\n").devices == (CPU,)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    cuda = [torch.device("cuda", number) for number in range(4)]
    assert site_devices(None, 2, tmp_path, "a") == (cuda[0], cuda[1])
    assert site_devices("cuda", [3, 1], tmp_path, "a") == (cuda[3], cuda[1])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("devices: 0\n", "devices must be a number of GPUs from 1 to 64, or a list of GPUs such as [0, 1], got 0"),
        ("devices: []\n", "line 2: devices must be a number of GPUs"),
        ("devices: [0, -1]\n", "devices must be a number of GPUs"),
        ("devices: two\n", "devices must be a number of GPUs"),
        ("devices: [0, 0]\n", "`devices` names a GPU twice"),
        ("device: cpu\ndevices: [0, 1]\n", "`devices` lists GPUs, and `device` is cpu"),
        ("device: cuda:1\ndevices: 2\n", "device 'cuda:1' and `devices` are both set"),
        ("device: cpu\ndevices: 2\ntrainer: inside\n", "several `devices` need a process of their own"),
        ("devices: [2, 5]\ndp: {epsilon: 1, delta: 0.1}\n", "draws its batches and its noise in one process"),
        ("device: cpu\ndevices: 2\ndp: {epsilon: 1, delta: 0.1}\n", "draws its batches and its noise in one process"),
    ],
)
def test_devices_that_cannot_be(text, words, tmp_path):
    with pytest.raises(UserError) as caught:
        load(tmp_path, text)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_several_gpus_where_there_is_none(tmp_path):
    """Not silently on the CPU, where two processes are no faster than one."""
    with pytest.raises(UserError, match="devices 2 asked for, but this machine has no usable CUDA GPU"):
        load(tmp_path, "devices: 2\n")


def test_a_gpu_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="this machine has 2 GPUs; the highest number of a GPU here is 1"):
        site_devices(None, [0, 2], tmp_path, "a")


def test_a_batch_is_dealt_out_in_its_order():
    """5 images over 2 devices: 3 and 2. 1 image: the second device takes it, too, and counts it as nothing."""
    step = Step(torch.tensor([7, 5, 9, 1, 3]), (torch.arange(10).reshape(5, 2),))
    parts = [part_of(step, rank, 2) for rank in range(2)]
    assert [p.rows.tolist() for p in parts] == [[7, 5, 9], [1, 3]]
    assert [p.transforms[0].tolist() for p in parts] == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9]]]
    assert [(p.share, p.empty) for p in parts] == [(0.6, False), (0.4, False)]
    alone = [part_of(Step(torch.tensor([4]), ()), rank, 2) for rank in range(2)]
    assert [(p.rows.tolist(), p.share, p.empty) for p in alone] == [([4], 1.0, False), ([4], 0.0, True)]


def test_parts_of_a_gradient_by_hand():
    """w = 0, x = 1, y = 1, 2, 6 and the loss (w x - y)^2 / 2 + 3 w: g = -(1 + 2 + 6) / 3 + 3 = 0.

    Device 0 has y = 1, 2: 2/3 (-1.5 + 3) = 1. Device 1 has y = 6: 1/3 (-6 + 3) = -1.
    """
    parts = []
    for truth in (torch.tensor([1.0, 2.0]), torch.tensor([6.0])):
        learner = Learner(Line(), 0.1, CPU)
        learner.shared = SharedGradients(lambda flat: parts.append(flat.clone()))
        learner.shared.share = len(truth) / 3
        loss = ((learner.forward(torch.ones(len(truth))) - truth) ** 2).mean() / 2
        learner.descend(loss, penalty=3 * learner.net.w.sum())
    assert [p.tolist() for p in parts] == [[pytest.approx(1)], [pytest.approx(-1)]]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([f"tracks={beside_global('{kind: apfl}')}"], "'apfl' (track 'personal') takes gradients itself"),
        ([f"tracks={beside_global('{kind: per-fedavg}')}"], "'per-fedavg'"),
        ([f"tracks={beside_global('{kind: pfedme}')}"], "'pfedme'"),
        ([f"tracks={beside_global('{kind: fedrep}')}"], "'fedrep'"),
        (["tracks={global: {kind: fedavg}, selector: {kind: selector_gradient}}"], "'selector_gradient'"),
        (["task.unet.norm=BATCH"], "BatchNorm2d looks at the whole batch"),
    ],
)
def test_what_several_devices_cannot_train(overrides, words):
    settings = small_settings(selector="statistics", overrides=overrides)
    kinds = {name: kind_of(name, spec).client for name, spec in settings.tracks.items()}
    with pytest.raises(UserError) as caught:
        check_shareable(settings, kinds)
    assert words in str(caught.value) and "devices" in caught.value.remedy


def test_gradient_kinds_are_refused_before_images_are_read(tmp_path, data_root):
    with pytest.raises(UserError, match="'selector_gradient'"):
        trainer_of(job(selector="gradient"), tmp_path, Path("/nowhere"), 2)


def test_the_oldest_gpu_decides_in_what_all_train(tmp_path, monkeypatch):
    settings, site = small_settings(), replace(load(tmp_path, "device: cpu\n"), devices=(CUDA, torch.device("cuda", 1)))
    for newest, oldest, dtype in (((9, 0), (8, 0), torch.bfloat16), ((9, 0), (7, 5), torch.float16)):
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda device, n=newest, o=oldest: n if device == CUDA else o
        )
        assert site_trainer._autocast(settings, site) == dtype


@pytest.mark.process
def test_two_processes_give_the_weights_of_one(tmp_path, data_root):
    """Batches of 5 over 6 images: the last one has fewer images than there are devices."""
    settings = job(overrides=[f"tracks={TRACKS}"])
    one, two = (trainer_of(settings, tmp_path / str(count), data_root, count) for count in (1, 2))
    assert len(one.parts["train"]) % 5 == 1
    try:
        for number in (1, 2):
            alone, split = (t.train(number, payload_of(settings, number)) for t in (one, two))
            assert furthest(alone[0], split[0]) < SAME
            assert alone[2] == pytest.approx(split[2], abs=SAME)
            assert max(v.abs().max() for group in alone[0].values() for v in group.values()) > 100 * SAME
            (pid,) = two.others.pids
        with pytest.raises(Aborted):
            two.train(3, payload_of(settings, 3), lambda: True)
        assert two.others.pids == [] and not psutil.pid_exists(pid), "a pass that is stopped ends the others"
    finally:
        two.others.end()


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"method": "scaffold"}, {"method": "fedsm-ensemble"},
        {"personal": "finetune", "selector": "statistics"}, {"personal": "fedbn", "selector": "fedavg"},
    ],
)  # fmt: skip
def test_other_kinds_give_the_same_with_two_processes(given, tmp_path, data_root):
    """Not compared: SCAFFOLD's controls, which are differences of weights times 1 / (steps * learning rate).

    With the batches of `job`, 62 of 36,412 weights of the ensemble's selector were more than 1e-6 apart, the furthest
    2.4e-5: Adam makes whole steps of gradients that are hardly more than rounding.
    """
    settings = small_settings(rounds=4, **given)
    one, two = (trainer_of(settings, tmp_path / str(count), data_root, count) for count in (1, 2))
    try:
        for number in (1, 2):
            alone, split = (t.train(number, payload_of(settings, number))[0] for t in (one, two))
            nets = {n: {k: v for k, v in group.items() if not k.startswith("control")} for n, group in alone.items()}
            assert furthest(nets, split) < SAME
        own, other = ({n: t.learner.net.state_dict() for n, t in s.tracks.items() if not t.sums} for s in (one, two))
        assert furthest(own, other) < SAME, "also those that do not travel"
    finally:
        two.others.end()


SAYS = """
import json, struct, sys, socket
sock = socket.socket(fileno=int(sys.argv[-1]))
text = json.dumps({"header": %s, "layout": []}).encode()
sock.sendall(struct.pack("!Q", len(text)) + text)
sock.recv(1 << 20)
"""


def failing(script: str, tmp_path: Path) -> UserError:
    """What a trainer with two devices says when the second runs this in place of its part."""
    settings = small_settings()
    site = replace(load(tmp_path, "device: cpu\ndevices: 2\n"), state_dir=tmp_path)
    part = Part(torch.zeros(2, 3, 32, 32), torch.zeros(2, 2, 32, 32))
    plan = plan_of(site, settings, SITE, 1, SITES, "0123456789ab", None, part)
    link = device_link.DeviceLink(plan, site.devices, {}, (sys.executable, "-c", script))
    with pytest.raises(GpuFailure) as caught:
        link.train({}, {}, {}, [], lambda step: None, lambda steps, before: {})
    assert link.pids == []
    return caught.value


@pytest.mark.process
def test_what_a_gpu_says_in_another_process_is_passed_on(tmp_path):
    said = {"failure": "out of memory on cuda:1: 2 GiB asked for", "remedy": "halve batch_size (to 4)"}
    error = failing(SAYS % json.dumps(said | {"public": "out of GPU memory at the site"}), tmp_path)
    assert str(error) == (
        "site 'site-2': device process 2 of 2 (cpu): out of memory on cuda:1: 2 GiB asked for; halve batch_size (to 4)"
    )
    assert error.public == "out of GPU memory at the site; the next task starts it again"


@pytest.mark.process
def test_a_process_that_ends_without_a_word_is_named(tmp_path):
    assert "device process 2 of 2 (cpu) ended with exit code 7" in str(failing("raise SystemExit(7)", tmp_path))
