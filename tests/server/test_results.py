"""From the sites' answers to the tables, by hand."""

import pytest

from fedsm.selectors.policy import Policy
from fedsm.server.evaluation_check import evaluation_problem
from fedsm.server.policy_choice import choose_gamma
from fedsm.server.results import summarize
from tests.helpers.small_jobs import small_settings

SITES = ["a", "b"]
GAMMAS = (0.0, 0.5, 1.0)


def settings(**given):
    return small_settings(gammas=list(GAMMAS), **given)


def both(value: float) -> dict:
    return {"disc": value, "cup": value}


def part(images, global_, personal_a, personal_b, by_gamma, selected) -> dict:
    return {
        "images": images,
        "dice": {"global": both(global_), "personal.a": both(personal_a), "personal.b": both(personal_b)},
        "gammas": [
            {"gamma": g, "dice": both(v), "selected": dict(selected)} for g, v in zip(GAMMAS, by_gamma, strict=True)
        ],
        "argmax": {"a": images - 1, "b": 1},
    }


def answers(which: str) -> dict:
    """What both sites say of their validation or of their test images; the policy is Algorithm 2 at gamma 0."""
    small, large = {"global": 0, "personal.a": 1, "personal.b": 3}, {"global": 0, "personal.a": 2, "personal.b": 10}
    found = {
        "a": part(4, 0.5, 0.8, 0.2, (0.7, 0.75, 0.5), small),
        "b": part(12, 0.6, 0.1, 0.9, (0.9, 0.8, 0.6), large),
    }
    for site, selected, curve in (("a", small, (0.7, 0.75, 0.5)), ("b", large, (0.9, 0.8, 0.6))):
        if which == "validation":
            found[site] |= {"mixtures": [{"share": 0.0, "flip": False, "dice": list(curve)}], "deltas": []}
            found[site] |= {"majorities": []}
        else:
            policy = {"dice": both(curve[0]), "selected": dict(selected), "foreign": None}
            found[site] |= {"policy": policy, "files": "pictures"}
    return found


def summary_of(validations=None, tests=None, policy=None, **given) -> dict:
    return summarize(
        validations or answers("validation"), tests or answers("test"), policy or Policy(0.0), settings(**given), SITES
    )


def test_gamma_is_the_best_over_the_sites():
    """(0.7 + 0.9) / 2 = 0.8 at 0; (0.75 + 0.8) / 2 = 0.775 at 0.5; 0.55 at 1. Image counts do not matter."""
    given = answers("validation")
    assert choose_gamma(given, list(GAMMAS)) == 0.0
    given["a"]["images"] = 10**6
    assert choose_gamma(given, list(GAMMAS)) == 0.0


def test_files_are_what_all_sites_have():
    assert summary_of()["files"] == "pictures"
    tests = answers("test")
    tests["b"]["files"] = "volumes"
    assert summary_of(tests=tests)["files"] == "mixed"


def test_of_equal_gammas_the_largest():
    tied = answers("validation")
    for found in tied.values():
        found["gammas"][1]["dice"] = dict(found["gammas"][0]["dice"])
    assert choose_gamma(tied, list(GAMMAS)) == 0.5


def test_soft_selection_has_a_gamma_of_its_own():
    """Blended validation Dice at 0, 0.5, 1: 0.4, 0.7, 0.6 at both sites. So 0.5, though the hard choice takes 0."""
    validations, tests = answers("validation"), answers("test")
    for found, shift in ((validations, 0.0), (tests, 0.1)):
        for site in SITES:
            for row, value in zip(found[site]["gammas"], (0.4, 0.7, 0.6), strict=True):
                row["blend"] = both(value + shift)
    summary = summary_of(validations, tests, blend=True)
    assert (summary["gamma"], summary["blend_gamma"]) == (0.0, 0.5)
    assert summary["test"]["blend"]["client_avg"] == pytest.approx(0.8)
    assert summary["gamma_sweep"][2]["blend"] == pytest.approx({"validation": 0.6, "test": 0.7})
    assert summary_of(validations, tests)["blend_gamma"] is None


