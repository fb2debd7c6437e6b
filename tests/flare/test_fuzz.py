"""Thousands of mutated shareables against the real aggregator: no exception, and no change by one that is refused."""

import contextlib
import copy
import random

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from fedsm.flare import exchange
from fedsm.flare.aggregator import SoftPullAggregator
from fedsm.flare.task import TaskSpec
from fedsm.server.checks import templates_of
from fedsm.server.evaluation_check import evaluation_problem
from fedsm.tracks import server_tracks
from tests.helpers.shareables import IMAGES, context, real_sums
from tests.helpers.small_jobs import SITES, small_settings

SMALL = ["task.unet.channels=[2,4]", "task.selector_net={head: gap, width: 0.02}"]
EACH = 500  # mutants of each of the five cases below


class Bomb:
    """An object that refuses whatever it is asked."""

    def __getattribute__(self, name):
        if name == "__class__":
            return Bomb
        raise RuntimeError("boom")

    def __eq__(self, other):
        raise RuntimeError("boom")

    __hash__ = None


class LyingFile:
    """What FLARE leaves of a tensor that it received to disk, with a file that is not there."""

    file_path = "/nowhere/at/all"

    def materialize(self):
        raise FileNotFoundError(self.file_path)


def odd_values(rng: random.Random) -> list:
    """Plain values that are not what is expected."""
    return [
        None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 0.5, -0.0, float("nan"), float("inf"), 1e308, "", "5",
        "\n\x1b[31m" * 50, b"\x80\x04\x95", [], {}, (), [1, 2, 3], {"train": 1}, {"a": {"b": {}}}, set(), object(),
        Bomb(), lambda: 1, type, complex(1, 2), np.float64(3), np.int64(7), np.array(3), np.array(["x"]),
        np.array([None]), torch.full((), 3e38), torch.tensor([]), DXO(DataKind.WEIGHTS, data={}), Shareable(),
    ]  # fmt: skip


def odd_tensor(rng: random.Random, good: torch.Tensor):
    """A tensor that is not quite what is expected, or no tensor at all."""
    shape, real = tuple(good.shape), good.float()

    def one_value():
        flat = real.clone().flatten()
        if len(flat):
            flat[rng.randrange(len(flat))] = rng.choice([float("nan"), float("inf"), -float("inf"), 1e38, 1e20])
        return flat.reshape(shape)

    makers = [
        one_value, one_value, one_value,
        lambda: good[None], lambda: good.flatten()[:-1], lambda: good[..., None], lambda: good.expand(2, *shape),
        lambda: torch.zeros(0), lambda: torch.zeros(10**6), lambda: torch.empty(shape, device="meta"),
        lambda: good.double() * 1e300, lambda: good.bool(), lambda: good.to(torch.complex64), lambda: real.half() * 1e4,
        lambda: good.to(torch.bfloat16), lambda: good.to(torch.int64), lambda: good.long() + 2**62, lambda: real * 1e9,
        lambda: real.to_sparse(), lambda: torch.quantize_per_tensor(real, 0.1, 0, torch.qint8),
        lambda: real.clone().requires_grad_(), lambda: real.double().numpy(), lambda: np.full(shape, np.nan),
        lambda: np.full(shape, "x"), lambda: np.full(shape, None), lambda: np.zeros(shape, "datetime64[s]"), LyingFile,
    ]  # fmt: skip
    return rng.choice(makers)()


