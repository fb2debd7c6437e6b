"""SoftPull with the personal networks at their sites, on numbers small enough to do by hand, and against SoftPull."""

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.tracks import lam_of, server_tracks, summed_tracks
from fedsm.tracks.base import TRAIN
from fedsm.tracks.softpull_at_site import pulled
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.small_site import refusal
from tests.helpers.track_run import TrackRun, job_with


def model(value: float) -> dict:
    return {"w": torch.tensor([value])}


def test_three_sites_as_in_softpull():
    """lam = 0.6, models 1, 2, 6 after training, mean 3, t = 0.4 * 3 / 2 = 0.6:

    w_1 = 1 + 0.6 * (3 - 1) = 2.2,  w_2 = 2 + 0.6 = 2.6,  w_3 = 6 - 1.8 = 4.2: those of `test_softpull.py`."""
    assert [round(pulled(model(w), model(3.0), 3, 0.6)["w"].item(), 6) for w in (1.0, 2.0, 6.0)] == [2.2, 2.6, 4.2]


def test_limits():
    """lam = 1 / K is the mean, lam = 1 local training; alone in the mean nothing is pulled, nor is what is held."""
    assert pulled(model(6.0), model(3.0), 3, 1 / 3)["w"].item() == pytest.approx(3)
    assert pulled(model(6.0), model(3.0), 3, 1.0)["w"].item() == 6
    assert pulled(model(6.0), model(6.0), 1, 0.6)["w"].item() == 6
    assert pulled(model(6.0), model(3.0), 3, 0.6, {"w"})["w"].item() == 6


def merge(track, number: int, changes: dict[str, float]) -> None:
    track.open(number, dict)
    for site, change in changes.items():
        track.accept(TRAIN, site, model(change), 7)
    track.close(TRAIN)


def seen_by(track, site: str) -> tuple[float, int, int]:
    """What a site gets: the mean, the number of networks in it, and their round."""
    payload = track.payload(TRAIN, site)
    return payload["mean/w"].item(), payload["count"].item(), payload["made"].item()


def server(tracks="{personal: {kind: softpull_at_site, lam: 0.6}}"):
    track = server_tracks(small_settings(overrides=[f"tracks={tracks}"]), SITES)["personal"]
    files = track.files()
    files["personal.at.sites.mean"] = model(0.0)
    track.load_files(files)
    return track


def test_the_server_tells_each_site_whether_it_is_in_the_mean():
    """Round 1: differences 1, 2, 6 to the mean 0 make the mean 3, whatever the sites' images. Round 2: site 2 is
    missing, the others' -1 and 3 move it by 1; site 2 is told that it is not in it. Nobody answers in round 3: all is
    as before."""
    track = server()
    merge(track, 1, {"site-1": 1.0, "site-2": 2.0, "site-3": 6.0})
    assert [seen_by(track, site) for site in SITES] == [(3, 3, 1)] * 3
    merge(track, 2, {"site-1": -1.0, "site-3": 3.0})
    assert [seen_by(track, site) for site in SITES] == [(4, 2, 2), (4, 0, 2), (4, 2, 2)]
    merge(track, 3, {})
    assert [seen_by(track, site) for site in SITES] == [(4, 2, 2), (4, 0, 2), (4, 2, 2)]


def test_in_the_last_rounds_nothing_is_pulled():
    track = server("{personal: {kind: softpull_at_site, lam: 0.6, alone: 0.4}}")  # of 3 rounds the last
    for number, count in ((1, 3), (2, 3), (3, 0)):
        merge(track, number, dict.fromkeys(SITES, 1.0))
        assert seen_by(track, "site-1")[1] == count


@pytest.mark.parametrize("options", [{}, {"norm": "own"}, {"alone": 0.4}])
def test_the_sites_train_what_softpull_trains(options):
    """Three rounds, with and without sums alone: what a site holds after its last pull is the server's model of it."""
    plain, at_site = (
        TrackRun(job_with(kind).replace(tracks={"global": {"kind": "fedavg"}, "personal": {"kind": kind, **options}}))
        for kind in ("softpull", "softpull_at_site")
    )
    for run in (plain, at_site):
        for _ in range(3):
            run.play_round()
    for site in SITES:
        at_site._receive("deliver", site, {"personal": at_site.servers["personal"].payload("deliver", site)})
    held = {site: at_site.clients[site]["personal"] for site in SITES}
    for site in SITES:
        here = pulled_of(held[site], at_site.servers["personal"], site)
        there = plain.servers["personal"].payload(TRAIN, site)
        assert max((here[k] - there[k]).abs().max().item() for k in there) < 1e-5, site


def pulled_of(client, server, site: str) -> dict:
    payload = server.payload("deliver", site)
    mean = {key.removeprefix("mean/"): value for key, value in payload.items() if key.startswith("mean/")}
    return pulled(client._trained, mean, payload["count"].item(), client._lam, client._held)


def test_a_site_that_misses_a_round_is_not_pulled_towards_a_mean_without_it():
    """Site 3 answers round 1 and is missing in round 2: in round 3 it goes on from what it trained."""
    run = TrackRun(job_with("softpull_at_site"))
    run.play_round()
    run.play_round(SITES[:2])
    client = run.clients["site-3"]["personal"]
    before = {key: value.clone() for key, value in client._trained.items()}
    run._receive(TRAIN, "site-3", run._payload(TRAIN, "site-3", ["personal"]))
    after = client.net.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


SECURE = ["norm_check=off", "secure_sum=true"]


def secure(**given):
    return small_settings(**({"min_sites": 3} | given | {"overrides": [*SECURE, *given.get("overrides", [])]}))


def test_a_job_with_secure_sum_has_softpull_at_its_sites():
    job = secure(lam=0.7, overrides=["tracks.personal.norm=own"])
    assert job.tracks["personal"] == {"kind": "softpull_at_site", "lam": 0.7, "norm": "own", "alone": 0.0}
    assert lam_of(job) == 0.7
    assert summed_tracks(job) == {"global": True, "personal": False}, "the sums of descriptors are sent once, before"
    assert job.secure_sum.to_dict() == {"clip": 100.0, "bits": 32, "wait": 300}
    assert secure().from_dict(job.to_dict()) == job
    assert small_settings(overrides=["secure_sum=no"]).secure_sum is None


def refused(match: str, **given) -> None:
    with pytest.raises(UserError, match=match):
        server_tracks(secure(**given), SITES)


def test_what_cannot_go_with_secure_sum_is_refused_in_words():
    for check in ("clip", "warn", "refuse"):
        refused("norm_check: .* judges them.*secure_sum.clip", overrides=[f"norm_check={check}"])
    refused("min_sites is 2: of two", min_sites=2)
    refused("aggregation: median needs them.*max_share", method="fedavg", overrides=["aggregation=median"])
    refused("quarantine judges them.*fedsm forget", overrides=["quarantine=3"])
    refused(r"track 'global' \(scaffold\) needs them", method="scaffold")
    refused("magnifies the small gradients.*bits to 64", selector="gradient")
    refused("`pull: similarity` needs them", overrides=["tracks.personal.pull=similarity"])
    refused("needs them", method="fedsm-ensemble")
    refused("secure_sum.bits must be 32 or 64", overrides=["secure_sum={bits: 16}"])


def test_lam_is_checked():
    assert "lam must be in" in refusal("{personal: {kind: softpull_at_site, lam: 0.1}}")
