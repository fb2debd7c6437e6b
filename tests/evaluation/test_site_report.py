"""What a site says of a super model: the same as of its images, without what would tell of one patient."""

import copy
import math

import numpy as np
import pytest
import torch

from fedsm.evaluation.bootstrap import from_errors, pooled, resample, site_interval
from fedsm.evaluation.calibration import join_reliability, reliability
from fedsm.evaluation.evaluate import join, summarize_images
from fedsm.evaluation.image_scores import SUPER, ImageScores
from fedsm.evaluation.markdown import evaluation_csv, evaluation_markdown, volumes_as_images
from fedsm.evaluation.metrics import METRICS, VOLUME_METRICS
from fedsm.evaluation.report_tables import interval_table
from fedsm.evaluation.site_report import draw, report_of
from fedsm.evaluation.volume_scores import VolumeScores

SITES = ["a", "b"]
MANIFEST = {
    "sites": SITES, "labels": ["disc", "cup"], "gamma": 0.5, "settings": {"gammas": [0.0, 0.5, 0.9]},
    "task": "retinal", "method": "fedsm", "selector": "statistics", "run_id": "r",
}  # fmt: skip


def scores(seed, patients):
    """Made-up scores of three models and a selector."""
    rng = torch.Generator().manual_seed(seed)
    n = len(patients)
    order = ["global", *(f"personal.{s}" for s in SITES)]
    by = {name: {m: torch.rand(n, 2, generator=rng) for m in METRICS} for name in order}
    yhat = torch.rand(n, 2, generator=rng).softmax(1)
    found = ImageScores(patients, order, "threshold", by, yhat, None, "px")
    by[SUPER], found.choices = found.at_gamma(MANIFEST["gamma"]), found.chosen(MANIFEST["gamma"])
    return found


EVERY = {"a": scores(0, list("pqrstuv")), "b": scores(1, ["x", "x", "y", "z", "w"])}


def reports(private):
    return {s: report_of(MANIFEST, s, v, draw(MANIFEST, s, v, 0), private) for s, v in EVERY.items()}


def test_joined_reports_are_the_evaluation_of_all_images():
    """All but the intervals of averages, which come from standard errors."""
    whole, joined = summarize_images(MANIFEST, EVERY, "test"), join(MANIFEST, reports(private=True), "test", 0)
    assert list(whole) == list(joined) and list(whole["models"]) == list(joined["models"])
    for key in whole.keys() - {"averages", "bootstrap", "reliability", "gammas", "paired"}:
        assert whole[key] == joined[key], key
    assert whole["gammas"] == joined["gammas"] and len(whole["gammas"]) == 3
    assert whole["averages"].keys() == joined["averages"].keys()
    for model, metrics in whole["averages"].items():
        for metric, labels in metrics.items():
            for label, kinds in labels.items():
                for kind, value in kinds.items():
                    other = joined["averages"][model][metric][label][kind]
                    assert other["mean"] == pytest.approx(value["mean"], abs=1e-12)
                    assert other["low"] < other["mean"] < other["high"]


def test_joined_differences_are_those_of_all_images():
    """Each site's interval is the same, down to the draws; a site sends no p-value."""
    whole = summarize_images(MANIFEST, EVERY, "test")["paired"]
    joined = join(MANIFEST, reports(private=True), "test", 0)["paired"]
    pairs = [("super_model", "global"), ("super_model", "personal_own"), ("personal_own", "global")]
    assert [(e["first"], e["second"]) for e in whole] == [(e["first"], e["second"]) for e in joined] == pairs
    for one, two in zip(whole, joined, strict=True):
        assert 0 < one["p"] <= 1 and two["p"] is None
        assert (one["images"], one["patients"]) == (two["images"], two["patients"]) == (12, 11)
        for site in SITES:
            expected = {k: one["per_site"][site][k] for k in ("mean", "low", "high", "error")}
            assert {k: two["per_site"][site][k] for k in expected} == pytest.approx(expected, abs=1e-12)
        for average in ("client_avg", "global"):
            assert two[average]["mean"] == pytest.approx(one[average]["mean"], abs=1e-12)
            assert -1 <= two[average]["low"] < two[average]["mean"] < two[average]["high"] <= 1


def test_few_patients_keep_their_intervals_at_home():
    """Of three patients the lower bound is the worst one's score: P(all draws are it) = 1/27 > 2.5 %."""
    three = scores(2, ["x", "y", "z"])
    drawn = draw(MANIFEST, "a", three, 0)
    worst = three.scores["global"]["dice"].double().mean(1).min().item()
    assert site_interval(drawn["global"]["dice"]["mean"])["low"] == pytest.approx(worst)
    sent = report_of(MANIFEST, "a", three, drawn, private=True)["models"]["global"]["dice"]["mean"]
    assert sent["low"] is sent["high"] is sent["error"] is None and sent["mean"] > worst
    assert report_of(MANIFEST, "a", three, drawn, private=True)["paired"][0]["low"] is None
    kept = report_of(MANIFEST, "a", three, drawn)["models"]["global"]["dice"]["mean"]
    assert kept["low"] == pytest.approx(worst)
    joined = join(MANIFEST, {"a": report_of(MANIFEST, "a", three, drawn, private=True)}, "test", 0)
    assert joined["averages"]["global"]["dice"]["mean"]["global"]["low"] is None


