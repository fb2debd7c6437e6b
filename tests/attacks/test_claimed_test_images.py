"""Counts of validation and test images, a site's own word, bought the scores over all images in results.json, and
nobody was told; accepted.jsonl took a site's count of the day for its weight."""

import json

import pytest

from tests.helpers.federation import Federation, results_of
from tests.helpers.hostile import HOSTILE, meta_of, parts_of
from tests.helpers.small_jobs import SITES, small_settings

CLAIMED = 10**6


def claim(site, task, shareable, work):
    """A million validation and test images, Dice 1 in all of them; one training image in every round."""
    result = work()
    if site.name != HOSTILE:
        return result
    meta = meta_of(result)
    meta["images"] |= {"validation": CLAIMED, "test": CLAIMED}
    if task == "fedsm_train":
        meta["images"]["train"] = 1
    for report in meta.get("reports", {}).values():
        report |= {"images": CLAIMED, "score": 1.0}
    for part in parts_of(meta):
        part["images"] = CLAIMED
        part["dice"] = {model: dict.fromkeys(by, 1.0) for model, by in part["dice"].items()}
    return result


@pytest.fixture(scope="module")
def federation(tmp_path_factory, data_root):
    settings = small_settings(rounds=2, method="fedavg")
    return Federation(tmp_path_factory.mktemp("claims"), data_root, settings, SITES, fault=claim).run()


def test_a_person_is_told_of_the_counts(federation):
    told = [entry["reason"] for entry in results_of(federation)["warned"] if entry["site"] == HOSTILE]
    assert len(told) == 1 and "1000000 validation images" in told[0] and "1000000 test images" in told[0]


def test_accepted_says_what_a_site_weighed(federation):
    lines = [json.loads(line) for line in (federation.run_folder / "accepted.jsonl").read_text().splitlines()]
    assert {line["site"]: line["n_images"] for line in lines} == federation.aggregator.registry.shares()
