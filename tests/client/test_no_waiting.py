"""A round's batches never make the host wait for the device, and what a CPU can show of training on one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsm.client import site_trainer, training_pass
from fedsm.client.site_settings import load_site_settings
from fedsm.client.site_trainer import SiteTrainer
from fedsm.data import staging
from fedsm.tracks import learner, precision
from fedsm.tracks.shared_gradients import SharedGradients, share_gradients
from tests.helpers.no_waiting import Waits, no_waiting
from tests.helpers.small_jobs import SITES, small_settings, write_site
from tests.helpers.trainer_site import SITE, payload_of, place_of

# Every selector, and every personal kind whose step is its own.
JOBS = {
    "fedsm, gradient": {"selector": "gradient"},
    "fedsm, fedavg": {"selector": "fedavg"},
    "fedsm, statistics": {"selector": "statistics"},
    "fedsm-ensemble": {"method": "fedsm-ensemble"},
    "scaffold": {"method": "scaffold"},
    "ditto": {"personal": "ditto"},
    "apfl": {"personal": "apfl"},
    "per-fedavg": {"personal": "per-fedavg", "overrides": ["tracks.personal.variant=hf"]},
    "pfedme": {"personal": "pfedme"},
}
AUGMENT = "task.augment={flip: horizontal, rotate: 15, intensity: 0.1}"


class NoCopies:
    """Batches that are on the device already."""

    def __init__(self):
        self.begun, self.given = 0, 0

    def start(self, tensors):
        self.begun += 1
        return tensors

    def ready(self, tensors):
        self.given += 1
        assert self.begun >= self.given
        return tensors


def job(**given):
    overrides = given.pop("overrides", [])
    return small_settings(**given | {"rounds": 4, "overrides": [*overrides, AUGMENT]})


def trainer_of(settings, folder: Path, data_root: Path, **site) -> SiteTrainer:
    place = place_of(folder, data_root)
    file = Path(place.local) / "fedsm_site.yaml"
    file.write_text(file.read_text() + "".join(f"{key}: {value}\n" for key, value in site.items()))
    own = load_site_settings(Path(place.local), Path(place.workspace), SITE, 1)
    return SiteTrainer(settings, own, SITE, SITES.index(SITE), SITES, "0123456789ab")


def as_on_cuda(monkeypatch) -> None:
    """Adam in one kernel, and batches made in a thread one ahead: what a CPU has of the way on CUDA."""

    def staged(loads, device, pin=True):
        with ThreadPoolExecutor(1) as pool:
            yield from staging.one_ahead(loads, pool, NoCopies())

    monkeypatch.setattr(training_pass, "staged", staged)
    monkeypatch.setattr(learner, "fused_adam", lambda device, autocast: True)


def watched(monkeypatch) -> list[int]:
    """The pass over a round's batches fails where it waits; its steps are counted."""
    steps = []

    def walk(*given, **more):
        *rest, before = given
        with no_waiting():
            return training_pass.train_on(*rest, lambda step: (steps.append(1), before(step)), **more)

    monkeypatch.setattr(site_trainer, "train_on", walk)
    return steps


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("numbers", ["bfloat16", "float16"])
def test_a_round_does_not_wait(name, numbers, tmp_path, data_root, monkeypatch):
    """Also with a scaled loss: 12 images of site-2, of which 8 or more are for training, in batches of 4."""
    as_on_cuda(monkeypatch)
    steps = watched(monkeypatch)
    settings = job(**JOBS[name])
    trainer = trainer_of(settings, tmp_path, data_root, precision=numbers)
    updates, _, losses = trainer.train(1, payload_of(settings, 1))
    assert len(steps) >= 2 and updates and np.isfinite(list(losses.values())).all()


@pytest.mark.parametrize("numbers", ["bfloat16", "float16"])
def test_a_batch_that_is_split_does_not_wait(numbers, tmp_path, data_root, monkeypatch):
    """The sum over devices itself waits on the device: here there is one, and it is its own sum."""
    as_on_cuda(monkeypatch)
    steps, sums = watched(monkeypatch), []
    settings = job(selector="fedavg")
    trainer = trainer_of(settings, tmp_path, data_root, precision=numbers)
    share_gradients(trainer.tracks, SharedGradients(sums.append))
    trainer.train(1, payload_of(settings, 1))
    assert len(sums) == 3 * len(steps), "one message a network and step"


@pytest.mark.parametrize(
    "wait",
    [
        lambda t: t.sum().item(), lambda t: t.tolist(), lambda t: t.cpu(), lambda t: t.to("cpu"), lambda t: t.numpy(),
        lambda t: bool(t.sum() > 0), lambda t: t[t > 0], lambda t: t.nonzero(), lambda t: float(t.sum()),
        lambda t: torch.equal(t, t),
    ],
)  # fmt: skip
def test_what_waits_is_seen(wait):
    with no_waiting(), pytest.raises(Waits):
        wait(torch.ones(3))


