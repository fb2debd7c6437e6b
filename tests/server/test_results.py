"""From the sites' answers to the tables, by hand."""

import pytest

from fedsm.server.results import choose_gamma, evaluation_problem, summarize
from tests.helpers.small_jobs import small_settings

SITES = ["a", "b"]


def settings(**given):
    return small_settings(gammas=[0.0, 0.5, 1.0], **given)


def part(images, global_, personal_a, personal_b, by_gamma, selected) -> dict:
    both = lambda v: {"disc": v, "cup": v}  # noqa: E731
    return {
        "images": images,
        "dice": {"global": both(global_), "personal.a": both(personal_a), "personal.b": both(personal_b)},
        "gammas": [
            {"gamma": g, "dice": both(v), "selected": selected} for g, v in zip((0.0, 0.5, 1.0), by_gamma, strict=True)
        ],
        "argmax": {"a": images - 1, "b": 1},
    }


def evaluations() -> dict:
    small, large = {"global": 0, "personal.a": 1, "personal.b": 3}, {"global": 0, "personal.a": 2, "personal.b": 10}
    return {
        "a": {"files": "pictures"}
        | {p: part(4, 0.5, 0.8, 0.2, (0.7, 0.75, 0.5), small) for p in ("validation", "test")},
        "b": {"files": "pictures"}
        | {p: part(12, 0.6, 0.1, 0.9, (0.9, 0.8, 0.6), large) for p in ("validation", "test")},
    }


def test_gamma_is_the_best_over_the_sites():
    """(0.7 + 0.9) / 2 = 0.8 at 0; (0.75 + 0.8) / 2 = 0.775 at 0.5; 0.55 at 1. Image counts do not matter."""
    given = evaluations()
    assert choose_gamma(given, [0.0, 0.5, 1.0]) == 0.0
    given["a"]["validation"]["images"] = 10**6
    assert choose_gamma(given, [0.0, 0.5, 1.0]) == 0.0


def test_files_are_what_all_sites_have():
    given = evaluations()
    assert summarize(given, settings(), SITES)["files"] == "pictures"
    given["b"]["files"] = "volumes"
    assert summarize(given, settings(), SITES)["files"] == "mixed"


def test_of_equal_gammas_the_largest():
    tied = evaluations()
    for e in tied.values():
        e["validation"]["gammas"][1]["dice"] = dict(e["validation"]["gammas"][0]["dice"])
    assert choose_gamma(tied, [0.0, 0.5, 1.0]) == 0.5


def test_soft_selection_has_a_gamma_of_its_own():
    """Blended validation Dice at 0, 0.5, 1: 0.4, 0.7, 0.6 at both sites. So 0.5, though the hard choice takes 0."""
    given, soft = settings(blend=True), evaluations()
    for e in soft.values():
        for p, shift in (("validation", 0.0), ("test", 0.1)):
            for row, value in zip(e[p]["gammas"], (0.4, 0.7, 0.6), strict=True):
                row["blend"] = {"disc": value + shift, "cup": value + shift}
    summary = summarize(soft, given, SITES)
    assert (summary["gamma"], summary["blend_gamma"]) == (0.0, 0.5)
    assert summary["test"]["blend"]["client_avg"] == pytest.approx(0.8)
    assert summary["gamma_sweep"][2]["blend"] == pytest.approx({"validation": 0.6, "test": 0.7})
    assert summarize(soft, settings(), SITES)["blend_gamma"] is None


def test_tables_of_a_label_by_hand():
    """Cup of the models at home is 0.4 and 0.3, disc as before: client avg 0.35, global (4 * 0.4 + 12 * 0.3) / 16."""
    changed = evaluations()
    for site, cup in (("a", 0.4), ("b", 0.3)):
        changed[site]["test"]["dice"][f"personal.{site}"]["cup"] = cup
    labels = summarize(changed, settings(), SITES)["test"]["labels"]
    assert list(labels) == ["disc", "cup"]
    assert labels["cup"]["personal_own"]["per_site"] == {"a": 0.4, "b": 0.3}
    assert labels["cup"]["personal_own"]["client_avg"] == pytest.approx(0.35)
    assert labels["cup"]["personal_own"]["global"] == pytest.approx(0.325)
    assert labels["disc"]["personal_own"]["per_site"] == {"a": 0.8, "b": 0.9}
    assert labels["cup"]["candidates"]["a"] == {"global": 0.5, "personal.a": 0.4, "personal.b": 0.2}


