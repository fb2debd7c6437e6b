"""How the federation chooses its policy from validation scores, by hand."""

import pytest

from fedsm.selectors.policy import Policy
from fedsm.server.policy_choice import choose_policy, policy_score, policy_table
from tests.helpers.small_jobs import small_settings

GAMMAS = [0.0, 0.9]
SHARES = [0.0, 0.4]
SIX = [f"site-{k}" for k in range(1, 7)]


def settings(**given):
    values = {"selection": "best", "gammas": GAMMAS, "shares": SHARES, "deltas": [1.0, 1.5, 2.0]}
    return small_settings(**(values | given))


def answer(
    plain=(0.70, 0.69), shared=(0.70, 0.69), flipped=(0.70, 0.69), both=(0.70, 0.69), deltas=(), votes=None
) -> dict:  # fmt: skip
    """A site's scores at both gammas; `deltas`: (Dice without, Dice with the share) at 1, 1.5, 2 and without limit;
    `votes`: with one model per volume, whatever share and flip; None: it has no volumes."""
    rows = {(0.0, False): plain, (0.4, False): shared, (0.0, True): flipped, (0.4, True): both}
    return {
        "images": 10,
        "gammas": [{"gamma": g, "dice": {"disc": v}} for g, v in zip(GAMMAS, plain, strict=True)],
        "mixtures": [{"share": s, "flip": f, "dice": list(v)} for (s, f), v in rows.items()],
        "majorities": [{"share": s, "flip": f, "dice": list(votes)} for s, f in rows] if votes else [],
        "deltas": [{"delta": d, "dice": list(v)} for d, v in zip([1.0, 1.5, 2.0, None], deltas, strict=False)],
    }


def chosen(one: dict, sites=("a", "b"), **given) -> Policy:
    return choose_policy(dict.fromkeys(sites, one), settings(**given), list(sites))


def of_six(five: dict, sixth: dict) -> Policy:
    """What is chosen when the sixth site says something else."""
    return choose_policy(dict.fromkeys(SIX[:5], five) | {"site-6": sixth}, settings(), SIX)


def test_the_best_on_validation_is_taken():
    assert chosen(answer(both=(0.75, 0.74))) == Policy(0.0, None, (0.4, 0.4), True)
    assert chosen(answer(shared=(0.71, 0.72))) == Policy(0.9, None, (0.4, 0.4), False)
    assert chosen(answer(flipped=(0.70, 0.73))) == Policy(0.9, None, 0.0, True)


def test_a_dearer_policy_must_be_worth_it():
    """Four runs of a network gain 0.0005 over two (not worth it), and two gain 0.02 over one (worth it)."""
    assert chosen(answer(shared=(0.72, 0.69), both=(0.7205, 0.69))) == Policy(0.0, None, (0.4, 0.4), False)
    assert chosen(answer(shared=(0.7005, 0.69), both=(0.7009, 0.69))) == Policy(0.0)


def test_of_equal_gammas_the_largest():
    assert chosen(answer(plain=(0.7, 0.7))) == Policy(0.9)


def test_delta_is_the_smallest_that_costs_no_more_than_it_may():
    """At the share of 0.4 the limits 1, 1.5, 2 cost 0.01, 0.0008, 0: 1.5 is the smallest at most 0.001, and 1.25 times
    that is the delta."""
    deltas = [(0.60, 0.710), (0.65, 0.7192), (0.70, 0.72), (0.70, 0.72)]
    assert chosen(answer(shared=(0.72, 0.71), deltas=deltas)).delta == (1.875, 1.875)
    assert chosen(answer(shared=(0.72, 0.71), deltas=deltas), delta_cost=0.0).delta == (2.5, 2.5)
    assert chosen(answer(shared=(0.72, 0.71), deltas=deltas), delta_cost=0.02).delta == (1.25, 1.25)
    dear = [(0.6, 0.6)] * 3 + [(0.70, 0.72)]
    assert chosen(answer(shared=(0.72, 0.71), deltas=dear)).delta is None, "each costs too much"
    assert chosen(answer()).delta is None, "the selector knows no distance"


