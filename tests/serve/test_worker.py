"""Requests that wait share batches: the same result as alone, each its turn, and what is cancelled is not computed."""

import threading
from concurrent.futures import CancelledError

import pytest
import torch

from fedsm.serve.worker import Worker
from fedsm.super_model.model import SuperModel
from tests.helpers.small_model import site_images, write_super_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return SuperModel.load(write_super_model(tmp_path_factory.mktemp("model")), "cpu")


class Watched:
    """A super model that notes its batches, and waits before the first until it is told."""

    def __init__(self, model):
        self.model, self.begin, self.started = model, threading.Event(), threading.Event()
        self.batches: list[tuple[int, dict]] = []
        self.votes: list[int] = []
        self.policy_for, self.rule = model.policy_for, model.rule

    def select(self, pixels, policy):
        self.votes.append(len(pixels))
        return self.model.select(pixels, policy)

    def predict_batch(self, pixels, **options):
        self.started.set()
        assert self.begin.wait(30)
        self.batches.append((len(pixels), options))
        if options.get("site") == "nobody":
            raise KeyError("nobody")
        return self.model.predict_batch(pixels, **options)


@pytest.fixture
def watched(model):
    return Watched(model)


@pytest.fixture
def worker(watched):
    worker = Worker(watched, 4)
    yield worker
    watched.begin.set()
    worker.close()


def submit_all(worker, watched, *asked):
    """Submits while the worker is busy with a first image."""
    worker.submit(torch.zeros(1, 3, 32, 32), {})
    assert watched.started.wait(30)
    futures = [worker.submit(*each) for each in asked]
    watched.begin.set()
    return futures


def test_batches_give_what_single_images_give(model, worker, watched):
    asked = [(site_images(model.settings, i % 2, 1 + i % 3), {}) for i in range(7)]
    for (pixels, _), future in zip(asked, submit_all(worker, watched, *asked), strict=True):
        expected, found = model.predict_batch(pixels), future.result(30)
        torch.testing.assert_close(found.probabilities, expected.probabilities, atol=1e-5, rtol=0)
        assert found.selection.choices.tolist() == expected.selection.choices.tolist()
    sizes = [size for size, _ in watched.batches]
    assert sum(sizes[1:]) == 13 and max(sizes) == 4 and len(sizes) <= 6


def test_a_picture_does_not_wait_for_a_volume(model, worker, watched):
    volume, picture = submit_all(
        worker, watched, (site_images(model.settings, 0, 40), {}), (site_images(model.settings, 1, 1), {})
    )
    done: list[int] = []
    picture.add_done_callback(lambda _: done.append(len(watched.batches)))
    assert len(volume.result(30).weights) == 40 and len(picture.result(30).weights) == 1
    assert done[0] <= 2 and [size for size, _ in watched.batches] == [1, *[4] * 10, 1]


def test_one_model_for_a_volume(tmp_path):
    """6 slices like site-2's and 3 like site-1's: all 9 get site-2's network, in batches of 4, after batches of votes.
    A picture between them keeps its own, and does not wait for the volume."""
    model = SuperModel.load(write_super_model(tmp_path, policy={"majority": True}), "cpu")
    watched = Watched(model)
    worker = Worker(watched, 4)
    mixed = torch.cat([site_images(model.settings, k, n) for k, n in ((0, 3), (1, 6))])
    volume, forced, picture = submit_all(
        worker, watched, (mixed, {}), (mixed[:2], {"site": "site-1"}), (site_images(model.settings, 0, 1), {})
    )
    done: list[int] = []
    picture.add_done_callback(lambda _: done.append(len(watched.batches)))
    assert volume.result(30).selection.choices.tolist() == [2] * 9
    assert picture.result(30).selection.choices.tolist() == [1]
    assert forced.result(30).selection.choices.tolist() == [1, 1]
    worker.close()
    assert sum(watched.votes) == 9 and max(watched.votes) <= 4 and done[0] <= 3
    expected = model.predict_batch(mixed, site="site-2").probabilities
    torch.testing.assert_close(volume.result().probabilities, expected, atol=1e-6, rtol=0)


def test_other_options_are_other_batches(model, worker, watched):
    images = site_images(model.settings, 0, 2)
    futures = submit_all(
        worker, watched, *((images, {"site": s} if s else {}) for s in (None, "site-1", None, "site-2"))
    )
    assert [f.result(30).weights.argmax(1).tolist() for f in (futures[1], futures[3])] == [[1, 1], [2, 2]]
    assert sorted(size for size, _ in watched.batches[1:]) == [2, 2, 4]


def test_an_error_is_told_to_who_asked(model, worker, watched):
    images = site_images(model.settings, 0, 1)
    bad, good = submit_all(worker, watched, (images, {"site": "nobody"}), (images, {}))
    with pytest.raises(KeyError):
        bad.result(30)
    assert len(good.result(30).weights) == 1


def test_what_is_cancelled_is_not_computed(model, worker, watched):
    worker.submit(torch.zeros(1, 3, 32, 32), {})
    assert watched.started.wait(30)
    gone, last = (worker.submit(site_images(model.settings, 0, 8), {}) for _ in range(2))
    assert gone.cancel()
    watched.begin.set()
    last.result(30)
    assert sum(size for size, _ in watched.batches) == 9


def test_close_cancels_what_waits(model, watched):
    worker = Worker(watched, 4)
    worker.submit(torch.zeros(1, 3, 32, 32), {})
    assert watched.started.wait(30)
    waiting = worker.submit(site_images(model.settings, 0, 8), {})
    watched.begin.set()
    worker.close()
    with pytest.raises(CancelledError):
        waiting.result(30)