def test_tables_by_hand():
    """Super model: client average (0.7 + 0.9) / 2 = 0.8, global (4 * 0.7 + 12 * 0.9) / 16 = 0.85."""
    summary = summarize(evaluations(), settings(), SITES)
    test = summary["test"]
    assert summary["gamma"] == 0.0
    assert summary["super_model_validation"] == pytest.approx(0.85)
    assert test["super_model"]["client_avg"] == pytest.approx(0.8)
    assert test["super_model"]["global"] == pytest.approx(0.85)
    assert test["personal_own"]["per_site"] == pytest.approx({"a": 0.8, "b": 0.9})
    assert test["global"]["per_label"] == pytest.approx({"disc": 0.55, "cup": 0.55})
    assert test["selector_accuracy"]["per_site"] == pytest.approx({"a": 3 / 4, "b": 1 / 12})
    assert test["selection_frequency"]["a"] == pytest.approx({"global": 0, "personal.a": 0.25, "personal.b": 0.75})


def test_a_site_that_did_not_answer_is_none_and_does_not_count():
    answered = {"a": evaluations()["a"]}
    test = summarize(answered, settings(), SITES)["test"]
    assert test["global"]["per_site"] == {"a": 0.5, "b": None}
    assert test["global"]["client_avg"] == 0.5


MODELS = ["global", "personal.a", "personal.b", "selector"]
COUNTS = {"train": 8, "validation": 4, "test": 4}


@pytest.mark.parametrize("bad", [None, {}, {"validation": 3}, "rubbish"])
def test_malformed_evaluations_are_refused(bad):
    assert evaluation_problem(bad, settings(), SITES, MODELS, COUNTS)


@pytest.mark.parametrize(
    "damage",
    [
        lambda e: e["test"]["dice"]["global"].update(disc=float("nan")),
        lambda e: e["test"]["dice"]["global"].update(disc=1.2),
        lambda e: e["test"]["dice"]["global"].pop("cup"),
        lambda e: e["test"]["dice"].pop("personal.b"),
        lambda e: e["test"]["gammas"].pop(),
        lambda e: e["test"].update(gammas=[]),
        lambda e: e["test"].update(images=0),
        lambda e: e["test"].update(images=10**9),
        lambda e: e["test"]["argmax"].update(a=10**6),
        lambda e: e["test"]["gammas"][0].pop("selected"),
        lambda e: e["test"]["gammas"][0].update(selected={"global": 4}),
        lambda e: e.pop("files"),
        lambda e: e.update(files="/home/hospital/patients"),
        lambda e: e.update(files=["pictures"]),
    ],
)
def test_impossible_values_are_refused(damage):
    evaluation = evaluations()["a"]
    assert evaluation_problem(evaluation, settings(), SITES, MODELS, COUNTS) is None
    damage(evaluation)
    assert evaluation_problem(evaluation, settings(), SITES, MODELS, COUNTS)


def test_a_site_without_a_personal_model_has_none_in_the_table():
    """Method `local`, and b was gone when models were handed over: its row is empty, nothing breaks."""
    gone = evaluations()
    for e in gone.values():
        for p in (e["validation"], e["test"]):
            del p["dice"]["personal.b"]
            p["gammas"], p["argmax"] = [], {}
    assert evaluation_problem(gone["a"], settings(), SITES, ["global", "personal.a", "selector"], counts(4)) is None
    table = summarize(gone, settings(), SITES)["test"]["personal_own"]
    assert table["per_site"] == {"a": pytest.approx(0.8), "b": None}


def test_a_missing_blend_and_a_foreign_label_are_refused():
    given = settings(blend=True)
    models = ["global", "personal.a", "personal.b", "selector"]
    assert "malformed" in evaluation_problem(evaluations()["a"], given, SITES, models, counts(4))
    foreign = evaluations()["a"]
    foreign["test"]["dice"]["global"]["liver"] = 0.5
    assert "Dice" in evaluation_problem(foreign, settings(), SITES, models, counts(4))


def counts(n: int) -> dict:
    return {"train": n, "validation": n, "test": n}
