"""Each track on a CUDA stream of its own: who waits for whom, on streams that only write down what they are told."""

import logging
from contextlib import contextmanager

import pytest
import torch

from fedsm.client import training_pass
from fedsm.client.track_streams import ONE_STREAM, TrackStreams, streams_of
from fedsm.client.training_pass import steps_of, train_on
from fedsm.data.dataset import Part
from fedsm.tracks import KINDS, client_tracks, learner
from fedsm.tracks.base import TRAIN, SiteContext
from tests.helpers.no_waiting import no_waiting
from tests.helpers.small_jobs import small_settings
from tests.helpers.small_site import CPU, beside_global, global_model, make_site, same

CUDA = torch.device("cuda", 0)


class Stream:
    """Notes in a list that all streams share."""

    log: list[tuple] = []
    count = 0

    def __init__(self, device=None):
        Stream.count += 1
        self.name = f"s{Stream.count}"

    def wait_stream(self, other):
        self.log.append((self.name, "waits for", other.name))


@pytest.fixture
def log(monkeypatch):
    """What streams and tensors were told; tensors are called by their number of images or values."""
    Stream.log, Stream.count = [], 0
    current = [Stream()]
    current[0].name = "main"

    @contextmanager
    def within(stream):
        current.append(stream)
        Stream.log.append((stream.name, "begins"))
        yield
        Stream.log.append((current.pop().name, "ends"))

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", within)
    record = lambda tensor, stream: Stream.log.append((stream.name, "uses", tuple(tensor.shape)))  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "record_stream", record)
    return Stream.log


def test_a_step_waits_for_its_batch_and_the_end_for_all_steps(log):
    streams = TrackStreams(["global", "personal"], CUDA)
    for name in ("global", "personal"):
        with streams.of(name, [torch.zeros(4, 3)]):
            pass
    streams.join([torch.zeros(())])
    assert [entry[1:] if entry[0] == "main" else entry for entry in log] == [
        ("s2", "waits for", "main"), ("s2", "uses", (4, 3)), ("s2", "begins"), ("s2", "ends"),
        ("s3", "waits for", "main"), ("s3", "uses", (4, 3)), ("s3", "begins"), ("s3", "ends"),
        ("waits for", "s2"), ("waits for", "s3"), ("uses", ()),
    ]  # fmt: skip


def walked(streams) -> tuple[dict, dict]:
    settings = small_settings(selector="statistics", batch_size=4)
    rng = torch.Generator().manual_seed(0)
    part = Part(torch.rand(6, 3, 32, 32, generator=rng), (torch.rand(6, 2, 32, 32, generator=rng) > 0.5).byte())
    tracks = client_tracks(settings, SiteContext(0, 2, CPU))
    for name in ("global", "personal"):
        tracks[name].receive(TRAIN, global_model(1))
    with no_waiting():
        losses = train_on(steps_of(settings, part, "a", 1), part, tracks, CPU, False, lambda step: None, streams)
    return losses, {k: v for name in ("global", "personal") for k, v in tracks[name].send(TRAIN).items()}


def test_a_pass_with_streams_is_the_same_pass_and_waits_nowhere(log, monkeypatch):
    """2 batches, each stepped by the global, the personal and the selector's track; losses are read at the end."""
    monkeypatch.setattr(training_pass, "staged", lambda loads, device, pin: (load() for load in loads))
    monkeypatch.setattr(learner, "fused_adam", lambda device, autocast: True)
    losses, sent = walked(TrackStreams(["global", "personal", "selector"], CUDA))
    plain_losses, plain = walked(ONE_STREAM)
    assert same(losses, plain_losses) and same(sent, plain)
    assert sum(entry[1] == "begins" for entry in log) == 6
    last = max(i for i, entry in enumerate(log) if entry[1] == "ends")
    joined = [("main", "waits for", f"s{n}") for n in (2, 3, 4)] + [("main", "uses", ())] * 2
    assert log[last + 1 :] == joined
    used = [entry for entry in log if entry[:2] == ("s2", "uses")]
    assert [shape for *_, shape in used] == [(4, 3, 32, 32), (4, 2, 32, 32), (4,), (2, 3, 32, 32), (2, 2, 32, 32), (2,)]


def test_on_a_cpu_it_has_no_effect_and_says_so(caplog):
    caplog.set_level(logging.WARNING)
    assert streams_of(False, {}, CPU, "a") is ONE_STREAM and not caplog.records
    assert streams_of(True, {}, CPU, "a") is ONE_STREAM
    assert caplog.messages == ["site 'a': `streams: true` has no effect: cpu has none"]


def test_a_track_that_reads_another_network_stays_behind_it(caplog, log):
    """APFL mixes the global network as the batch has just left it."""
    assert streams_of(True, make_site(beside_global("{kind: apfl}")), CUDA, "a") is ONE_STREAM
    assert "the track 'personal' reads another network while it is trained" in caplog.text
    assert isinstance(streams_of(True, make_site(beside_global("{kind: ditto}")), CUDA, "a"), TrackStreams)
    assert [kind for kind, halves in KINDS.items() if halves.client.reads_others] == ["apfl"]
