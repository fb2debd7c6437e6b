"""Who takes part may change when a run goes on: absent sites keep their place, new ones get the next."""

import json

import pytest
import torch

from fedsm.flare import exchange
from fedsm.nets.first_weights import initial_weights
from fedsm.server.checkpoint import Checkpoints
from fedsm.tracks import client_tracks, server_tracks
from fedsm.tracks.base import TRAIN, SiteContext
from tests.helpers.federation import JOB, Federation, results_of
from tests.helpers.plain_loop import algorithm_1, largest_difference
from tests.helpers.small_jobs import SITES, small_settings, write_site
from tests.helpers.weights import TOLERANCE, last_weights

NEW = "site-0"  # by its name it would come first


@pytest.fixture(scope="module")
def grown_root(tmp_path_factory, data_root):
    """The three sites and a fourth."""
    root = tmp_path_factory.mktemp("grown")
    for site in SITES:
        (root / site).symlink_to(data_root / site)
    write_site(root / NEW, 14, seed=7)
    return root


def go_on(folder, root, settings, sites, name: str, fault=None) -> Federation:
    """Resumes what the last federation in this folder left; the sites keep their disks."""
    saved = folder / name
    (folder / "server" / JOB).rename(saved)
    return Federation(folder, root, settings, sites, resume_from=str(saved / "checkpoints"), fault=fault).run()


def test_an_absent_site_keeps_its_place_and_comes_back(tmp_path, data_root):
    """Round 1 with three sites, round 2 without site 2 (its client is down), round 3 with it again: the weights are
    those of a plain loop in which it sits round 2 out, and it keeps its index and its class."""
    job = {"lam": 0.7, "selector": "gradient"}
    Federation(tmp_path, data_root, small_settings(rounds=1, **job), SITES).run()
    without = go_on(tmp_path, data_root, small_settings(rounds=2, **job), ["site-3", "site-1"], "one")
    assert without.panic is None
    results = results_of(without)
    assert results["sites"] == SITES and list(results["images"]) == SITES
    assert results["validation"]["history"][1]["missing"] == {"site-2": "absent"}
    assert results["wire"]["up_bytes"]["site-2"][1] == 0
    assert (without.run_folder / "super_model" / "personal.site-2.safetensors").is_file()
    started = json.loads((without.run_folder / "progress.jsonl").read_text().splitlines()[0])
    assert started["absent"] == ["site-2"]

    settings = small_settings(rounds=3, **job)
    back = go_on(tmp_path, data_root, settings, SITES, "two")
    assert back.panic is None
    weights = last_weights(back.run_folder)
    plain = algorithm_1(data_root, settings, SITES, 0.7, "gradient", {2: ["site-1", "site-3"]})
    for model in ("global", "selector", *(f"personal.{s}" for s in SITES)):
        assert largest_difference(weights[model], plain[model]) < TOLERANCE, model


@pytest.mark.parametrize("selector", ["statistics", "gradient", "fedavg"])
def test_a_new_site_joins_with_the_global_model_and_the_next_index(tmp_path, grown_root, selector):
    """Site 0 joins after round 1. The others keep index, models, sums and selector outputs; it gets the global model, a
    class of its own or a fresh output, and answers from round 2 on."""
    first = Federation(tmp_path, grown_root, small_settings(rounds=1, selector=selector), SITES).run()
    old = last_weights(first.run_folder)
    settings = small_settings(rounds=2, selector=selector, keep_checkpoints=9)
    joined = go_on(tmp_path, grown_root, settings, [NEW, *SITES], "one")
    assert joined.panic is None
    results = results_of(joined)
    assert results["sites"] == [*SITES, NEW]
    assert results["validation"]["history"][1]["answered"] == [NEW, *SITES]
    assert results["wire"]["up_bytes"][NEW][0] == 0 < results["wire"]["up_bytes"][NEW][1]
    assert set(results["test"]["selector_accuracy"]["per_site"]) == {*SITES, NEW}

    checkpoints = Checkpoints(joined.run_folder / "checkpoints")
    state = json.loads((joined.run_folder / "checkpoints" / "round_000001.json").read_text())
    at_join = {stem: checkpoints.load_weights(name) for stem, name in state["files"].items()}
    assert largest_difference(at_join[f"personal.{NEW}"], old["global"]) == 0
    for site in SITES:
        assert largest_difference(at_join[f"personal.{site}"], old[f"personal.{site}"]) == 0
    if selector == "statistics":
        assert all(torch.equal(at_join["selector.sums"][k], v) for k, v in old["selector.sums"].items())
        assert f"{NEW}/sum" in at_join["selector.sums"]
        return
    fresh = initial_weights(server_tracks(settings, [*SITES, NEW])["selector"].build, settings.seed)
    for key, value in at_join["selector"].items():
        before = old["selector"][key]
        assert torch.equal(value[: len(before)], before) and value.shape == fresh[key].shape
        assert torch.equal(value[len(before) :], fresh[key][len(before) :])
    if selector == "gradient":
        moments = at_join["selector.adam"]
        last = [
            k for k, v in moments.items() if k not in old["selector.adam"] or v.shape != old["selector.adam"][k].shape
        ]
        assert len(last) == 4 and not any(moments[k][3].any() for k in last)


