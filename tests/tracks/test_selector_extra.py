"""FedSM-extra: labels, rounds of its own and what travels, by hand."""

import pytest
import torch
from torch import nn

from fedsm.core.errors import UserError
from fedsm.tracks import client_tracks, playing, score_names, server_tracks
from fedsm.tracks.base import DELIVER, TRAIN, SiteContext
from tests.helpers.small_jobs import SITES, small_settings


class Constant(nn.Module):
    """A network whose every logit is one number."""

    def __init__(self, level: float):
        super().__init__()
        self.level = torch.tensor(level)

    def forward(self, x):
        return self.level.expand(len(x), 2, *x.shape[2:])


def settings(rounds=3, own=1):
    return small_settings(method="fedsm-extra", rounds=rounds, overrides=[f"tracks.selector.rounds={own}"])


def client():
    return client_tracks(settings(), SiteContext(0, len(SITES), torch.device("cpu")))["selector"]


def test_label_is_the_model_with_the_lowest_loss():
    """Every model gives one probability p everywhere: 0.5 (global), then about 1, 0 and 0.9.

    Truth all 1 (n pixels): Dice loss 1 - 2 n p / (n + n p) is 1/3 at p = 0.5, 0 at 1, 1 at 0, 0.05 at 0.9: model 1.
    Truth all 0: 1 - eps / (n p + eps) is lowest at p = 0: model 2.
    """
    track = client()
    track._models = [Constant(level) for level in (0.0, 20.0, -20.0, 2.2)]
    images = torch.rand(2, 3, 4, 4)
    truth = torch.stack([torch.ones(2, 4, 4), torch.zeros(2, 4, 4)])
    track.begin(2, [(images, truth)])
    assert track._known["labels"].tolist() == [1, 2]


def test_score_is_the_dice_of_what_is_chosen():
    """Models that mark nothing (0), everything (1), nothing, everything; two images, truth all 1 and all 0.

    Dice of the four: 0 1 0 1 and 1 0 1 0. A selector that names model 3 for the first scores 1 there, though model 1 is
    the first of the best; naming 1 for the second scores 0: mean 0.5.
    """

    class Names(nn.Module):
        def __init__(self, *models):
            super().__init__()
            self.models = models

        def forward(self, x):
            return nn.functional.one_hot(torch.tensor(self.models), 4).float()

    track = client()
    track._models = [Constant(level) for level in (-1.0, 1.0, -1.0, 1.0)]
    batch = torch.rand(2, 3, 4, 4), torch.stack([torch.ones(2, 4, 4), torch.zeros(2, 4, 4)])
    for names, score in (((3, 1), 0.5), ((3, 2), 1.0), ((0, 1), 0.0)):
        track.learner.net = Names(*names)
        assert track.validate(TRAIN, [batch]) == {"score": score, "images": 2}
        track._models = []  # the Dice of all models are kept


@pytest.mark.parametrize(
    ("method", "word"), [("fedsm", "accuracy"), ("fedsm-extra", "Dice"), ("fedsm-ensemble", "Dice")]
)
def test_a_score_is_called_what_it_is(method, word):
    """FedSM's selector names sites; the others are judged by what comes of their choices."""
    assert score_names(small_settings(method=method, rounds=60)) == {
        "global": "Dice", "personal": "Dice", "selector": word
    }  # fmt: skip


def test_every_step_sees_the_labels_of_its_own_images():
    """Cross entropy of logits 0: log(4) whatever the label; of logits that favour label 2 only where it is 2."""
    track = client()
    track._known["labels"] = torch.tensor([0, 2, 1])
    logits = torch.tensor([[0.0, 0.0, 30.0, 0.0]])
    track.learner.forward = lambda images: logits
    assert track.loss(None, None, torch.tensor([1])).item() == pytest.approx(0, abs=1e-6)
    assert track.loss(None, None, torch.tensor([2])).item() == pytest.approx(30, abs=1e-4)


def test_labels_survive_a_restart():
    track = client()
    track._known = {"labels": torch.tensor([0, 3]), "dice": torch.tensor([[0.5, 1.0]])}
    again = client()
    again.load_state(track.state())
    assert again._known["labels"].tolist() == [0, 3] and again._known["dice"].tolist() == [[0.5, 1.0]]


def test_lost_labels_are_an_error_that_says_so():
    with pytest.raises(UserError, match="labels"):
        client().begin(0, [])


def test_the_last_rounds_are_the_selectors_own():
    tracks = server_tracks(settings(rounds=5, own=2), SITES)
    names = [playing(tracks, number) for number in range(1, 6)]
    assert names == [["global", "personal"]] * 3 + [["selector"]] * 2


def test_models_go_down_once_and_again_to_a_site_that_missed_a_round():
    tracks = server_tracks(settings(), SITES)
    track = tracks["selector"]
    models = {"global": {"w": torch.zeros(1)}} | {f"personal.{s}": {"w": torch.ones(1)} for s in SITES}
    update = {k: torch.zeros_like(v) for k, v in track.expects(TRAIN).items()}

    def sent(site):
        return sorted(k for k in track.payload(TRAIN, site) if k.startswith("model/"))

    track.open(4, lambda: models)
    assert sent(SITES[0]) == [f"model/{m}/w" for m in range(4)]
    for site in SITES[:2]:
        track.accept(TRAIN, site, update, 5)
    track.close(TRAIN)
    track.open(5, lambda: models)
    assert [len(sent(s)) for s in SITES] == [0, 0, 4]
    assert not any(k.startswith("model/") for k in track.payload(DELIVER, SITES[2]))


@pytest.mark.parametrize(
    ("given", "word"), [(["tracks.selector.rounds=3"], "fewer"), (["tracks.selector.rounds=0"], "at least 1")]
)
def test_bad_options_are_refused(given, word):
    with pytest.raises(UserError, match=word):
        server_tracks(small_settings(method="fedsm-extra", rounds=3, overrides=given), SITES)
