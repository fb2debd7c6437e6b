"""The track's contract, held by every kind: shapes declared are shapes sent, state survives a restart, a site may be
missing, sites join and leave, and a resumed run is the uninterrupted one."""

import inspect

import pytest

from fedsm.core.errors import UserError
from fedsm.tracks import KINDS
from fedsm.tracks.base import TRAIN, ClientTrack, Membership, ServerTrack
from tests.helpers.contract import NEW, equal, finite, hooks
from tests.helpers.small_jobs import SITES
from tests.helpers.track_run import TrackRun, job_with, with_and_without_restarts

every_kind = pytest.mark.parametrize("kind", KINDS)


def registered(kind: str) -> TrackRun:
    run = TrackRun(job_with(kind))
    run.register()
    return run


@every_kind
def test_a_whole_run_sends_what_it_declares_and_its_models_are_there(kind):
    """`TrackRun` compares keys, shapes and dtypes of everything that is sent with what the server expects."""
    run = registered(kind).run()
    files = run.files()
    assert finite(files)
    for track in run.servers.values():
        assert set(track.models()) <= set(files)
        assert all(set(sites) <= set(SITES) and sites for sites in track.models().values())


@every_kind
def test_a_run_of_restarts_is_the_uninterrupted_one(kind):
    """After every round new processes at all sites and at the server: the same checkpoint to the bit."""
    assert equal(*with_and_without_restarts(lambda: registered(kind)))


@every_kind
def test_a_site_that_misses_a_round_comes_back(kind):
    """It is not in that round's models, and takes part in the next as if nothing had been."""
    run = registered(kind)
    run.play_round()
    before = run.files()
    run.play_round(SITES[:2])
    if kind == "softpull":
        own = f"personal.{SITES[2]}"
        assert equal({own: before[own]}, {own: run.files()[own]}), "it keeps its own model"
    run.run()
    assert finite(run.files())


@every_kind
def test_a_round_without_an_answer_changes_no_model(kind):
    run = registered(kind)
    run.play_round()
    before = run.files()
    for track in run.servers.values():
        track.close(TRAIN)
    assert equal(before, run.files())


@every_kind
def test_a_site_joins_and_all_go_on(kind):
    run = registered(kind)
    run.play_round()
    grown = run.with_sites([*SITES, NEW]).run()
    assert finite(grown.files())
    if "personal" in grown.servers:
        assert f"personal.{NEW}" in grown.files()


@every_kind
def test_a_site_leaves_and_the_others_go_on(kind):
    run = registered(kind)
    run.play_round()
    if kind == "scaffold":
        with pytest.raises(UserError, match="only the site knows"):
            run.with_sites(SITES[:2])
        return
    shrunk = run.with_sites(SITES[:2]).run()
    assert finite(shrunk.files())
    assert f"personal.{SITES[2]}" not in shrunk.files()


def test_the_contract_is_small():
    """At most 25 hooks in both halves, joining and leaving included."""
    names = [[n for n in hooks(half) if not n.startswith("_")] for half in (ClientTrack, ServerTrack, Membership)]
    assert sum(map(len, names)) <= 25, names


@every_kind
def test_inheritance_is_at_most_two_deep(kind):
    for half, base in ((KINDS[kind].client, ClientTrack), (KINDS[kind].server, ServerTrack)):
        own = [cls for cls in inspect.getmro(half) if issubclass(cls, base)]
        assert len(own) <= 3, own
