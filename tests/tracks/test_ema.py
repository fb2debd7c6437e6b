"""The average over the rounds: by hand, around tracks at the server, and at a site."""

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.core.state import prefixed
from fedsm.tracks import KINDS, check_options, server_tracks
from fedsm.tracks.base import DELIVER, TRAIN, ServerTrack
from fedsm.tracks.ema import AVERAGE, RoundAverage
from fedsm.tracks.ema_server import AveragedOverRounds
from fedsm.tracks.segmentation import SegmentationClient
from tests.helpers.contract import NEW, equal, finite, hooks
from tests.helpers.plain_loop import averaged, largest_difference
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.small_site import line
from tests.helpers.track_run import TrackRun, job_with, with_and_without_restarts

AVERAGED = [name for name, kind in KINDS.items() if kind.track != "selector"]


def number(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([value])}


def averages(momentum: float, *values: float) -> list[float]:
    average, seen = RoundAverage.before(momentum, number(100.0)), []
    for value in values:
        average = average.after(number(value))
        seen.append(round(average.weights["w"].item(), 5))
    return seen


def test_three_rounds():
    """m = 0.5, rounds of 1, 2 and 4. The weights of the rounds, newest first, are 0.5 0.25 0.125 over their sum:

    1;   (0.5 * 2 + 0.25 * 1) / 0.75 = 1.66667;   (0.5 * 4 + 0.25 * 2 + 0.125 * 1) / 0.875 = 3

    The weights from before round 1 (100) have no part.
    """
    assert averages(0.5, 1.0, 2.0, 4.0) == [1.0, 1.66667, 3.0]


def test_without_a_past_it_is_the_last_round_and_with_all_of_it_the_mean():
    assert averages(0.0, 1.0, 2.0, 4.0) == [1.0, 2.0, 4.0]
    assert averages(0.999999, 1.0, 2.0, 6.0) == [1.0, 1.5, 3.0]


def test_integer_buffers_are_the_last_round_s():
    average = RoundAverage.before(0.5, {"steps": torch.tensor(1)}).after({"steps": torch.tensor(7)})
    assert average.after({"steps": torch.tensor(9)}).weights["steps"].item() == 9


def hand_made(method: str = "fedsm"):
    """Tracks of one weight, which is 1 in the global model and 1, 2, 3 in the personal ones, before round 1."""
    tracks = server_tracks(small_settings(method=method, ema=0.5, lam=0.7 if method == "fedsm" else None), SITES)
    files = {"global": number(1.0), "global.raw": number(1.0), "global.ema.updates": {"global": torch.tensor(0)}}
    counts = {f"personal.{s}": torch.tensor(0) for s in SITES}
    for k, model in enumerate(counts):
        files |= {model: number(k + 1.0), f"{model}.raw": number(k + 1.0)}
    files["personal.ema.updates"] = counts
    for name in ("global", "personal"):
        if name in tracks:
            tracks[name].load_files(files)
    return tracks


def add(track, changes: dict[str, float]) -> None:
    for site, change in changes.items():
        track.accept(TRAIN, site, number(change), 1)
    track.close(TRAIN)


def test_the_global_model():
    """w = 1, then +1 and +2 by all sites: 2, 4. Averages 2 and (0.5 * 4 + 0.25 * 2) / 0.75 = 3.33333."""
    track = hand_made("fedavg")["global"]
    add(track, dict.fromkeys(SITES, 1.0))
    add(track, dict.fromkeys(SITES[:2], 2.0))
    files = track.files()
    assert files["global.raw"]["w"].item() == 4.0
    assert files["global"]["w"].item() == pytest.approx(10 / 3)
    down = track.payload(TRAIN, SITES[0])
    assert (down["w"].item(), down["ema/w"].item()) == (4.0, pytest.approx(10 / 3))
    assert track.payload(DELIVER, SITES[0])["w"].item() == pytest.approx(10 / 3)
    add(track, {})
    assert equal(files, track.files()), "a round without an answer"


def test_a_missing_site_s_personal_average_stays():
    """Personal models 1, 2, 3, lam 0.7. Round 1: all +1: 2, 3, 4, pulled to 2.45, 3, 3.55. Round 2: sites 1 and 3 +0,
    pulled to 0.7 * 2.45 + 0.3 * 3.55 = 2.78 and 3.22; site 2 is missing and stays at 3, and so does its average."""
    track = hand_made()["personal"]
    add(track, dict.fromkeys(SITES, 1.0))
    add(track, {SITES[0]: 0.0, SITES[2]: 0.0})
    files = track.files()
    assert [round(files[f"personal.{s}.raw"]["w"].item(), 5) for s in SITES] == [2.78, 3.0, 3.22]
    expected = [(0.5 * 2.78 + 0.25 * 2.45) / 0.75, 3.0, (0.5 * 3.22 + 0.25 * 3.55) / 0.75]
    assert [files[f"personal.{s}"]["w"].item() for s in SITES] == pytest.approx(expected)
    assert [int(n) for n in files["personal.ema.updates"].values()] == [2, 1, 2]


