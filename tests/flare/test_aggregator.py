"""Every shareable is checked; a refused one is named with its reason and changes nothing."""

import weakref

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from fedsm.core.tensors import payload_bytes
from fedsm.flare import exchange
from fedsm.flare.aggregator import SoftPullAggregator
from fedsm.flare.task import TaskSpec
from fedsm.tracks import server_tracks
from fedsm.tracks.base import TRAIN
from tests.helpers.shareables import IMAGES, context, real_sums, snapshot, update
from tests.helpers.small_jobs import SITES, small_settings


def test_a_good_answer_is_merged(aggregator):
    before = snapshot(aggregator)
    assert aggregator.accept(update(aggregator), context("site-1"))
    aggregator.aggregate(context("site-1"))
    after = snapshot(aggregator)
    key = next(k for k in before if k.startswith("global/"))
    assert torch.allclose(after[key], before[key] + 1)
    assert list(aggregator.results.accepted) == ["site-1"]
    assert aggregator.results.up["site-1"] == payload_bytes(exchange.unpack(update(aggregator))[1])


def test_numpy_and_float64_are_taken(aggregator):
    shareable = update(aggregator)
    for part in shareable["DXO"]["data"].values():
        part.data = {k: v.double().numpy() for k, v in part.data.items()}
    assert aggregator.accept(shareable, context("site-1"))
    aggregator.aggregate(context("site-1"))
    assert all(v.dtype == torch.float32 for v in aggregator.tracks["global"].weights.values())


def damaged(aggregator, how: str) -> Shareable:
    shareable = update(aggregator)
    parts = shareable["DXO"]["data"]
    weights = parts["personal"].data
    key = list(weights)[3]
    if how == "nan":
        weights[key] = torch.full_like(weights[key], float("nan"))
    elif how == "inf":
        weights[key].view(-1)[0] = float("inf")
    elif how == "huge":
        weights[key] = np.full(weights[key].shape, 1e300)
    elif how == "shape":
        weights[key] = weights[key][None]
    elif how == "missing key":
        del weights[key]
    elif how == "extra key":
        weights["backdoor"] = torch.zeros(1)
    elif how == "text":
        weights[key] = "weights"
    elif how == "missing track":
        del parts["selector"]
    elif how == "extra track":
        parts["other"] = DXO(DataKind.WEIGHT_DIFF, data={"w": torch.zeros(1)})
    elif how == "no dxo inside":
        parts["personal"] = dict(weights)
    return shareable


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("nan", "NaN"), ("inf", "NaN or infinite"), ("huge", "NaN or infinite"), ("shape", "shape"),
        ("missing key", "is missing"), ("extra key", "unexpected entry 'backdoor'"), ("text", "expected a tensor"),
        ("missing track", "tracks are"), ("extra track", "tracks are"), ("no dxo inside", "is no DXO"),
    ],
)  # fmt: skip
def test_damaged_tensors_are_refused_and_change_nothing(aggregator, how, reason):
    before = snapshot(aggregator)
    assert not aggregator.accept(damaged(aggregator, how), context("site-2"))
    assert reason in aggregator.results.refused["site-2"]
    after = snapshot(aggregator)
    assert all(torch.equal(before[k], after[k]) for k in before)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"round": 4}, "round 4, expected 5"),
        ({"round": "5"}, "round '5'"),
        ({"round": None}, "round None"),
        ({"images": IMAGES | {"train": 0}}, "train images is 0"),
        ({"images": IMAGES | {"train": -3}}, "positive"),
        ({"images": IMAGES | {"train": 2.5}}, "positive whole"),
        ({"images": IMAGES | {"train": True}}, "positive whole"),
        ({"images": IMAGES | {"train": 10**9}}, "registered 10"),
        ({"images": None}, "missing"),
        ({"reports": {"global": {"score": float("nan"), "images": 4}}}, "not a number in [0, 1]"),
        ({"reports": {"global": {"score": 1.5, "images": 4}}}, "not a number in [0, 1]"),
        ({"reports": {"global": {"score": 0.5, "images": 400}}}, "malformed"),
        ({"reports": {"nonsense": {}}}, "malformed"),
        ({"reports": "good"}, "malformed"),
        ({"reports": {"global": {"score": 0.5, "images": 4, "accuracies": 5}, "selector": 3}}, "malformed"),
        ({"losses": "low"}, "losses are malformed"),
        ({"losses": {"global": "low"}}, "a loss is no number"),
        ({"losses": {"global": float("nan")}}, "a loss is no number"),
        ({"losses": {"secret": 0.5}}, "losses are malformed"),
    ],
)
def test_damaged_meta_is_refused(aggregator, changes, reason):
    before = snapshot(aggregator)
    assert not aggregator.accept(update(aggregator, **changes), context("site-2"))
    assert reason in aggregator.results.refused["site-2"]
    after = snapshot(aggregator)
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_other_refusals(aggregator):
    assert not aggregator.accept(update(aggregator), context("stranger"))
    assert "not a site" in aggregator.results.refused["stranger"]
    assert not aggregator.accept(make_reply(ReturnCode.EXECUTION_EXCEPTION), context("site-1"))
    assert aggregator.results.refused["site-1"] == ReturnCode.EXECUTION_EXCEPTION
    assert not aggregator.accept(Shareable(), context("site-1"))
    assert not aggregator.accept(DXO(DataKind.WEIGHTS, data={"w": torch.zeros(1)}).to_shareable(), context("site-1"))
    assert "expected COLLECTION" in aggregator.results.refused["site-1"]


