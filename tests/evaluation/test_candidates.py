"""A site's evaluation of the candidates: means and counts that add up."""

import pytest
import torch

from fedsm.data.cases import Case
from fedsm.evaluation import candidates as module
from fedsm.evaluation.candidates import Candidates, evaluate_candidates, main_model, validate_candidates
from fedsm.evaluation.image_scores import score_images
from fedsm.selectors.policy import Policy
from fedsm.tracks import server_tracks
from tests.helpers.small_jobs import SITES, small_settings

CPU = torch.device("cpu")


class FixedSelector:
    """yhat by image: 0.9 for site 1, 0.6 for site 2, 0.4 for site 3."""

    def probabilities_and_distance(self, images):
        yhat = torch.tensor([[0.9, 0.05, 0.05], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]])
        return yhat, torch.tensor([0.9, 1.6, 1.1])


@pytest.fixture
def given(monkeypatch):
    """Settings, models, and three images."""
    monkeypatch.setattr(module, "build_inference_selector", lambda *a: FixedSelector())
    settings = small_settings(gammas=[0.0, 0.5, 1.0], selection="best", shares=[0.0, 0.4], deltas=[1.0, 1.5])
    tracks = server_tracks(settings, SITES)
    models = {"global": tracks["global"].weights} | tracks["personal"].files()
    for i, weights in enumerate(models.values()):
        for v in weights.values():
            v.add_(torch.randn(v.shape, generator=torch.Generator().manual_seed(i)) * 0.1)
    torch.manual_seed(0)
    batch = (torch.rand(3, 3, 32, 32), (torch.rand(3, 2, 32, 32) > 0.5).float())
    return settings, models | {"selector": {}}, batch


@pytest.fixture
def evaluation(given):
    settings, models, batch = given
    return evaluate_candidates(settings, SITES, models, lambda: [batch], CPU, Policy(0.5)), settings


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


def test_the_policy_is_what_is_used(given):
    """gamma 0.5 sends the third image (0.4) to the global model, delta 1.5 the second (1.6): one of three stays."""
    settings, models, batch = given
    found = evaluate_candidates(settings, SITES, models, lambda: [batch], CPU, Policy(0.5, 1.5))
    assert found["policy"]["selected"] == {
        "global": 2,
        "personal.site-1": 1,
        "personal.site-2": 0,
        "personal.site-3": 0,
    }
    assert found["policy"]["foreign"] == 1
    plain = evaluate_candidates(settings, SITES, models, lambda: [batch], CPU, Policy(0.5))
    assert plain["policy"]["foreign"] is None, "there is no limit"
    assert plain["policy"]["dice"] == plain["gammas"][1]["dice"], "share 0 and no delta: Algorithm 2"
    whole = evaluate_candidates(settings, SITES, models, lambda: [batch], CPU, Policy(0.0, share=1.0))
    assert whole["policy"]["dice"] == whole["dice"]["global"], "a share of 1 is the global model"


def test_mirror_images_are_for_all_models_and_leave_algorithm_2_alone(given):
    settings, models, batch = given
    plain, mirrored = (
        evaluate_candidates(settings, SITES, models, lambda: [batch], CPU, Policy(0.5, flip=flip))
        for flip in (False, True)
    )
    assert plain["gammas"] == mirrored["gammas"]
    assert plain["dice"] != mirrored["dice"] and plain["policy"]["dice"] != mirrored["policy"]["dice"]
    images, truth = batch
    both = (torch.cat([images, images.flip(-1)]), torch.cat([truth, truth.flip(-1)]))
    symmetric = evaluate_candidates(settings, SITES, models, lambda: [(both[0][:3], both[1][:3])], CPU, Policy(0.5))
    assert symmetric["dice"] == plain["dice"]


def test_the_grid_of_the_validation_images_agrees_with_every_policy(given):
    """What a site sends once is what each policy would give on the same images."""
    settings, models, batch = given
    found = validate_candidates(settings, SITES, "site-1", models, lambda: [batch], CPU)
    assert [(row["share"], row["flip"]) for row in found["mixtures"]] == [
        (0, False),
        (0.4, False),
        (0, True),
        (0.4, True),
    ]
    mean = lambda by_label: sum(by_label.values()) / len(by_label)  # noqa: E731
    for row in found["mixtures"]:
        for gamma, dice in zip(settings.gammas, row["dice"], strict=True):
            policy = Policy(gamma, None, row["share"], row["flip"])
            one = evaluate_candidates(settings, SITES, models, lambda: [batch], CPU, policy)
            assert mean(one["policy"]["dice"]) == pytest.approx(dice, abs=1e-6), policy
    assert [(row["delta"], row["foreign"]) for row in found["deltas"]] == [(1.0, 2), (1.5, 1), (None, 0)]
    for row in found["deltas"]:
        for share, dice in zip(settings.shares, row["dice"], strict=True):
            policy = Policy(0.0, row["delta"], share)
            one = evaluate_candidates(settings, SITES, models, lambda: [batch], CPU, policy)
            assert mean(one["policy"]["dice"]) == pytest.approx(dice, abs=1e-6), policy


