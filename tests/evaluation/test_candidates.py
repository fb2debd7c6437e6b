"""A site's evaluation of the candidates: means and counts that add up."""

import pytest
import torch

from fedsm.evaluation import candidates as module
from fedsm.evaluation.candidates import evaluate_candidates
from fedsm.tracks import server_tracks
from tests.helpers.small_jobs import SITES, small_settings

CPU = torch.device("cpu")


class FixedSelector:
    """yhat by image: 0.9 for site 1, 0.6 for site 2, 0.4 for site 3."""

    def probabilities(self, images):
        return torch.tensor([[0.9, 0.05, 0.05], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]])


@pytest.fixture
def evaluation(monkeypatch):
    monkeypatch.setattr(module, "build_inference_selector", lambda *a: FixedSelector())
    settings = small_settings(gammas=[0.0, 0.5, 1.0])
    tracks = server_tracks(settings, SITES)
    models = {"global": tracks["global"].weights} | tracks["personal"].files()
    for i, weights in enumerate(models.values()):
        for v in weights.values():
            v.add_(torch.randn(v.shape, generator=torch.Generator().manual_seed(i)) * 0.1)
    torch.manual_seed(0)
    batch = (torch.rand(3, 3, 32, 32), (torch.rand(3, 2, 32, 32) > 0.5).float())
    return evaluate_candidates(settings, SITES, models | {"selector": {}}, lambda: [batch], CPU), settings


def test_selection_counts(evaluation):
    """gamma 0: every image goes to its argmax. gamma 0.5: the third (0.4) goes to the global model. gamma 1: all."""
    rows = {row["gamma"]: row["selected"] for row in evaluation[0]["gammas"]}
    assert rows[0.0] == {"global": 0, "personal.site-1": 1, "personal.site-2": 1, "personal.site-3": 1}
    assert rows[0.5] == {"global": 1, "personal.site-1": 1, "personal.site-2": 1, "personal.site-3": 0}
    assert rows[1.0] == {"global": 3, "personal.site-1": 0, "personal.site-2": 0, "personal.site-3": 0}
    assert evaluation[0]["argmax"] == {"site-1": 1, "site-2": 1, "site-3": 1}


def test_gamma_one_is_the_global_model(evaluation):
    result, settings = evaluation
    for label in settings.task.labels:
        assert result["gammas"][-1]["dice"][label] == pytest.approx(result["dice"]["global"][label])
    assert set(result["dice"]) == {"global", *(f"personal.{s}" for s in SITES)}
    assert result["images"] == 3
