"""Fine-tuning of the received global model, by hand."""

import pytest
import torch

from fedsm.tracks.base import DELIVER, TRAIN
from fedsm.tracks.finetune import FineTuneClient
from fedsm.tracks.segmentation import SegmentationClient
from tests.helpers.small_jobs import small_settings
from tests.helpers.small_site import (
    beside_global,
    continues_after_restart,
    global_model,
    line,
    make_site,
    play_round,
    refusal,
    same,
    step,
)

TRACKS = beside_global("{kind: finetune, lr_factor: 1}")


def test_each_round_starts_from_the_received_model():
    """y = 3, eta = 0.1, gradient w - 3. Round 1, w_g = 1: 1 -> 1.2 -> 1.38. Round 2, w_g = 2: 2 -> 2.1 -> 2.19.

    The global track's copy is moved by other batches (y = 0) in between: it must not matter.
    """
    common, client = line(SegmentationClient), line(FineTuneClient, w=9.0, lr_factor=1)
    client.site.tracks |= {"global": common, "personal": client}
    rounds = []
    for w_g in (1.0, 2.0):
        common.receive(TRAIN, {"w": torch.tensor([w_g])})
        client.receive(TRAIN, {})
        client.begin(2)
        rounds.append([])
        for _ in range(2):
            step(common, 0.0)
            rounds[-1].append(step(client, 3.0))
    assert rounds == [[1.2, 1.38], [2.1, 2.19]]
    assert client.send(TRAIN) == {}


def test_what_is_scored_is_the_fine_tuned_network():
    """Receiving must not replace it: the score, and so the best round, would be the global model's."""
    tracks = make_site(TRACKS)
    play_round(tracks, 1)
    tuned = {k: v.clone() for k, v in tracks["personal"].net.state_dict().items()}
    tracks["global"].receive(TRAIN, {k: v + 1 for k, v in tuned.items()})
    tracks["personal"].receive(TRAIN, {})
    assert same(tracks["personal"].net.state_dict(), tuned)
    tracks["personal"].begin(1)
    assert same(tracks["personal"].net.state_dict(), tracks["global"].received)


def test_differs_from_the_global_copy_by_its_moments_alone():
    """In round 1 neither has moments: equal to the bit. In round 2 the global copy brings those of round 1."""
    tracks = make_site(TRACKS)
    play_round(tracks, 1)
    assert same(tracks["personal"].net.state_dict(), tracks["global"].net.state_dict())
    play_round(tracks, 2)
    assert not same(tracks["personal"].net.state_dict(), tracks["global"].net.state_dict())


def test_has_a_rate_of_its_own():
    """Adam's first step is its rate times the sign of the gradient: a tenth of the rate, a tenth of the step."""
    tracks = make_site(beside_global("{kind: finetune, lr_factor: 0.1}"))
    start = global_model(1)
    for track in tracks.values():
        track.receive(TRAIN, start if track is tracks["global"] else {})
        track.begin(2)
        track.step(torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.ones(2, 2, 32, 32))
    wide, narrow = ({k: v - start[k] for k, v in t.net.state_dict().items()} for t in tracks.values())
    key = next(k for k in start if k.endswith("weight"))
    assert wide[key].abs().max().item() == pytest.approx(small_settings().lr, rel=1e-3)
    torch.testing.assert_close(narrow[key], wide[key] / 10, atol=1e-6, rtol=1e-2)


def test_a_round_depends_on_nothing_before_it():
    late, steady = make_site(TRACKS), make_site(TRACKS)
    play_round(steady, 1)
    for tracks in (late, steady):
        play_round(tracks, 2)
    assert same(late["personal"].net.state_dict(), steady["personal"].net.state_dict())


def test_goes_on_after_a_restart(tmp_path):
    assert continues_after_restart(tmp_path, TRACKS)
    assert not any(key.startswith("adam/") for key in make_site(TRACKS)["personal"].state())


def test_what_is_delivered_survives_a_restart():
    """A site that is restarted after the last round has no global model yet: it hands over what it kept."""
    tracks, restarted = make_site(TRACKS), make_site(TRACKS)
    play_round(tracks, 1)
    restarted["personal"].load_state(tracks["personal"].state())
    batch = [(torch.rand(2, 3, 32, 32), torch.ones(2, 2, 32, 32))]
    for site in (tracks, restarted):
        site["personal"].validate(DELIVER, batch)
    assert same(tracks["personal"].send(DELIVER), restarted["personal"].send(DELIVER))


def test_needs_a_global_track_first():
    reason = "the personal track learns beside the global one; list `global` as the first track"
    assert refusal("{personal: {kind: finetune}}") == reason
    assert refusal("{personal: {kind: finetune}, global: {kind: fedavg}}") == reason
    assert refusal(TRACKS) == ""


def test_options_are_refused():
    assert refusal(beside_global("{kind: finetune, lr: 1}")) == (
        "track 'personal': unknown setting 'lr'; known: lr_factor"
    )
    assert "at least 1e-06" in refusal(beside_global("{kind: finetune, lr_factor: 0}"))