def test_a_thread_one_batch_ahead_changes_no_bit(tmp_path, data_root, monkeypatch):
    """The same updates and losses as one batch after the other, with augmentation from the seed."""
    settings = job(selector="gradient")
    plain = trainer_of(settings, tmp_path / "plain", data_root).train(1, payload_of(settings, 1))

    def staged(loads, device, pin=True):
        with ThreadPoolExecutor(1) as pool:
            yield from staging.one_ahead(loads, pool, NoCopies())

    monkeypatch.setattr(training_pass, "staged", staged)
    ahead = trainer_of(settings, tmp_path / "ahead", data_root).train(1, payload_of(settings, 1))
    assert plain[2] == ahead[2]
    assert all(torch.equal(v, ahead[0][name][key]) for name, group in plain[0].items() for key, v in group.items())


def test_batches_are_copied_one_ahead_in_their_order():
    copies = NoCopies()
    with ThreadPoolExecutor(1) as pool:
        loads = [lambda i=i: (torch.tensor(i),) for i in range(5)]
        seen = []
        for (value,) in staging.one_ahead(loads, pool, copies):
            seen.append(value.item())
            assert copies.begun == min(5, len(seen) + 1)
    assert seen == [0, 1, 2, 3, 4]


def test_a_batch_that_cannot_be_read_ends_the_pass():
    def broken():
        raise OSError("gone")

    with ThreadPoolExecutor(1) as pool, pytest.raises(OSError, match="gone"):
        list(staging.one_ahead([lambda: (torch.ones(1),), broken], pool, NoCopies()))


def test_float16_scales_the_loss_and_survives_a_restart():
    """Gradients below float16's smallest number (6e-8) are not lost; a step with infinite ones is left out."""
    line = torch.nn.Linear(1, 1, bias=False)
    own = learner.Learner(line, 0.1, torch.device("cpu"), torch.float16)
    before = line.weight.item()
    own.descend(own.forward(torch.ones(1, 1)).sum() * torch.inf)
    assert line.weight.item() == before and own.moments()["scale.scale"] == 2**15, "halved"
    own.descend(own.forward(torch.ones(1, 1)).sum() * 1e-8)
    assert line.weight.item() != before
    again = learner.Learner(torch.nn.Linear(1, 1, bias=False), 0.1, torch.device("cpu"), torch.float16)
    again.load_moments(own.moments())
    assert again.moments().keys() == own.moments().keys() and again.moments()["scale.scale"] == 2**15


def test_what_a_site_trains_in():
    """The job may forbid it; the CPU uses it only where the site says so."""
    cpu = torch.device("cpu")
    assert precision.autocast_dtype(cpu, True) is None
    assert precision.autocast_dtype(cpu, True, "bfloat16") == torch.bfloat16
    assert precision.autocast_dtype(cpu, False, "bfloat16") is None
    assert precision.autocast_dtype(cpu, True, "float32") is None


@pytest.mark.parametrize(("capability", "dtype"), [((8, 0), torch.bfloat16), ((7, 5), torch.float16)])
def test_an_older_gpu_trains_in_float16(capability, dtype, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert precision.autocast_dtype(torch.device("cuda"), True) == dtype


@pytest.mark.slow
def test_dice_with_autocast_is_that_of_float32(tmp_path):
    """A site of 192 images, trained until it segments and its score stands still: within 0.01.

    With few images, or a rate that stays high, two runs in float32 that differ in one bit are farther apart than that.
    """
    for seed, site in enumerate(SITES):
        write_site(tmp_path / "data" / site, 192 if site == SITE else 8, seed)
    settings = small_settings(selector="statistics", rounds=32, lr=1e-2, schedule="cosine")
    dice: dict[str, dict[str, float]] = {}
    for numbers in ("float32", "bfloat16", "float16"):
        trainer = trainer_of(settings, tmp_path / numbers, tmp_path / "data", precision=numbers)
        weights = payload_of(settings, 1)
        for number in range(1, settings.rounds + 1):
            sent = {name: dict(group) for name, group in weights.items()}
            updates, reports, _ = trainer.train(number, sent)
            for name in ("global", "personal"):
                weights[name] = {key: value + updates[name][key] for key, value in weights[name].items()}
        dice[numbers] = {name: reports[name]["score"] for name in ("global", "personal")}
    for name, plain in dice["float32"].items():
        assert plain > 0.95, dice
        assert all(abs(found[name] - plain) < 0.01 for found in dice.values()), dice