def test_average_from_errors():
    """0.3 and 0.6 with errors 0.03 and 0.04, weights 1 and 3: mean 2.1 / 4, error hypot(0.03, 0.12) / 4."""
    sites = [{"mean": 0.3, "error": 0.03}, {"mean": 0.6, "error": 0.04}]
    found = from_errors(sites, [1, 3], 1.0)
    assert found["mean"] == pytest.approx(0.525)
    reach = 1.959964 * math.hypot(0.03, 0.12) / 4
    assert [found["low"], found["high"]] == pytest.approx([0.525 - reach, 0.525 + reach], abs=1e-6)
    assert from_errors([{"mean": 0.99, "error": 0.1}], [1], 1.0)["high"] == 1.0
    assert from_errors([{"mean": 9.0, "error": 1.0}], [1], None)["high"] > 10
    assert from_errors([{"mean": 0.1, "error": 0.2}], [1], 1.0)["low"] == 0.0
    assert from_errors([*sites, {"mean": 0.5, "error": None}], [1, 1, 1], 1.0)["low"] is None


def test_many_patients_the_two_ways_agree():
    rng = np.random.default_rng(0)
    drawn = [resample(rng.uniform(0.5, 1, 60), [str(i) for i in range(60)], 0, site) for site in SITES]
    exact, near = pooled(drawn), from_errors([site_interval(d) for d in drawn], [60, 60], 1.0)
    assert [near["low"], near["high"]] == pytest.approx([exact["low"], exact["high"]], abs=0.003)


def test_joined_reliability_is_that_of_all_images():
    rng = np.random.default_rng(0)
    confidence, right = rng.uniform(0, 1, 50), rng.uniform(0, 1, 50) < 0.7
    whole = reliability(confidence, right)
    joined = join_reliability([reliability(confidence[:13], right[:13]), reliability(confidence[13:], right[13:])])
    assert joined["ece"] == pytest.approx(whole["ece"]) and joined["accuracy"] == pytest.approx(whole["accuracy"])
    for mine, theirs in zip(joined["bins"], whole["bins"], strict=True):
        assert mine == pytest.approx(theirs)
    assert join_reliability([]) is None


def with_volumes():
    """Site a has four volumes, site b none."""
    some = copy.deepcopy(EVERY["a"])
    some.volumes = VolumeScores(2.0, list("pqrs"))
    rng = torch.Generator().manual_seed(5)
    some.volumes.scores = {
        name: {m: torch.rand(4, 2, generator=rng) for m in VOLUME_METRICS} for name in some.scores
    }  # fmt: skip
    return {"a": some, "b": EVERY["b"]}


def test_volumes_have_a_section_of_their_own():
    """Means of the volumes of the sites that have some; joined from reports the same, but for intervals of averages."""
    every = with_volumes()
    whole = summarize_images(MANIFEST, every, "test")
    found = whole["volumes"]
    assert found["volumes"] == found["patients"] == {"a": 4} and found["tolerance"] == 2.0
    values = every["a"].volumes.scores[SUPER]["nsd"]
    assert found["models"][SUPER]["a"]["nsd"]["cup"]["mean"] == pytest.approx(values[:, 1].mean().item())
    assert found["models"]["personal_own"]["a"] == found["models"]["personal.a"]["a"]
    drawn = {s: (draw(MANIFEST, s, v, 0), draw(MANIFEST, s, v.volumes, 0)) for s, v in every.items()}
    sent = {s: report_of(MANIFEST, s, v, drawn[s][0], True, drawn[s][1]) for s, v in every.items()}
    assert sent["b"]["volumes"] is None
    joined = join(MANIFEST, sent, "test", 0)["volumes"]
    assert joined["models"] == found["models"]
    for kind in ("client_avg", "global"):
        mean = joined["averages"][SUPER]["hd95"]["mean"][kind]["mean"]
        assert mean == pytest.approx(found["averages"][SUPER]["hd95"]["mean"][kind]["mean"])
    pictures = summarize_images(MANIFEST, EVERY, "test")
    assert pictures["volumes"] is None and all(pictures[key] == whole[key] for key in pictures if key != "volumes")
    assert "volume" not in evaluation_csv(pictures) and "olume" not in evaluation_markdown(pictures)


def test_three_volumes_keep_their_bounds_at_the_site():
    some = with_volumes()["a"]
    some.volumes.patients = list("pqrr")
    report = report_of(MANIFEST, "a", some, draw(MANIFEST, "a", some, 0), True, draw(MANIFEST, "a", some.volumes, 0))
    assert report["volumes"]["models"]["global"]["dice"]["mean"]["low"] is None
    assert report["models"]["global"]["dice"]["mean"]["low"] is not None


def test_the_report_has_a_table_of_volumes():
    evaluation = summarize_images(MANIFEST, with_volumes(), "test")
    table = str(interval_table("run, whole volumes", volumes_as_images(evaluation), VOLUME_METRICS))
    assert "volumes (patients)" in table and "4 (4)" in table and "all volumes" in table
    assert "volume NSD (2 mm), cup: super model" in table and "volume HD95 [mm]: global" in table