def test_each_site_has_the_delta_that_its_own_images_bear():
    """Five sites lose nothing by a limit of 1, the sixth 0.05: it has a larger one, or none, and the others keep
    theirs. A site without scores has none."""
    usual = answer(deltas=[(0.70, 0.70)] * 4)
    unlike = answer(deltas=[(0.65, 0.65), (0.69, 0.69), (0.70, 0.70), (0.70, 0.70)])
    assert of_six(usual, usual).delta == (1.25,) * 6
    assert of_six(usual, unlike).delta == (1.25,) * 5 + (2.5,)
    dear = answer(deltas=[(0.65, 0.65)] * 3 + [(0.70, 0.70)])
    assert of_six(usual, dear).delta == (1.25,) * 5 + (None,)
    assert choose_policy({"b": usual}, settings(), ["a", "b"]).delta == (None, 1.25)


def test_each_site_has_the_share_that_is_best_for_its_own_images():
    """Five sites gain 0.02 by the share, the sixth loses 0.05 by it. A site without scores has none."""
    usual, unlike = answer(shared=(0.72, 0.72)), answer(plain=(0.70, 0.70), shared=(0.65, 0.65))
    assert of_six(usual, unlike) == Policy(0.9, None, (0.4,) * 5 + (0.0,), False)
    assert choose_policy({"b": usual}, settings(), ["a", "b"]).share == (0.0, 0.4)


def test_a_small_site_leans_on_the_others():
    """The others gain 0.03. A site that loses 0.06 on n images counts (n * -0.06 + 10 * 0.03) / (n + 10): 0.0086 with 4
    images, -0.0086 with 6, where its own word wins. What one other site says is not the median."""
    usual = answer(plain=(0.70, 0.70), shared=(0.73, 0.73))
    for images, share in ((4, 0.4), (6, 0.0)):
        small = answer(plain=(0.70, 0.70), shared=(0.64, 0.64)) | {"images": images}
        assert of_six(usual, small).share == (0.4,) * 5 + (share,)
        forged = answer(plain=(1.0, 1.0), shared=(0.0, 0.0)) | {"images": 10**6}
        six = dict.fromkeys(SIX[:4], usual) | {"site-5": forged, "site-6": small}
        assert choose_policy(six, settings(), SIX).share == (0.4,) * 4 + (0.0, share)


def test_a_share_must_be_worth_a_second_network():
    """All gain 0.001 (not worth it) or 0.0011."""
    for gain, share in ((0.001, 0.0), (0.0011, (0.4,) * 6)):
        one = answer(plain=(0.70, 0.70), shared=(0.70 + gain, 0.70 + gain))
        assert of_six(one, one).share == share


def test_the_score_of_a_policy_is_that_at_the_sites_own_share():
    one = answer(plain=(0.70, 0.69), shared=(0.72, 0.71))
    policy = Policy(0.9, None, (0.0, 0.4))
    assert [policy_score(one, site, policy, settings()) for site in (0, 1)] == [0.69, 0.71]


def test_mirror_images_may_not_cost_the_site_that_is_unlike_the_others():
    """Five sites gain 0.02 by mirror images. The sixth may lose half a point by them, not more."""
    usual = answer(flipped=(0.72, 0.72))
    for loss, flip in ((0.004, True), (0.006, False)):
        unlike = answer(plain=(0.70, 0.70), flipped=(0.70 - loss, 0.70 - loss))
        assert of_six(usual, unlike).flip is flip


def test_a_false_veto_brings_about_no_mirror_images_and_no_more():
    """The others keep their gamma, shares and deltas. Whoever sees no difference between shares has the others'."""
    honest = answer(shared=(0.72, 0.71), both=(0.75, 0.74), deltas=[(0.60, 0.71), (0.69, 0.72)] + [(0.70, 0.72)] * 2)
    veto = answer(plain=(1.0, 1.0), shared=(1.0, 1.0), flipped=(0.0, 0.0), both=(0.0, 0.0))
    assert of_six(honest, honest) == Policy(0.0, (1.875,) * 6, (0.4,) * 6, True)
    assert of_six(honest, veto) == Policy(0.0, (1.875,) * 5 + (None,), (0.4,) * 6, False)