def test_one_model_for_a_volume(given):
    """The first two images are a volume. At delta 1.5 the second is foreign (1.6), so they select site 1 and the global
    model, one slice each; the global one has no yhat, so both get site 1. One foreign slice of two is not most."""
    settings, models, batch = given
    batches = lambda: [(batch[0], batch[1])]  # noqa: E731
    found = evaluate_candidates(settings, SITES, models, batches, CPU, Policy(0.0, 1.5, majority=True), [2, 1])
    assert found["policy"]["selected"] == {
        "global": 0, "personal.site-1": 2, "personal.site-2": 0, "personal.site-3": 1,
    }  # fmt: skip
    assert found["policy"]["foreign"] == 0
    alone = evaluate_candidates(settings, SITES, models, batches, CPU, Policy(0.0, 1.5), [2, 1])["policy"]
    assert alone["foreign"] == 1 and alone["selected"]["global"] == 1
    pictures = evaluate_candidates(settings, SITES, models, batches, CPU, Policy(0.0, 1.5, majority=True), [1, 1, 1])
    assert pictures["policy"] == alone


def test_a_file_is_scored_with_the_model_of_its_volume(given):
    """Its slices select site 1, the global model (foreign) and site 3; the sums of yhat are 1.4, none and 0.65."""
    settings, models, (images, labels) = given
    case = Case("a", "p", "test", images, labels.to(torch.uint8), (1.0, 1.0), "px")
    candidates = Candidates(settings, SITES, models, CPU)
    scored = [
        score_images(candidates, [case], Policy(0.0, 1.5, majority=majority), 3, CPU, lambda: None, ("dice",))
        for majority in (False, True)
    ]
    assert [found.choices.tolist() for found in scored] == [[1, 0, 3], [1, 1, 1]]
    assert [found.foreign.tolist() for found in scored] == [[False, True, False], [False] * 3]
    by_volume = scored[1].scores
    assert torch.equal(by_volume["super_model"]["dice"], by_volume["personal.site-1"]["dice"])
    assert not torch.equal(scored[0].scores["super_model"]["dice"], by_volume["super_model"]["dice"])


def test_the_grid_by_majority_agrees_with_every_policy(given):
    settings, models, batch = given
    mean = lambda by_label: sum(by_label.values()) / len(by_label)  # noqa: E731
    found = validate_candidates(settings, SITES, "site-1", models, lambda: [batch], CPU, [2, 1])
    assert [(r["share"], r["flip"]) for r in found["majorities"]] == [
        (r["share"], r["flip"]) for r in found["mixtures"]
    ]
    assert found["majorities"] != found["mixtures"]
    for row in found["majorities"]:
        for gamma, dice in zip(settings.gammas, row["dice"], strict=True):
            policy = Policy(gamma, None, row["share"], row["flip"], True)
            one = evaluate_candidates(settings, SITES, models, lambda: [batch], CPU, policy, [2, 1])
            assert mean(one["policy"]["dice"]) == pytest.approx(dice, abs=1e-6), policy
    for changed, slices in ((settings, [1, 1, 1]), (settings.replace(volume_selection="slice"), [2, 1])):
        assert validate_candidates(changed, SITES, "site-1", models, lambda: [batch], CPU, slices)["majorities"] == []


def test_without_a_selector_only_mirror_images_are_tried(given):
    settings, models, batch = given
    found = validate_candidates(settings, SITES, "site-1", {"global": models["global"]}, lambda: [batch], CPU)
    assert [(row["share"], row["flip"], len(row["dice"])) for row in found["mixtures"]] == [(0, False, 1), (0, True, 1)]
    assert found["gammas"] == found["deltas"] == []
    assert main_model(["global", "personal.a"], "a") == "global"
    assert main_model(["personal.b", "personal.a"], "a") == "personal.a"
    assert main_model(["personal.b"], "a") == "personal.b"