def played(kind: str, **more) -> TrackRun:
    run = TrackRun(job_with(kind).replace(ema=0.6, **more))
    run.register()
    return run


@pytest.mark.parametrize("kind", AVERAGED)
def test_training_is_what_it_is_without_an_average(kind):
    """The weights that training goes on from: to the bit those of a run without it."""
    plain = TrackRun(job_with(kind))
    plain.register()
    run = played(kind)
    for _ in range(2):
        plain.play_round()
        run.play_round()
    raw = {f.removesuffix(".raw"): t for f, t in run.files().items() if f.endswith(".raw")}
    rest = {f: t for f, t in run.files().items() if f not in raw and not f.endswith((".raw", ".updates"))}
    assert equal(plain.files(), raw | rest)


@pytest.mark.parametrize("kind", [AVERAGED[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in AVERAGED[1:])])
def test_a_run_of_restarts_is_the_uninterrupted_one(kind):
    assert equal(*with_and_without_restarts(lambda: played(kind)))


@pytest.mark.parametrize("kind", AVERAGED)
def test_sites_join_and_leave(kind):
    run = played(kind)
    run.play_round()
    grown = run.with_sites([*SITES, NEW]).run().files()
    assert finite(grown) and ("personal" not in run.servers or f"personal.{NEW}" in grown)
    if kind != "scaffold":
        shrunk = run.with_sites(SITES[:2]).run().files()
        assert finite(shrunk) and not any(SITES[2] in stem for stem in shrunk)


def test_a_site_may_be_called_as_our_files_end():
    """`personal.raw` is the model of a site called raw, not the weights of a model `personal`."""
    sites = ["raw", "ema"]
    run = TrackRun(job_with("softpull").replace(ema=0.6), sites)
    run.play_round()
    before = run.files()
    run.restart_server()
    assert equal(before, run.files())
    assert set(run.servers["personal"].models()) == {"personal.raw", "personal.ema"}


@pytest.mark.parametrize("kind", ["local", "ditto", "fedbn", "per-fedavg"])
def test_a_network_that_stays_at_its_site_is_averaged_there(kind):
    """What is scored in round t is the average of what the rounds before made, and the best of these is kept."""
    run = played(kind)
    made: list[dict] = []
    for _ in range(2):
        run.play_round()
        net = run.clients[SITES[0]]["personal"].net.state_dict()
        made.append({key: value.clone() for key, value in net.items()})
    personal = run.clients[SITES[0]]["personal"].personal
    if kind != "fedbn":  # there the received average of the round comes between
        assert largest_difference(personal._average.weights, averaged(run.settings, made[:1])) < 1e-6
    assert personal._average.updates == 1
    assert equal({"net": made[-1]}, {"net": dict(personal.net.state_dict())}), "scoring leaves the network alone"


def test_a_site_validates_the_average_and_trains_the_weights():
    """f(x) = w x at x = 1, and the truth is 1: the average of 1 marks it (Dice 1), the weight of -1 does not (0)."""
    client, batch = line(SegmentationClient), (torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1))
    client.receive(TRAIN, number(-1.0) | prefixed(AVERAGE, number(1.0)))
    assert client.validate(TRAIN, [batch])["score"] == 1.0
    assert client.net.w.item() == client.received["w"].item() == -1.0
    client.receive(DELIVER, number(-1.0))
    assert client.validate(DELIVER, [batch])["score"] == 0.0


def test_every_question_to_a_track_is_passed_on():
    """A hook that is added to the contract must not be answered by the base class here."""
    questions = {name for name in hooks(ServerTrack) if not name.startswith("_")} - {"check"}
    assert questions <= set(vars(AveragedOverRounds))
    run = TrackRun(small_settings(ema=0.6, overrides=["tracks.personal={kind: softpull, norm: own, pull: similarity}"]))
    run.register()
    track = run.servers["personal"]
    assert track.held() == track.track.held() != frozenset()
    assert track.facts() == track.track.facts() != {}


def test_the_ensemble_is_refused():
    with pytest.raises(UserError, match="set ema to 0"):
        check_options(small_settings(method="fedsm-ensemble", ema=0.5))


@pytest.mark.parametrize("value", [1.0, -0.1])
def test_its_range(value):
    with pytest.raises(UserError, match="ema must be a number of at least 0 and below 1"):
        small_settings(ema=value)
