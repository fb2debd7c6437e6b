"""Dice and the table, by hand."""

import torch

from fedsm.core.dice import dice_per_image
from fedsm.evaluation.tables import dice_table, policy_in_words


def masks(*rows: str) -> torch.Tensor:
    """One image, one label, four pixels a string."""
    return torch.tensor([[[[c == "1" for c in row]]] for row in rows])


def test_by_hand():
    """Truth 1100: 1100 -> 2*2/4 = 1; 1000 -> 2*1/3; 0011 -> 0; 1111 -> 2*2/6."""
    truth = masks("1100", "1100", "1100", "1100")
    scores = dice_per_image(masks("1100", "1000", "0011", "1111"), truth)
    assert torch.allclose(scores, torch.tensor([[1.0], [2 / 3], [0.0], [4 / 6]]))


def test_empty_truth():
    """An empty truth with an empty prediction counts 1, with anything else 0: never NaN."""
    scores = dice_per_image(masks("0000", "0100"), masks("0000", "0000"))
    assert scores.flatten().tolist() == [1.0, 0.0]


def test_table_has_a_row_a_model_and_a_dash_for_a_missing_site():
    """Accuracy 0.5 at a (4 images) and 1 at b (12), c did not answer: mean over sites 0.75, of all images 14/16.

    Dice 0.5 and 0.7: the squares of the differences from 0.6 are 0.01 each, and the root of 0.02 / 1 is 0.1414.
    """
    row = {"per_site": {"a": 0.5, "b": 0.7, "c": None}, "client_avg": 0.6, "global": 0.65}
    results = {
        "sites": ["a", "b", "c"], "gamma": 0.9, "method": "fedsm", "task": "retinal", "rounds": 3,
        "selector": "statistics",
        "images": {"a": {"test": 4}, "b": {"test": 12}, "c": {"test": 1}},
        "test": {
            "global": row, "personal_own": row, "super_model": row,
            "selector_accuracy": {"per_site": {"a": 0.5, "b": 1.0, "c": None}, "mean": 0.75},
        },
    }  # fmt: skip
    lines = dice_table(results).splitlines()
    assert [line.split("  ")[0] for line in lines[4:]] == [
        "test images", "FedAvg (global)", "personal, own site", "FedSM", "selector accuracy",
    ]  # fmt: skip
    assert all(" - " in line + " " for line in lines[5:])
    assert "client avg    all images" in lines[2] and lines[2].endswith("worst site    spread over sites")
    assert lines[4].split()[2:] == ["4", "12", "1", "17"]
    assert lines[5].split()[-3:] == ["0.5000", "(a)", "0.1414"]
    assert lines[-1].split()[2:] == ["0.5000", "1.0000", "-", "0.7500", "0.8750"]


def test_what_was_chosen_is_told_apart():
    """Lists of one value per site follow each other: `delta 1, none, 0, 0.4 of the global model` says nothing."""
    found = {"gamma": 0.99, "delta": [1.0, None], "share": [0.0, 0.4], "flip": True}
    assert policy_in_words(found) == "gamma 0.99; delta 1, none; share of the global model 0, 0.4; mirror images"
    assert policy_in_words({"gamma": None, "delta": None, "share": 0.0, "flip": False}) == ""
