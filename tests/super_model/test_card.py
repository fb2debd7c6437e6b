"""The model card: counts, settings, scores; no path."""

import re

from fedsm.super_model.artefact import save_super_model
from fedsm.super_model.card import render_card
from tests.helpers.small_jobs import small_settings


def manifest() -> dict:
    row = {"per_site": {"a": 0.5, "b": None}, "client_avg": 0.5}
    return {
        "task": "retinal", "method": "fedsm", "selector": "statistics", "lam": 0.7, "gamma": 0.95, "sites": ["a", "b"],
        "labels": ["disc", "cup"], "versions": {"torch": "2"}, "settings": small_settings().to_dict(),
        "images": {"a": {"train": 8, "validation": 4, "test": 3}, "b": {"train": 2, "validation": 1, "test": 1}},
        "scores": {"super_model": row, "candidates": {}},
    }  # fmt: skip


def squeezed(card: str) -> str:
    """Without the blanks that line columns up."""
    return re.sub(" +", " ", card)


def test_it_says_what_it_is():
    card = squeezed(render_card(manifest()))
    assert "**Not a medical device**" in card and "## Intended use" in card and "## Limits" in card
    assert "| a | 8 | 4 | 3 |" in card and "| b | 2 | 1 | 1 |" in card
    assert "| super model | 0.500 | - | 0.500 |" in card, "a site that did not answer has no score"
    assert "| gamma | 0.95 |" in card and "32 x 32 pixels" in card
    assert "Intervals are not known" in card


def test_intervals_of_an_evaluation():
    value = {"mean": 0.5, "low": 0.4, "high": 0.6}
    evaluation = {
        "part": "test", "images": {"a": 3, "b": 1}, "bootstrap": {"level": 0.95, "draws": 2000},
        "models": {"super_model": {"a": {"dice": {"mean": value}}, "b": {"dice": {"mean": value | {"low": None}}}}},
        "averages": {"super_model": {"dice": {"mean": {"client_avg": value}}}},
    }  # fmt: skip
    assert "| super model | 0.500 (0.400-0.600) | 0.500 | 0.500 (0.400-0.600) |" in squeezed(
        render_card(manifest(), evaluation)
    )


def test_a_manifest_without_counts_or_scores():
    """One of an earlier version."""
    old = {key: value for key, value in manifest().items() if key not in ("images", "scores")}
    card = render_card(old)
    assert "counts were not recorded" in card and "None were measured" in card


def test_it_lies_beside_the_weights_and_names_no_path(tmp_path):
    given = {key: value for key, value in manifest().items() if key != "settings"}
    save_super_model(tmp_path / "super_model", small_settings(), given, {}, {})
    card = (tmp_path / "super_model" / "MODEL_CARD.md").read_text()
    assert card == render_card(manifest())
    assert str(tmp_path) not in card and "/tmp" not in card
