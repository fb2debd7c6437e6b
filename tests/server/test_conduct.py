"""The figures of conduct by hand, and when a person is told."""

import pytest
import torch

from fedsm.server import conduct
from fedsm.server.conduct import Conduct, against_the_others, cosines, drawn, sample, turned_bad


def test_cosines_by_hand():
    """(1, 0), (0, 1), (-1, 0). To the mean of the others: (1, 0) and (-1/2, 1/2) have -1 / sqrt 2; (0, 1) and (0, 0)
    have none; (-1, 0) and (1/2, 1/2) have -1 / sqrt 2."""
    found = cosines(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64))
    assert found[0] == pytest.approx(-(0.5**0.5)) and found[2] == pytest.approx(-(0.5**0.5)) and found[1] is None


def test_lengths_do_not_matter():
    """Two long updates against three: the three agree with each other, the two do not. (1, 0) has the others' sum
    (2 - 2, 0) = 0 and so no cosine with three against two, (1, 0) with four against two has 1."""
    three = torch.tensor([[1.0, 0.0]] * 3 + [[-1000.0, 0.0]] * 2)
    assert cosines(three) == [None, None, None, -1.0, -1.0]
    assert cosines(torch.cat([three[:1], three])) == [1.0] * 4 + [-1.0] * 2


def test_cosines_at_their_limits():
    alike = torch.tensor([[1.0, 2.0], [3.0, 6.0], [0.5, 1.0]], dtype=torch.float64)
    assert cosines(alike) == pytest.approx([1, 1, 1])
    assert cosines(alike * torch.tensor([[1.0], [1.0], [-1.0]]))[2] == pytest.approx(-1)
    assert cosines(alike[:1]) == [None]
    assert cosines(torch.zeros(2, 3, dtype=torch.float64)) == [None, None]


def test_small_updates_are_compared_whole():
    update = {"b": torch.tensor([[3.0, 4.0]]), "a": torch.tensor([1.0]), "seen": torch.tensor(5)}
    assert sample(update, drawn(update, 7)).tolist() == [1, 3, 4]


def test_a_sample_is_near_the_whole(monkeypatch):
    """Of 40,000 entries 4,000: the cosine is off by about 1 / sqrt(4000) = 0.016; all updates give the same entries."""
    monkeypatch.setattr(conduct, "SAMPLE", 4000)
    rng = torch.Generator().manual_seed(0)
    shared = torch.randn(40_000, generator=rng)
    updates = [{"a": v[:15_000], "b": v[15_000:].view(5, -1)} for v in
               (shared + torch.randn(40_000, generator=rng) for _ in range(4))]  # fmt: skip
    whole = torch.stack([torch.cat([u["a"], u["b"].flatten()]) for u in updates]).double()
    plan = drawn(updates[0], 3)
    part = torch.stack([sample(u, plan) for u in updates])
    assert 3500 < part.shape[1] <= 4000
    assert cosines(part) == pytest.approx(cosines(whole), abs=0.06)
    other = drawn(updates[0], 4)
    assert not torch.equal(plan["a"][:100], other["a"][:100])


def test_small_tensors_of_a_large_update_are_left_out():
    """Each tensor costs time: one of 1 % of the entries is looked at, one below is not."""
    template = {"large": torch.zeros(99_000), "small": torch.zeros(999), "norm": torch.zeros(1)}
    assert list(drawn(template, 1)) == ["large"]
    assert list(drawn(template | {"small": torch.zeros(1001)}, 1)) == ["large", "small"]


def test_a_round_is_noted_by_group():
    noted = Conduct(1)
    for site, sign in (("a", 1.0), ("b", -1.0)):
        update = {"w": torch.tensor([int(sign)]), "control/w": torch.tensor([2.0])}  # a filter's whole number
        template = {"w": torch.zeros(1), "control/w": torch.zeros(1)}
        noted.note(site, {"global": update}, {"global": template}, {"global": 1.0})
    row = noted.close()
    assert row["global"] == {"a": {"norm": 1.0, "cosine": -1.0}, "b": {"norm": 1.0, "cosine": -1.0}}
    assert row["global.control"]["a"] == {"norm": 0.0, "cosine": 1.0}
    assert noted.close() == {}


def row_of(*values: float | None) -> dict:
    return {"global": {f"site-{k + 1}": {"norm": 1.0, "cosine": value} for k, value in enumerate(values)}}


def test_whoever_points_against_the_others_is_told_of():
    found = against_the_others(row_of(0.4, 0.3, 0.5, -0.4), ["global"])
    assert list(found) == ["site-4"] and "cosine -0.40, theirs 0.40" in found["site-4"]


@pytest.mark.parametrize(
    "values", [(0.4, 0.3, 0.5, -0.05), (-0.3, -0.4, -0.2, -0.5), (0.9, 0.9, 0.9, 0.1), (0.4, 0.3, -0.4), (None,) * 4]
)
def test_usual_cosines_are_not_told_of(values):
    """Hardly below zero; all against each other, as near the optimum; low, not against; three sites; no updates."""
    assert against_the_others(row_of(*values), ["global"]) == {}
    assert against_the_others(row_of(0.4, 0.3, 0.5, -0.4), []) == {}


def history(losses: list[float], scores: list[float]) -> list[dict]:
    rows = [{"loss": {"global": {"site-4": loss}}} for loss in losses]
    for row, score in zip(rows, scores, strict=False):
        row["validation"] = {"global": {"site-1": 0.8, "site-2": 0.7, "site-3": 0.9, "site-4": score}}
    return rows


def test_a_low_score_is_told_of_once():
    """The others' median is 0.8; below 0.4 is low. The last row's validation is not known yet."""
    assert (
        "scores the shared model 0.30, the others 0.80"
        in turned_bad(history([1, 1, 1], [0.6, 0.3]), ["global"])["site-4"]
    )
    assert turned_bad(history([1, 1, 1, 1], [0.6, 0.3, 0.2]), ["global"]) == {}
    assert turned_bad(history([1], []), ["global"]) == turned_bad([], ["global"]) == {}


def test_a_site_that_is_seldom_asked_is_told_of_once():
    """Half of the sites in each round, so two rounds of the past count: the low score of round 1 is one of them."""
    rows = history([1, 1, 1, 1], [0.3, 0.6, 0.2])
    del rows[1]["validation"]
    assert "0.20" in turned_bad(rows, ["global"])["site-4"]
    assert turned_bad(rows, ["global"], fraction=0.5) == {}
    seldom = [{"loss": {}} for _ in range(11)]
    seldom[2], seldom[10] = history([0.2, 0.6], [])
    assert turned_bad(seldom, ["global"]) == {}, "its last loss is more than five rounds ago"
    assert "rose from 0.2 to 0.6" in turned_bad(seldom, ["global"], fraction=0.5)["site-4"]


def test_a_loss_that_rises_is_told_of_once():
    """More than 2 * 0.2 + 0.1."""
    assert "rose from 0.2 to 0.6" in turned_bad(history([0.3, 0.2, 0.6], []), ["global"])["site-4"]
    assert turned_bad(history([0.3, 0.2, 0.5], []), ["global"]) == {}
    assert turned_bad(history([0.3, 0.2, 0.6, 0.7], []), ["global"]) == {}