def test_tables_of_a_label_by_hand():
    """Cup of the models at home is 0.4 and 0.3, disc as before: client avg 0.35, global (4 * 0.4 + 12 * 0.3) / 16."""
    changed = answers("test")
    for site, cup in (("a", 0.4), ("b", 0.3)):
        changed[site]["dice"][f"personal.{site}"]["cup"] = cup
    labels = summary_of(tests=changed)["test"]["labels"]
    assert list(labels) == ["disc", "cup"]
    assert labels["cup"]["personal_own"]["per_site"] == {"a": 0.4, "b": 0.3}
    assert labels["cup"]["personal_own"]["client_avg"] == pytest.approx(0.35)
    assert labels["cup"]["personal_own"]["global"] == pytest.approx(0.325)
    assert labels["disc"]["personal_own"]["per_site"] == {"a": 0.8, "b": 0.9}
    assert labels["cup"]["candidates"]["a"] == {"global": 0.5, "personal.a": 0.4, "personal.b": 0.2}


def test_tables_by_hand():
    """Super model: client average (0.7 + 0.9) / 2 = 0.8, global (4 * 0.7 + 12 * 0.9) / 16 = 0.85."""
    summary = summary_of()
    test = summary["test"]
    assert summary["gamma"] == 0.0
    assert summary["super_model_validation"] == pytest.approx(0.85)
    assert test["super_model"]["client_avg"] == pytest.approx(0.8)
    assert test["super_model"]["global"] == pytest.approx(0.85)
    assert test["personal_own"]["per_site"] == pytest.approx({"a": 0.8, "b": 0.9})
    assert test["global"]["per_label"] == pytest.approx({"disc": 0.55, "cup": 0.55})
    assert test["selector_accuracy"]["per_site"] == pytest.approx({"a": 3 / 4, "b": 1 / 12})
    assert test["selection_frequency"]["a"] == pytest.approx({"global": 0, "personal.a": 0.25, "personal.b": 0.75})
    assert "algorithm2" not in test, "it is the super model itself"


def test_algorithm_2_has_a_row_of_its_own_beside_another_policy():
    """At gamma 0, its best one, it has 0.7 and 0.9. The super model has 0.95 at both sites, with one foreign image."""
    tests = answers("test")
    for found in tests.values():
        found["policy"] |= {"dice": both(0.95), "foreign": 1}
    validations = answers("validation")
    for found in validations.values():
        found["mixtures"].append({"share": 0.2, "flip": False, "dice": [0.9, 0.9, 0.5]})
    summary = summary_of(validations, tests, Policy(0.5, 1.5, 0.2), selection="best", shares=[0.0, 0.2], tta=False)
    assert summary["test"]["algorithm2"]["client_avg"] == pytest.approx(0.8)
    assert summary["test"]["super_model"]["client_avg"] == pytest.approx(0.95)
    assert summary["test"]["foreign"] == pytest.approx({"a": 1 / 4, "b": 1 / 12})
    own = Policy(0.5, 1.5, 0.2).to_dict()
    assert {key: summary[key] for key in own} == own
    assert summary["super_model_validation"] == pytest.approx(0.9)
    assert [row["gain"] for row in summary["policies"]] == pytest.approx([0, 0.1])


def test_a_site_that_did_not_answer_is_none_and_does_not_count():
    test = summary_of({"a": answers("validation")["a"]}, {"a": answers("test")["a"]})["test"]
    assert test["global"]["per_site"] == {"a": 0.5, "b": None}
    assert test["global"]["client_avg"] == 0.5


def test_a_site_that_only_answered_the_first_part():
    """It has a say in the policy, and no row in the tables."""
    test = summary_of(tests={"a": answers("test")["a"]})["test"]
    assert test["super_model"]["per_site"] == {"a": pytest.approx(0.7), "b": None}


MODELS = ["global", "personal.a", "personal.b", "selector"]
COUNTS = {"train": 8, "validation": 4, "test": 4}


def problem(found, which, models=MODELS, **given) -> str | None:
    return evaluation_problem(found, which, settings(**given), SITES, models, COUNTS)


@pytest.mark.parametrize("which", ["validation", "test"])
@pytest.mark.parametrize("bad", [None, {}, {"validation": 3}, "rubbish", 3])
def test_malformed_evaluations_are_refused(bad, which):
    assert problem(bad, which)


@pytest.mark.parametrize("which", ["validation", "test"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda e: e["dice"]["global"].update(disc=float("nan")),
        lambda e: e["dice"]["global"].update(disc=1.2),
        lambda e: e["dice"]["global"].update(liver=0.5),
        lambda e: e["dice"]["global"].pop("cup"),
        lambda e: e["dice"].pop("personal.b"),
        lambda e: e["gammas"].pop(),
        lambda e: e.update(gammas=[]),
        lambda e: e.update(images=0),
        lambda e: e.update(images=10**9),
        lambda e: e["argmax"].update(a=10**6),
        lambda e: e["gammas"][0].pop("selected"),
        lambda e: e["gammas"][0].update(selected={"global": 4}),
        lambda e: e.update(more=1),
    ],
)
def test_impossible_values_are_refused(damage, which):
    found = answers(which)["a"]
    assert problem(found, which) is None
    damage(found)
    assert problem(found, which)