def test_a_second_answer_is_refused_and_the_first_one_counts(aggregator):
    before = snapshot(aggregator)
    assert aggregator.accept(update(aggregator), context("site-1"))
    assert not aggregator.accept(update(aggregator), context("site-1"))
    assert "site-1" not in aggregator.results.refused
    aggregator.aggregate(context("site-1"))
    key = next(k for k in before if k.startswith("personal.site-1/"))
    assert torch.allclose(snapshot(aggregator)[key], before[key] + 1)


def test_a_site_that_did_not_register_is_refused(aggregator):
    del aggregator.registry.images["site-3"]
    assert not aggregator.accept(update(aggregator), context("site-3"))
    assert "has not registered" in aggregator.results.refused["site-3"]


def test_statistics_must_be_of_the_sites_images():
    """n = 0 would be divided by after the last round, and n = 10^9 would own the covariance."""
    aggregator = SoftPullAggregator()
    settings = small_settings(selector="statistics")
    aggregator.bind(server_tracks(settings, SITES), SITES, settings)
    sums = real_sums(10)
    for n, good in ((0.0, False), (1e9, False), (10.0, True)):
        aggregator.begin(TaskSpec("a task", exchange.REGISTER, 0))
        shareable = exchange.pack({"selector": sums | {"n": torch.tensor(n)}}, {"round": 0, "images": IMAGES})
        assert aggregator.accept(shareable, context("site-1")) is good


@pytest.mark.parametrize("accuracies", [None, 5, [0.5], [0.5, 0.5, 2.0], ["a", "b", "c"]])
def test_accuracies_must_be_one_a_shrinkage(accuracies):
    aggregator = SoftPullAggregator()
    settings = small_settings(selector="statistics")
    aggregator.bind(server_tracks(settings, SITES), SITES, settings)
    aggregator.registry.images["site-1"] = IMAGES
    aggregator.begin(TaskSpec("a task", exchange.VALIDATE, 3))
    report = {"score": 0.5, "images": 4, "accuracies": accuracies}
    shareable = exchange.pack({}, {"round": 3, "images": IMAGES, "reports": {"selector": report}})
    assert not aggregator.accept(shareable, context("site-1"))
    assert "accuracies" in aggregator.results.refused["site-1"]


def test_an_answer_that_breaks_the_check_itself_is_refused(aggregator, monkeypatch):
    monkeypatch.setattr(aggregator, "_meta_problem", lambda *a: 1 / 0)
    assert not aggregator.accept(update(aggregator), context("site-1"))
    assert aggregator.results.refused["site-1"] == "malformed answer (ZeroDivisionError)"


class OnDisk:
    """A tensor as FLARE hands it over when it was received to the disk."""

    def __init__(self, like: torch.Tensor, read: list):
        self._like, self._read = like, read

    def materialize(self) -> torch.Tensor:
        tensor = torch.ones_like(self._like)
        self._read.append(weakref.ref(tensor))
        return tensor


def test_each_track_of_an_answer_is_freed_when_it_was_merged(aggregator, monkeypatch):
    """So that the server holds one network of an answer while it changes the site's own."""
    read: dict[str, list] = {name: [] for name in aggregator.tracks}
    tracks = {
        name: {key: OnDisk(value, read[name]) for key, value in track.expects(TRAIN).items()}
        for name, track in aggregator.tracks.items()
    }
    alive = []
    personal = aggregator.tracks["personal"]
    monkeypatch.setattr(personal, "accept", lambda *args: alive.extend(ref() is not None for ref in read["global"]))
    answer = exchange.pack(tracks, {"round": 5, "images": IMAGES}, DataKind.WEIGHT_DIFF)
    assert aggregator.accept(answer, context(SITES[0])), aggregator.results.refused
    integers = sum(not value.is_floating_point() for value in aggregator.tracks["global"].expects(TRAIN).values())
    assert alive and sum(alive) == integers, "counters wait for the site with most images"
