"""Networks in files get the weights that they get in memory, to the last bit."""

import os

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.core.model_store import IN_MEMORY, OnDisk, stored
from fedsm.core.state import copy
from fedsm.tracks import pull_in_place, pull_on_disk, server_tracks
from fedsm.tracks.base import TRAIN
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.track_run import TrackRun

TINY = ["task.unet.channels=[4,8]", "task.unet.residual_units=0"]


def random_models(count: int) -> list[dict]:
    """Entries that are no multiples of anything, and one above the size from which torch uses several threads."""
    rng = torch.Generator().manual_seed(count)
    shapes = {"large": (37, 1201), "odd": (1013,), "one": (1,), "half": (5, 7)}
    return [
        {key: torch.randn(shape, generator=rng) for key, shape in shapes.items()} | {"count": torch.tensor(k)}
        for k in range(count)
    ]


def on_disk(tmp_path, models: list[dict]) -> list:
    store = OnDisk(tmp_path / "models")
    return [stored(store.put(f"m{k}", model)) for k, model in enumerate(models)]


def assert_equal(files: list, models: list[dict]) -> None:
    for file, model in zip(files, models, strict=True):
        for key, value in file.open().items():
            assert torch.equal(value, model[key]), key


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("held", [frozenset(), {"odd"}])
def test_the_pull_towards_the_mean(tmp_path, threads, count, held):
    models = random_models(count)
    files = on_disk(tmp_path, models)
    pull_in_place.soft_pull_(models, 0.7, held)
    pull_on_disk.soft_pull_(files, 0.7, held)
    assert_equal(files, models)


def test_the_pull_towards_one_model(tmp_path, threads):
    *models, target = random_models(4)
    files = on_disk(tmp_path, models)
    pull_in_place.pull_to_(models, target, 0.7, {"half"})
    pull_on_disk.pull_to_(files, target, 0.7, {"half"})
    assert_equal(files, models)


@pytest.mark.parametrize("entries", [5 * 64, 5 * 1024, 10**6])
def test_each_sites_own_mean(tmp_path, threads, monkeypatch, entries):
    """Pieces of 64 entries of a model, of 1,024, and each tensor whole."""
    monkeypatch.setattr(pull_on_disk, "_PIECES", entries)
    models = random_models(5)
    files = on_disk(tmp_path, models)
    shares = torch.rand(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).fill_diagonal_(0)
    shares[0, 3] = 0
    shares /= shares.sum(1, keepdim=True)
    pull_in_place.weighted_pull_(models, 0.6, shares, {"odd"})
    pull_on_disk.weighted_pull_(files, 0.6, shares, {"odd"})
    assert_equal(files, models)


OPTIONS = {
    "the paper's": {},
    "global": {"overrides": ["tracks.personal.pull=global"]},
    "similarity": {"overrides": ["tracks.personal.pull=similarity"], "selector": "statistics"},
    "own norms, alone at the end": {"overrides": ["tracks.personal.norm=own", "tracks.personal.alone=0.4"]},
    "averages": {"ema": 0.5},
    "handed over": {"method": "local"},
}


def settings_with(**given):
    return small_settings(**({"lam": 0.7} if "method" not in given else {}) | given | {
        "overrides": [*TINY, *given.get("overrides", [])]
    })  # fmt: skip


def play(settings, store, restart=lambda run: None) -> dict:
    """Three rounds, of which the second lacks a site; the checkpoint's files."""
    run = TrackRun(settings, SITES, server_tracks(settings, SITES, store))
    run.register()
    run.play_round()
    run.play_round(SITES[:2])
    restart(run)
    return run.run().files()


@pytest.mark.parametrize("name", OPTIONS)
def test_a_run_in_files_equals_one_in_memory(tmp_path, name):
    settings = settings_with(**OPTIONS[name])
    kept, files = play(settings, IN_MEMORY), play(settings, OnDisk(tmp_path / "models"))
    assert kept.keys() == files.keys()
    for stem, tensors in kept.items():
        assert all(torch.equal(files[stem][key], value) for key, value in tensors.items()), stem
    assert any((tmp_path / "models").iterdir())


@pytest.mark.parametrize("name", ["the paper's", "averages"])
def test_the_run_may_go_on_in_the_other_way(tmp_path, name):
    """From memory to files and back, as a resumed run may have another setting."""
    settings = settings_with(**OPTIONS[name])
    stores = [IN_MEMORY, OnDisk(tmp_path / "models")]

    def restart_in(store):
        def restart(run):
            files = run.files()
            run.servers = server_tracks(settings, SITES, store)
            for track in run.servers.values():
                track.load_files(files)

        return restart

    straight = play(settings, IN_MEMORY)
    for first, second in (stores, stores[::-1]):
        files = play(settings, first, restart_in(second))
        for stem, tensors in straight.items():
            assert all(torch.equal(files[stem][key], value) for key, value in tensors.items()), stem


def test_payloads_are_not_changed_by_later_answers(tmp_path):
    """A site that downloads slowly still gets the model of its round."""
    track = server_tracks(settings_with(), SITES, OnDisk(tmp_path / "models"))["personal"]
    for stem, model in track.files().items():
        os.link(stored(model).path, tmp_path / stem)  # as a checkpoint does
    payload = track.payload(TRAIN, SITES[0])
    before = copy(payload)
    for site in SITES:
        track.accept(TRAIN, site, {key: torch.ones_like(value) for key, value in payload.items()})
    track.close(TRAIN)
    assert all(torch.equal(payload[key], value) for key, value in before.items())


@pytest.mark.parametrize(
    "given, reason",
    [
        ({"method": "fedavg"}, "fedavg has none"),
        ({"overrides": ["aggregation=median", "min_sites=4"]}, "aggregation 'median' needs all their updates"),
        ({"overrides": ["personal_mix=[0.1]"]}, "personal_mix makes a model for each"),
    ],
)
def test_what_would_keep_the_models_in_memory_is_refused(given, reason):
    overrides = [*given.pop("overrides", []), "personal_models=disk"]
    with pytest.raises(UserError, match=reason):
        server_tracks(small_settings(**given, overrides=overrides), [*SITES, "site-4"])