@pytest.mark.parametrize(
    "damage",
    [
        lambda e: e.pop("files"),
        lambda e: e.update(files="/home/hospital/patients"),
        lambda e: e.update(files=["pictures"]),
        lambda e: e.update(policy=None),
        lambda e: e["policy"].update(dice={"disc": 0.5}),
        lambda e: e["policy"].update(selected={"global": 5, "personal.a": 0, "personal.b": 0}),
        lambda e: e["policy"].update(foreign=5),
        lambda e: e["policy"].update(foreign=True),
    ],
)
def test_impossible_test_values_are_refused(damage):
    found = answers("test")["a"]
    damage(found)
    assert problem(found, "test")


def grid() -> dict:
    """What site a says of a grid of two shares, mirror images and one delta."""
    found = answers("validation")["a"]
    mixtures = [(share, flip) for flip in (False, True) for share in (0.0, 0.4)]
    found["mixtures"] = [{"share": share, "flip": flip, "dice": [0.7, 0.7, 0.5]} for share, flip in mixtures]
    found["majorities"] = [dict(row, dice=[0.7, 0.6, 0.5]) for row in found["mixtures"]]
    found["deltas"] = [
        {"delta": 1.5, "foreign": 2, "dice": [0.6, 0.7]},
        {"delta": None, "foreign": 0, "dice": [0.7, 0.7]},
    ]
    return found


@pytest.mark.parametrize(
    "damage",
    [
        lambda e: e["mixtures"].pop(),
        lambda e: e["mixtures"][0].update(share=0.3),
        lambda e: e["mixtures"][0]["dice"].pop(),
        lambda e: e["mixtures"][0].update(dice=[0.7, 0.7, float("inf")]),
        lambda e: e["majorities"].pop(),
        lambda e: e["majorities"][0].update(flip=True),
        lambda e: e["majorities"][0]["dice"].pop(),
        lambda e: e["majorities"][0].update(dice=[0.7, 0.7, float("nan")]),
        lambda e: e.update(majorities=None),
        lambda e: e["deltas"].pop(),
        lambda e: e["deltas"][0].update(delta=2.5),
        lambda e: e["deltas"][0].update(foreign=-1),
        lambda e: e["deltas"][0].update(foreign=5),
        lambda e: e["deltas"][1].update(foreign=3),
        lambda e: e["deltas"][0].update(dice=[0.6]),
        lambda e: e["deltas"][0].update(dice=[0.6, "0.7"]),
    ],
)
def test_impossible_grids_are_refused(damage):
    given = {"selection": "best", "shares": [0.0, 0.4], "deltas": [1.5]}
    found = grid()
    assert problem(found, "validation", **given) is None
    damage(found)
    assert problem(found, "validation", **given)


def test_only_volumes_that_were_asked_about_have_majorities():
    """A site without volumes sends no rows. Where nobody asked, there must be none."""
    given = {"selection": "best", "shares": [0.0, 0.4], "deltas": [1.5]}
    found = grid()
    assert problem(found, "validation", **given, volume_selection="slice")
    found["majorities"] = []
    assert problem(found, "validation", **given) is None
    assert problem(found, "validation", **given, volume_selection="slice") is None


def test_a_site_without_a_personal_model_has_none_in_the_table():
    """Method `local`, and b was gone when models were handed over: its row is empty, nothing breaks."""
    validations, tests = answers("validation"), answers("test")
    for found in (*validations.values(), *tests.values()):
        del found["dice"]["personal.b"]
        found["gammas"], found["argmax"] = [], {}
    for found in validations.values():
        found["mixtures"] = [{"share": 0.0, "flip": False, "dice": [0.5]}]
    for found in tests.values():
        found["policy"] = None
    models = ["global", "personal.a", "selector"]
    assert problem(validations["a"], "validation", models) is None
    assert problem(tests["a"], "test", models) is None
    table = summary_of(validations, tests, Policy())["test"]["personal_own"]
    assert table["per_site"] == {"a": pytest.approx(0.8), "b": None}


def test_a_missing_blend_is_refused():
    assert "malformed" in problem(answers("test")["a"], "test", blend=True)