def test_one_model_per_volume_where_it_is_better():
    """By slice 0.70 at gamma 0 and 0.69 at 0.9; by majority 0.68 and 0.72: better, at its own gamma. Equal ones stay by
    slice. Two of three sites without volumes see a difference of 0, so (0 + 0 + 0.02) / 3 is more than none."""
    better, equal = answer(votes=(0.68, 0.72)), answer(votes=(0.70, 0.69))
    assert chosen(better) == Policy(0.9, majority=True)
    assert chosen(equal) == Policy(0.0) and chosen(answer(votes=(0.69, 0.6999))) == Policy(0.0)
    three = {"a": answer(), "b": answer(votes=(0.72, 0.69)), "c": answer()}
    assert choose_policy(three, settings(), list("abc")) == Policy(0.0, majority=True)
    assert chosen(equal, volume_selection="majority") == Policy(0.0, majority=True), "as asked for"
    assert chosen(answer(), volume_selection="majority") == Policy(0.0), "there are no volumes"
    assert policy_score(better, 0, Policy(0.9, majority=True), settings()) == 0.72


def test_one_site_cannot_choose_one_model_per_volume_and_each_can_veto_it():
    """Of 0 five times and 0.3, the trimmed mean is 0. Five gain 0.02; the sixth may lose half a point, not more."""
    indifferent, usual = answer(votes=(0.70, 0.69)), answer(votes=(0.72, 0.71))
    assert of_six(indifferent, answer(votes=(1.0, 1.0))) == Policy(0.0)
    for loss, majority in ((0.004, True), (0.006, False)):
        assert of_six(usual, answer(votes=(0.70 - loss, 0.69))).majority is majority


def test_the_table_of_policies_has_rows_by_majority_where_there_are_volumes():
    found = policy_table(dict.fromkeys("ab", answer(votes=(0.68, 0.72))), settings())
    assert [(row["share"], row["flip"], row["majority"]) for row in found[4:]] == [
        (0.0, False, True), (0.4, False, True), (0.0, True, True), (0.4, True, True),
    ]  # fmt: skip
    assert found[4]["gamma"] == 0.9 and found[4]["gain"] == pytest.approx(0.02)
    assert not any(row["majority"] for row in policy_table({"a": answer()}, settings()))


def test_without_a_selector_only_the_flip_is_chosen():
    rows = [{"share": 0.0, "flip": flip, "dice": [dice]} for flip, dice in ((False, 0.7), (True, 0.71))]
    one = {"images": 10, "gammas": [], "mixtures": rows, "deltas": [], "majorities": []}
    assert chosen(one) == Policy(None, None, 0.0, True)


def test_algorithm_2_is_one_setting():
    one = answer()
    one["mixtures"] = one["mixtures"][:1]
    assert chosen(one, selection="algorithm2") == Policy(0.0)


@pytest.mark.parametrize(
    "forged",
    [
        answer(
            plain=(0.0, 1.0),
            shared=(1.0, 1.0),
            flipped=(1.0, 1.0),
            both=(1.0, 1.0),
            deltas=[(1.0, 1.0)] * 3 + [(0.0, 0.0)],
        ),
        answer(both=(1.0, 0.0), deltas=[(1.0, 1.0)] * 4),
        answer(**dict.fromkeys(("plain", "shared", "flipped", "both"), (0.0, 1.0)), deltas=[(1.0, 1.0)] * 4),
    ],
)
def test_one_of_six_sites_cannot_choose(forged):
    """Five honest sites gain 0.02 by the share and lose 0.01 by the smallest limit and by the larger gamma. The sixth
    chooses for the images nearest to itself alone, also where it claims to gain more than the five lose together."""
    honest = answer(shared=(0.72, 0.71), deltas=[(0.60, 0.71), (0.69, 0.72), (0.70, 0.72), (0.70, 0.72)])
    assert of_six(honest, honest) == Policy(0.0, (1.875,) * 6, (0.4,) * 6, False)
    found = of_six(honest, forged | {"images": 10**6})
    assert found == Policy(0.0, (1.875,) * 5 + (1.25,), (0.4,) * 5 + found.share[5:], False)
