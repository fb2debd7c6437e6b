"""Dice of single images: written, read, compared, and without a name in it."""

import copy
import json

import numpy as np
import pytest
import torch

from fedsm.evaluation.image_scores import ImageScores
from fedsm.evaluation.row_scores import differences, from_plain, paired_rows, row_scores, to_plain

MANIFEST = {"sites": ["a", "b"], "labels": ["disc", "cup"], "gamma": 0.5, "run_id": "0123"}


def images(dice, names=("Smith/0", "Jones/0"), patients=("Smith", "Jones")):
    """Two images of a site; `dice`: model -> Dice of both labels of both. The super model takes site a's for both."""
    dice = {"super_model": dice["personal.a"]} | dice
    scores = {m: {"dice": torch.tensor(values)} for m, values in dice.items()}
    yhat = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
    return ImageScores(
        list(patients), ["global", "personal.a", "personal.b"], "threshold", scores, yhat, None, "px", list(names)
    )


EVERY = images(
    {
        "global": [[0.2, 0.4], [0.6, 0.8]],
        "personal.a": [[0.5, 0.7], [0.6, 0.6]],
        "personal.b": [[0.1, 0.1], [0.1, 0.1]],
    }
)


def test_rows_are_means_over_labels():
    """The super model takes personal.a everywhere. Site c took no part: it has no model of its own."""
    found = row_scores({"a": EVERY, "b": EVERY, "c": EVERY})
    assert found["a"].dice["super_model"].tolist() == pytest.approx([0.6, 0.6])
    assert found["a"].dice["global"].tolist() == pytest.approx([0.3, 0.7])
    assert found["b"].dice["personal_own"].tolist() == pytest.approx([0.1, 0.1])
    assert "personal_own" not in found["c"].dice
    one, two, three = paired_rows(found, 0)
    assert (one["first"], one["second"], list(one["per_site"])) == ("super_model", "global", ["a", "b", "c"])
    assert one["client_avg"]["mean"] == pytest.approx(0.1), "0.3 and -0.1 at each of three sites"
    assert list(two["per_site"]) == list(three["per_site"]) == ["a", "b"], "c has no own model to compare"


def test_the_file_names_nobody_and_is_read_as_it_was_written():
    found = row_scores({"a": EVERY, "b": EVERY})
    text = json.dumps(to_plain(found, MANIFEST, "test"))
    assert "Smith" not in text and "Jones" not in text
    again = from_plain(json.loads(text), "0123")
    assert again["a"].images == found["a"].images and again["a"].patients == found["a"].patients
    assert (again["b"].dice["global"] == found["b"].dice["global"]).all()
    assert found["a"].images != found["b"].images, "the same file name at another site is another image"


def test_what_is_no_such_file_or_of_another_run_is_not_read():
    content = to_plain(row_scores({"a": EVERY}), MANIFEST, "test")
    assert from_plain(content, "0123") and from_plain(content, None) is None
    assert from_plain(content | {"part": "all"}, "0123") is None
    for change in (
        lambda c: c.pop("sites"),
        lambda c: c["sites"]["a"]["images"].pop(),
        lambda c: c["sites"]["a"]["dice"]["global"].__setitem__(0, 1.5),
        lambda c: c["sites"]["a"].update(dice=None),
    ):
        spoiled = copy.deepcopy(content)
        change(spoiled)
        assert from_plain(spoiled, "0123") is None
    assert from_plain({"absent": "why"}, None) is None and from_plain([], None) is None


def test_only_the_same_images_are_compared():
    one = row_scores({"a": EVERY})
    same = differences(one, "super_model", one, "global")
    assert same["a"].values.tolist() == pytest.approx([0.3, -0.1])
    other = row_scores({"a": images({m: v["dice"].tolist() for m, v in EVERY.scores.items()}, ("x/0", "y/0"))})
    assert differences(one, "super_model", other, "global") is None
    assert differences(one, "super_model", row_scores({"b": EVERY}), "global") is None
    assert differences(one, "blend", one, "global") is None
    assert np.isfinite(same["a"].of_patients()).all()