@pytest.mark.parametrize("personal", ["ditto", "apfl", "fedbn"])
def test_a_new_site_joins_methods_that_keep_personal_models_at_the_site(tmp_path, grown_root, personal):
    """There is nothing of it at the server; the site starts its own from the models that come down."""
    job = {"personal": personal}
    Federation(tmp_path, grown_root, small_settings(rounds=1, **job), SITES).run()
    joined = go_on(tmp_path, grown_root, small_settings(rounds=2, **job), [*SITES, NEW], "one")
    assert joined.panic is None
    assert results_of(joined)["validation"]["history"][1]["missing"] == {}
    assert (joined.run_folder / "super_model" / f"personal.{NEW}.safetensors").is_file()


def test_a_linked_personal_network_without_a_past_starts_as_the_global_one():
    """Ditto and APFL at a site that joins in round 30: not from the first weights of the seed, which others left long
    ago. APFL's own network does, too."""
    for personal in ("ditto", "apfl", "finetune"):
        settings = small_settings(personal=personal, overrides=["tracks.selector.kind=selector_fedavg"])
        tracks = client_tracks(settings, SiteContext(0, 2, torch.device("cpu")))
        later = {k: v + 0.5 for k, v in tracks["global"].net.state_dict().items()}
        for track in tracks.values():
            track.load_state({})
        tracks["global"].receive(TRAIN, later)
        tracks["personal"].receive(TRAIN, {})
        assert largest_difference(tracks["personal"].net.state_dict(), later) == 0
        if personal == "apfl":
            assert largest_difference(tracks["personal"].own.state_dict(), later) == 0
        tracks["global"].receive(TRAIN, {k: v + 1 for k, v in later.items()})
        tracks["personal"].receive(TRAIN, {})
        assert largest_difference(tracks["personal"].net.state_dict(), later) == 0, "only the first time"


def test_a_new_site_has_no_share_of_scaffold_s_control_before_it_answers():
    """c = 4 of sites with 10, 20 and 30 images; a fourth joins and answers alone, 20 images, dc = 8, in a net of ones.

    c <- (60 * 4 + 20 * 8) / 80 = 5.
    """
    settings = small_settings(method="scaffold")
    old, new = server_tracks(settings, SITES)["global"], server_tracks(settings, [*SITES, NEW])["global"]
    old.controls = {k: torch.full_like(v, 4.0) for k, v in old.controls.items()}
    old.images = torch.tensor([10.0, 20.0, 30.0])
    files = old.files()
    assert new.join(files, [NEW]) == []
    new.load_files(files)
    assert all((c == 4).all() for c in new.controls.values())
    new.accept(TRAIN, NEW, {k: torch.full_like(v, 8) for k, v in new.expects(TRAIN).items()}, 20)
    new.close(TRAIN)
    assert all((c == 5).all() for c in new.controls.values())


def test_a_join_that_is_killed_leaves_the_earlier_run_to_go_on_from(tmp_path, grown_root, monkeypatch):
    """The first checkpoint with the new site is this run's own: before its manifest there is none."""
    settings = small_settings(rounds=1, selector="gradient")
    Federation(tmp_path, grown_root, settings, SITES).run()

    def killed(path, content):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedsm.server.checkpoint.write_json", killed)
    job = small_settings(rounds=2, selector="gradient")
    with pytest.raises(KeyboardInterrupt):
        go_on(tmp_path, grown_root, job, [*SITES, NEW], "one")
    monkeypatch.undo()
    assert Checkpoints(tmp_path / "server" / JOB / "checkpoints").load() is None
    assert Checkpoints(tmp_path / "one" / "checkpoints").load()["record"]["sites"] == SITES


def test_nobody_is_asked_who_is_not_here(tmp_path, data_root):
    """An absent site gets no task at all: FLARE refuses tasks for clients that are not part of the job."""
    asked = []
    Federation(tmp_path, data_root, small_settings(rounds=1), SITES).run()

    def note(site, task, shareable, work):
        asked.append((site.name, exchange.unpack(shareable)[0]["sites"]))
        return work()

    job = small_settings(rounds=2)
    assert go_on(tmp_path, data_root, job, ["site-1", "site-2"], "one", note).panic is None
    assert {name for name, _ in asked} == {"site-1", "site-2"}
    assert all(sites == SITES for _, sites in asked), "indices are those of all sites"