class Mutator:
    """Damages a good shareable in one to three places."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)

    def mutate(self, good: Shareable):
        """A damaged copy, or something else altogether."""
        if self.rng.random() < 0.04:
            return self.rng.choice(
                [*odd_values(self.rng), make_reply(ReturnCode.TASK_ABORTED), {}, Shareable({"DXO": 3})]
            )
        shareable = copy.deepcopy(good)
        for _ in range(self.rng.randint(1, 3)):
            change = self.rng.choice([self._meta, self._meta, self._tensor, self._tensor, self._keys, self._frame])
            with contextlib.suppress(Exception):  # the second mutation may meet what the first one left
                change(shareable)
        return shareable

    def _odd(self):
        return self.rng.choice(odd_values(self.rng))

    def _meta(self, shareable) -> None:
        meta = shareable.get("DXO", {}).get("meta") if isinstance(shareable.get("DXO"), dict) else None
        if not isinstance(meta, dict):
            return
        target, key = meta, self.rng.choice([*meta, "round", "images", "junk"])
        while isinstance(target.get(key), dict) and target[key] and self.rng.random() < 0.75:
            target, key = target[key], self.rng.choice(list(target[key]))
        if self.rng.random() < 0.2:
            target.pop(key, None)
        else:
            target[key] = self._odd()

    def _parts(self, shareable) -> dict:
        frame = shareable.get("DXO")
        data = frame.get("data") if isinstance(frame, dict) else None
        data = data if isinstance(data, dict) else {}
        return {n: p for n, p in data.items() if isinstance(p, DXO) and isinstance(p.data, dict)}

    def _tensor(self, shareable) -> None:
        parts = [p for p in self._parts(shareable).values() if p.data]
        if parts:
            data = self.rng.choice(parts).data
            key = self.rng.choice(list(data))
            data[key] = self._odd() if self.rng.random() < 0.2 else odd_tensor(self.rng, data[key].detach())

    def _keys(self, shareable) -> None:
        parts = self._parts(shareable)
        if not parts:
            return
        name = self.rng.choice(list(parts))
        data = parts[name].data
        change = self.rng.randrange(5)
        if change == 0 and data:
            data.pop(self.rng.choice(list(data)))
        elif change == 1:
            data[self.rng.choice(["extra", "", 5, None, "../x", ("a",)])] = torch.zeros(2)
        elif change == 2:
            shareable["DXO"]["data"].pop(name)
        elif change == 3:
            shareable["DXO"]["data"][self.rng.choice(["other", "selector", 7])] = self.rng.choice([parts[name], 3, {}])
        else:
            parts[name].data = self._odd()

    def _frame(self, shareable) -> None:
        frame = shareable.get("DXO")
        change = self.rng.randrange(4)
        if change == 0 and isinstance(frame, dict):
            frame[self.rng.choice(["kind", "data", "meta"])] = self._odd()
        elif change == 1:
            shareable["DXO"] = self._odd()
        elif change == 2:
            shareable.set_return_code(self.rng.choice([ReturnCode.EXECUTION_EXCEPTION, "nonsense", None, 7]))
            shareable.set_header(exchange.ERROR_HEADER, self._odd())
        elif isinstance(frame, dict) and frame:
            frame.pop(self.rng.choice(list(frame)), None)


def tensors_of(aggregator: SoftPullAggregator) -> dict[str, torch.Tensor]:
    """Everything that the tracks hold, half merged sums too."""
    held = {}
    for name, track in aggregator.tracks.items():
        for stem, tensors in track.files().items():
            held |= {f"{stem}/{k}": v for k, v in tensors.items()}
        for attribute in ("_mean", "_changes"):
            held |= {
                f"{name}/{attribute}/{k}": v for k, v in getattr(getattr(track, attribute, None), "_sums", {}).items()
            }
        held |= {f"{name}/count": torch.tensor(float(getattr(getattr(track, "_mean", None), "count", 0)))}
        held |= {f"{name}/answered/{s}": torch.ones(1) for s in getattr(track, "_answered", ())}
    return held


def good_answer(aggregator: SoftPullAggregator, task: str, settings) -> Shareable:
    rng = torch.Generator().manual_seed(1)
    tracks = {
        name: {
            k: 1e-3 * torch.randn(v.shape, generator=rng).to(v.dtype) if v.is_floating_point() else torch.ones_like(v)
            for k, v in template.items()
        }
        for name, template in templates_of(task, aggregator.tracks).items()
    }
    if task != exchange.TRAIN and "selector" in tracks:
        size = len(tracks["selector"]["sum"])
        rows = real_sums(IMAGES["train"])  # those of the descriptor `image`; of others, any that can be
        if size != len(rows["sum"]):
            some = torch.rand(IMAGES["train"], size, generator=rng, dtype=torch.float64)
            rows |= {"sum": some.sum(0), "outer": (some.T @ some)[*torch.triu_indices(size, size)]}
        tracks["selector"] = rows
    meta = {"round": 5, "images": dict(IMAGES)}
    report = {"score": 0.5, "images": IMAGES["validation"]}
    if task == exchange.TRAIN:
        meta |= {"losses": dict.fromkeys(tracks, 0.5), "reports": {name: dict(report) for name in tracks}}
    if task == exchange.VALIDATE:
        meta["reports"] = {"global": dict(report)}
        if settings.tracks["selector"]["kind"] == "selector_statistics":
            meta["reports"]["selector"] = report | {"accuracies": [0.1, 0.2, 0.3]}
    if task == exchange.EVALUATE:
        models = ["global", *(f"personal.{s}" for s in SITES)]
        dice = dict.fromkeys(settings.task.labels, 0.5)
        images = IMAGES["validation"]
        meta["evaluation"] = {
            "images": images,
            "dice": {m: dict(dice) for m in models},
            "gammas": [
                {"gamma": g, "dice": dict(dice), "selected": dict.fromkeys(models, 0) | {"global": images}}
                for g in settings.gammas
            ],
            "argmax": dict.fromkeys(SITES, 0) | {"site-1": images},
            "mixtures": [
                {"share": share, "flip": flip, "dice": [0.5] * len(settings.gammas)}
                for flip in (False, True)
                for share in settings.shares
            ],
            "majorities": [],
            "deltas": [
                {"delta": delta, "foreign": 0, "dice": [0.5] * len(settings.shares)}
                for delta in [*settings.deltas, None]
            ],
        }
    return exchange.pack(tracks, meta, DataKind.WEIGHT_DIFF)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("task", "method"),
    [
        (exchange.REGISTER, {"selector": "statistics"}),
        (exchange.TRAIN, {"selector": "gradient"}),
        (exchange.TRAIN, {"method": "scaffold"}),
        (exchange.VALIDATE, {"personal": "ditto"}),
        (exchange.EVALUATE, {"selection": "best"}),
    ],
)
def test_no_mutant_raises_and_no_refused_one_changes_anything(task, method):
    """Own generator with a fixed seed. What is accepted (a mutation may be harmless) must leave finite tensors only."""
    settings = small_settings(norm_check="refuse", overrides=SMALL, **method)
    aggregator = SoftPullAggregator()
    aggregator.bind(server_tracks(settings, SITES), SITES, settings)
    if "selector" not in settings.tracks:
        settings.tracks["selector"] = {"kind": "none"}

    def meta_problem(site, meta):
        if task != exchange.EVALUATE:
            return None
        models = ["global", *(f"personal.{s}" for s in SITES), "selector"]
        return evaluation_problem(meta.get("evaluation"), "validation", settings, SITES, models, IMAGES)

    def begin():
        aggregator.begin(TaskSpec("a task", task, 5, meta_problem=meta_problem))

    aggregator.registry.images = {site: dict(IMAGES) for site in SITES}
    good = good_answer(aggregator, task, settings)
    begin()
    assert aggregator.accept(copy.deepcopy(good), context("site-1")), aggregator.results.refused
    begin()
    mutator, accepted, contexts = Mutator(seed=0), 0, {site: context(site) for site in SITES}
    before = {k: v.clone() for k, v in tensors_of(aggregator).items()}
    registered = copy.deepcopy(aggregator.registry.images)
    for i in range(EACH):
        site = SITES[i % 3]
        taken = aggregator.accept(mutator.mutate(good), contexts[site])
        after = tensors_of(aggregator)
        if taken:
            accepted += 1
            assert all(torch.isfinite(v).all() for v in after.values() if v.is_floating_point())
            before = {k: v.clone() for k, v in after.items()}
            registered = copy.deepcopy(aggregator.registry.images)
            begin()
            continue
        assert not aggregator.results.broken
        assert site not in aggregator.results.accepted and len(aggregator.results.refused[site]) <= 300
        assert "\n" not in aggregator.results.refused[site] and "\x1b" not in aggregator.results.refused[site]
        assert before.keys() == after.keys()
        assert all(torch.equal(before[k], after[k]) for k in before), aggregator.results.refused[site]
        assert registered == aggregator.registry.images
    # Of changed sums hardly any are sums that images can have: 10 of 500 registrations are taken.
    assert EACH * 0.01 < accepted < EACH * 0.5, "most mutants are refused, harmless ones are not"
