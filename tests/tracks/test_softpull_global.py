"""SoftPull towards the global model, on numbers small enough to do by hand."""

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.nets import build_unet
from fedsm.tracks import check_tracks, server_tracks
from fedsm.tracks.base import TRAIN
from fedsm.tracks.fedbn import norm_entries
from fedsm.tracks.pull_in_place import pull_to_
from tests.helpers.small_jobs import SITES, small_settings

TWO = SITES[:2]


def closed(lam: float, ema: float = 0.0, **options) -> tuple[dict, dict]:
    """Two sites of one size: global models 2 and 4 after training, personal ones 1 and 7. Also the norm entries."""
    overrides = [
        f"ema={ema}",
        *(f"tracks.personal.{key}={value}" for key, value in ({"pull": "global"} | options).items()),
    ]
    tracks = server_tracks(small_settings(lam=lam, overrides=overrides), TWO)
    for name, values in (("global", (2.0, 4.0)), ("personal", (1.0, 7.0))):
        template = tracks[name].expects(TRAIN)
        files = tracks[name].files()
        tracks[name].load_files({s: {k: torch.zeros_like(v) for k, v in t.items()} for s, t in files.items()})
        for site, value in zip(TWO, values, strict=True):
            tracks[name].accept(TRAIN, site, {k: torch.full(v.shape, value) for k, v in template.items()}, 0.5)
    for track in tracks.values():
        track.open(1, dict)
    for name in ("global", "personal"):
        tracks[name].close(TRAIN)
    entries = tracks["personal"].expects(TRAIN)
    personal = {s: {k: tracks["personal"].payload(TRAIN, s)[k] for k in entries} for s in TWO}
    return personal, norm_entries(build_unet(tracks["personal"].settings.task))


def test_each_site_is_pulled_by_the_global_model_of_this_round():
    """w_g = (2 + 4) / 2 = 3. lam = 0.75: 0.75 * 1 + 0.25 * 3 = 1.5 and 0.75 * 7 + 0.25 * 3 = 6."""
    personal, _ = closed(0.75)
    for site, expected in zip(TWO, (1.5, 6.0), strict=True):
        assert all(torch.allclose(v, torch.tensor(expected)) for v in personal[site].values()), site


def test_lam_one_is_local_training():
    personal, _ = closed(1.0)
    assert [next(iter(personal[site].values())).flatten()[0].item() for site in TWO] == [1.0, 7.0]


def test_norm_layers_stay_the_sites_own():
    personal, norms = closed(0.75, norm="own")
    for key, value in personal[TWO[1]].items():
        assert torch.allclose(value, torch.tensor(7.0 if key in norms else 6.0)), key


def test_an_average_over_rounds_does_not_pull():
    """With `ema` the global track hands its average down as well; the pull is by the weights that training goes on
    from."""
    personal, _ = closed(0.75, ema=0.5)
    assert all(torch.allclose(v, torch.tensor(1.5)) for v in personal[TWO[0]].values())


def test_integers_are_not_pulled():
    models = [{"w": torch.tensor([1.0]), "steps": torch.tensor(3)}]
    pull_to_(models, {"w": torch.tensor([3.0]), "steps": torch.tensor(9), "more": torch.tensor(1.0)}, 0.5)
    assert models[0]["w"].item() == 2.0 and models[0]["steps"].item() == 3


def test_without_a_global_track_it_is_refused():
    settings = small_settings(overrides=["tracks.personal.pull=global"])
    settings.tracks.pop("global")
    with pytest.raises(UserError, match="needs the track `global`; list it before `personal`"):
        check_tracks(settings, SITES)
