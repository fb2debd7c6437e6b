"""Foreign images, shares of the global model and mirror images, by hand."""

import json

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.selectors.gaussian import StatisticsSelector, gaussian_classes, typical_distances
from fedsm.selectors.inference import DIRECT, MIXTURE, THRESHOLD
from fedsm.selectors.policy import Policy, in_words, mirrored_too, probabilities_of, read_policy
from fedsm.selectors.releases import exact_sums
from fedsm.selectors.selection import Selection, apply_policy, by_majority, mixed_with_global, weights_of

YHAT = torch.tensor([[0.95, 0.05], [0.6, 0.4], [0.1, 0.9]])
DISTANCE = torch.tensor([0.8, 0.8, 3.0])


def test_algorithm_2_with_a_limit_by_hand():
    """gamma 0.7 and delta 2: the first image is site 1's; the second is unsure (0.6); the third, though sure of site 2
    (0.9), is foreign (3 > 2). Both of these go to the global model."""
    selection = apply_policy(YHAT, DISTANCE, THRESHOLD, Policy(0.7, 2.0))
    assert selection.choices.tolist() == [1, 0, 0]
    assert selection.foreign.tolist() == [False, False, True]


def test_each_site_has_a_limit_of_its_own():
    """Deltas 0.5 and 4: the images nearest to site 1 are foreign at 0.8, the one nearest to site 2 is not at 3.
    Without a limit for site 1 none is."""
    selection = apply_policy(YHAT, DISTANCE, THRESHOLD, Policy(0.0, (0.5, 4.0)))
    assert selection.choices.tolist() == [0, 0, 2] and selection.foreign.tolist() == [True, True, False]
    assert apply_policy(YHAT, DISTANCE, THRESHOLD, Policy(0.0, (None, 4.0))).choices.tolist() == [1, 1, 2]


def test_one_limit_for_all_is_the_same_limit_for_each():
    for delta in (0.5, 0.9, 4.0):
        of_each = apply_policy(YHAT, DISTANCE, THRESHOLD, Policy(0.7, (delta, delta)))
        for_all = apply_policy(YHAT, DISTANCE, THRESHOLD, Policy(0.7, delta))
        assert of_each.choices.tolist() == for_all.choices.tolist()


@pytest.mark.parametrize("policy", [Policy(0.7, (1.0, 1.0, None)), Policy(0.7, share=(0.2, 0.4, 0.4))])
def test_limits_and_shares_of_other_sites_are_refused(policy):
    with pytest.raises(UserError, match="3 values for 2 sites"):
        apply_policy(YHAT, DISTANCE, THRESHOLD, policy)


def test_limits_survive_json():
    policy = Policy(0.7, (1.5, None), (0.2, 0.4))
    assert read_policy(json.loads(json.dumps(policy.to_dict())), "a test") == policy
    assert in_words(policy.delta) == "1.5, none" and in_words(2.0) == "2"


@pytest.mark.parametrize("distance", [None, DISTANCE])
def test_without_a_limit_it_is_algorithm_2(distance):
    selection = apply_policy(YHAT, distance, THRESHOLD, Policy(0.7))
    assert selection.choices.tolist() == [1, 0, 2] and selection.foreign is None


def test_no_limit_can_be_met_by_a_selector_without_a_distance():
    assert apply_policy(YHAT, None, THRESHOLD, Policy(0.7, 2.0)).choices.tolist() == [1, 0, 2]


def test_a_share_of_the_global_model_by_hand():
    """share 0.4: (1 - 0.4) of site 1's model and 0.4 of the global one; where the global one is chosen it has all."""
    selection = apply_policy(YHAT, DISTANCE, THRESHOLD, Policy(0.7, 2.0, 0.4))
    weights = weights_of(selection, 3, THRESHOLD, Policy(0.7, 2.0, 0.4))
    torch.testing.assert_close(weights, torch.tensor([[0.4, 0.6, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    hard = weights_of(selection, 3, THRESHOLD, Policy(0.7, 2.0))
    assert hard.tolist() == [[0, 1, 0], [1, 0, 0], [1, 0, 0]], "share 0 is hard selection"
    assert mixed_with_global(hard, 1.0).tolist() == [[1, 0, 0]] * 3, "share 1 is the global model"


def test_each_site_has_a_share_of_its_own():
    """Shares 0.2 and 0.6: site 1's images keep 0.8 of its model, site 2's 0.4 of its own. Equal ones are one share."""
    selection = apply_policy(YHAT, DISTANCE, THRESHOLD, Policy(0.7))
    weights = weights_of(selection, 3, THRESHOLD, Policy(0.7, share=(0.2, 0.6)))
    torch.testing.assert_close(weights, torch.tensor([[0.2, 0.8, 0.0], [1.0, 0.0, 0.0], [0.6, 0.0, 0.4]]))
    equal = weights_of(selection, 3, THRESHOLD, Policy(0.7, share=(0.4, 0.4)))
    torch.testing.assert_close(equal, weights_of(selection, 3, THRESHOLD, Policy(0.7, share=0.4)))


def test_a_named_model_and_a_mixture_get_no_share():
    selection = apply_policy(YHAT, None, THRESHOLD, Policy(0.0))
    assert weights_of(selection, 3, None, Policy(0.0, share=0.4)).tolist() == [[0, 1, 0], [0, 1, 0], [0, 0, 1]]
    yhat = torch.tensor([[0.2, 0.5, 0.3]])
    mixture = apply_policy(yhat, None, MIXTURE, Policy())
    assert weights_of(mixture, 3, MIXTURE, Policy(share=0.4)) is yhat


def test_foreign_images_are_not_shared_by_soft_selection():
    weights = weights_of(
        apply_policy(YHAT, DISTANCE, THRESHOLD, Policy(0.0, 2.0)), 3, THRESHOLD, Policy(0.0, 2.0), True
    )
    assert weights[2].tolist() == [1, 0, 0] and weights[0].tolist() == pytest.approx([0, 0.95, 0.05])


def voted(choices, yhat, slices, rule=THRESHOLD, foreign=None):
    given = Selection(
        torch.tensor(choices), torch.tensor(yhat), None, None if foreign is None else torch.tensor(foreign)
    )
    return by_majority(given, rule, slices)


def test_the_model_of_a_volume_is_what_most_slices_select():
    """A volume of 3 slices that select 2, 1, 2: model 2. A picture keeps its own. A volume of 2: model 1 twice."""
    yhat = [[0.1, 0.9], [0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.6, 0.4], [0.6, 0.4]]
    found = voted([2, 1, 2, 2, 1, 1], yhat, [3, 1, 2])
    assert found.choices.tolist() == [2, 2, 2, 2, 1, 1] and found.foreign is None
    assert found.yhat.tolist() == torch.tensor(yhat).tolist(), "what each slice says stays"


def test_of_equal_votes_the_larger_sum_of_yhat():
    """One slice each: sums of yhat are 0.95 + 0.4 = 1.35 for site 1, and 0.05 + 0.6 = 0.65 for site 2. With 0.55 in
    place of 0.95 they are 0.95 and 1.05. A tie with the global model, which has no yhat, is the site's; where the
    selector gives it some (rule `direct`), it can win: 0.5 + 0.4 against 0.2 + 0.5. All equal: the first."""
    assert voted([1, 2], [[0.95, 0.05], [0.4, 0.6]], [2]).choices.tolist() == [1, 1]
    assert voted([1, 2], [[0.55, 0.45], [0.4, 0.6]], [2]).choices.tolist() == [2, 2]
    assert voted([0, 2], [[0.5, 0.5], [0.1, 0.9]], [2]).choices.tolist() == [2, 2]
    direct = [[0.5, 0.2, 0.3], [0.4, 0.5, 0.1]]
    assert voted([0, 1], direct, [2], DIRECT).choices.tolist() == [0, 0]
    assert voted([1, 2], [[0.5, 0.5], [0.5, 0.5]], [2]).choices.tolist() == [1, 1]


def test_a_volume_is_foreign_if_most_of_its_slices_are():
    """2 of 3: foreign, and these two select the global model. 1 of 2 is not most; 0 of 1 and 1 of 1 are a picture's."""
    yhat = [[0.9, 0.1]] * 7
    found = voted([0, 0, 1, 0, 1, 1, 0], yhat, [3, 2, 1, 1], foreign=[True, True, False, True, False, False, True])
    assert found.foreign.tolist() == [True] * 3 + [False] * 2 + [False, True]
    assert found.choices.tolist() == [0, 0, 0, 1, 1, 1, 0]


def test_a_mixture_and_no_selector_have_no_majority():
    mixture = Selection(torch.tensor([1, 2, 2]), torch.rand(3, 3))
    assert by_majority(mixture, MIXTURE, [3]) is mixture
    nothing = Selection(torch.zeros(3, dtype=torch.long))
    assert by_majority(nothing, None, [3]) is nothing


def test_mirror_images_by_hand():
    """A network whose logit is the pixel times its column (0, 1): x = (1, 1) gives (0, 1) and, for the mirror image
    mirrored back, (1, 0): the mean of both is (sigmoid 0 + sigmoid 1) / 2 = (0.5 + 0.7311) / 2 in both columns."""
    column = torch.tensor([0.0, 1.0])
    net = lambda x: x * column  # noqa: E731
    images = torch.ones(1, 1, 1, 2)
    found = mirrored_too(net, images, probabilities_of(net, images))
    assert found.flatten().tolist() == pytest.approx([0.61553, 0.61553], abs=1e-5)


def test_what_a_prediction_costs():
    tried = ((0.0, False), (0.4, False), (0.0, True), (0.4, True), ((0.0, 0.4), False))
    assert [Policy(share=share, flip=flip).networks for share, flip in tried] == [1, 2, 2, 4, 2]


@pytest.mark.parametrize(
    "bad",
    [
        {"gamma": 2},
        {"gamma": "0.5"},
        {"delta": -1},
        {"delta": [1.0, -1]},
        {"delta": float("nan")},
        {"share": 1.5},
        {"share": [0.2, 1.5]},
        {"flip": "yes"},
        {"majority": 1},
    ],
)
def test_a_policy_out_of_range_is_refused(bad):
    with pytest.raises(UserError, match=f"the manifest: {next(iter(bad))} must be"):
        read_policy(bad, "the manifest")


def test_a_super_model_of_version_0_1_has_gamma_only():
    assert read_policy({"gamma": 0.9, "sites": []}, "it") == Policy(0.9)


def test_typical_distances_by_hand(monkeypatch):
    """One number per image. Site 1 has 1 and 3, site 2 has 0 and 8: means 2 and 4, scatter 2 and 32.

    Sigma = 34 / (4 - 2) = 17. Mean squared distance of site 1: (2 / 2) / 17 = 1/17, of site 2: (32 / 2) / 17 = 16/17.
    So t = 0.2425 and 0.9701. An image with 3 is 1 / sqrt(17) from both: 1 usual distance from site 1, a quarter of one
    from site 2. Equal distances: the first counts as the nearest.
    """
    rows = [torch.tensor([[1.0], [3.0]], dtype=torch.float64), torch.tensor([[0.0], [8.0]], dtype=torch.float64)]
    sums = {site: exact_sums(r) for site, r in zip("ab", rows, strict=True)}
    classes = gaussian_classes(list(sums.values()))
    typical = typical_distances(classes, sums, ["a", "b"], 0.1)
    assert typical.tolist() == pytest.approx([(1 / 17) ** 0.5, (16 / 17) ** 0.5])
    assert typical_distances(classes, sums, ["a", "b", "c"], 0.1)[2] == pytest.approx(typical[:2].mean().item())
    monkeypatch.setattr("fedsm.selectors.gaussian.build_descriptor", lambda *_: lambda x: x)
    tensors = classes | {"typical": typical, "shrinkage": torch.tensor(0.1)}
    selector = StatisticsSelector(None, 2, tensors, torch.device("cpu"))
    images = torch.tensor([[3.0], [1.0], [8.0]], dtype=torch.float64)
    # 1 is 1 / sqrt(17) from site 1: 1. 8 is 4 / sqrt(17) from site 2: 4 / sqrt(16) = 1.
    assert selector.probabilities_and_distance(images)[1].tolist() == pytest.approx([1, 1, 1])
