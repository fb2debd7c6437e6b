"""Row 9, the same hole elsewhere: values that pass a comparison and then cannot be written or drawn.

`np.float32(4) == 4`: such a count, share or gamma reached the record, the policy or evaluation.json. None of them could
be written as JSON then: the job of all ended, and nobody was named. A finite number may still be too large for a mean.
"""

import json

import numpy as np
import pytest

from fedsm.flare.evaluation import FILE
from tests.helpers.attack_jobs import run_evaluation
from tests.helpers.federation import Federation, results_of
from tests.helpers.hostile import EVALUATE, HOSTILE, REGISTER, TRAIN, meta_of, on
from tests.helpers.small_jobs import SITES, small_settings

HUGE = 1.7e308


def odd_reports(result) -> None:
    for report in meta_of(result)["reports"].values():
        report["images"] = np.float32(report["images"])


def odd_images(result) -> None:
    meta_of(result)["evaluation"]["images"] = np.float32(meta_of(result)["evaluation"]["images"])


def odd_share(result) -> None:
    """The site has the best Dice at the largest share, so that it becomes a part of the policy, which no site takes."""
    found = meta_of(result)["evaluation"] if "DXO" in result else {}
    for row in found.get("mixtures", []):
        row["dice"] = [float(row["share"] > 0)] * len(row["dice"])
        row["share"] = np.float32(row["share"])


def huge_loss(result) -> None:
    meta_of(result)["losses"] = dict.fromkeys(meta_of(result)["losses"], HUGE)


@pytest.mark.parametrize(
    "task, change", [(TRAIN, odd_reports), (EVALUATE, odd_images), (EVALUATE, odd_share), (TRAIN, huge_loss)]
)
def test_they_are_refused_by_name_and_the_run_ends_with_results(tmp_path, data_root, task, change):
    settings = small_settings(rounds=1, selection="best", shares=[0.0, 0.5])
    federation = Federation(tmp_path, data_root, settings, SITES, fault=on(task, change)).run()
    assert federation.panic is None
    refused = results_of(federation)["refused"]
    assert {entry["site"] for entry in refused} == {HOSTILE}
    assert all("holds a float32" in entry["reason"] or "a loss is no" in entry["reason"] for entry in refused)


def test_a_truth_value_is_no_gamma(tmp_path, data_root):
    """False == 0.0. The gammas of the policy were those of the first site's answer, and no site took this policy."""

    def false_gamma(result) -> None:
        for row in meta_of(result)["evaluation"]["gammas"] if "DXO" in result else ():
            row["gamma"] = False

    settings = small_settings(rounds=1, gammas=[0.0])
    federation = Federation(tmp_path, data_root, settings, SITES, fault=on(EVALUATE, false_gamma, site="site-1")).run()
    assert federation.panic is None
    assert set(results_of(federation)["missing_in_evaluation"]) == {"site-1"}


def odd_gamma(report: dict) -> None:
    for row in report["gammas"]:
        row["gamma"] = np.float32(row["gamma"])


def more_in_an_interval(report: dict) -> None:
    next(iter(report["models"].values()))["dice"]["mean"]["junk"] = b"j" * 10**6


def huge_distance(report: dict) -> None:
    for metrics in report["models"].values():
        for interval in metrics["hd95"].values():
            interval["mean"] = HUGE


@pytest.mark.parametrize("change", [odd_gamma, more_in_an_interval, huge_distance])
def test_a_report_that_cannot_be_used_costs_its_sender_alone(tmp_path, data_root, change):
    """The first site: the gammas of evaluation.json are those of its report."""

    def fault(site, task, shareable, work):
        result = work()
        if site.name == "site-1":
            change(meta_of(result)["report"])
        return result

    job = run_evaluation(tmp_path, data_root, fault)
    assert job.panic is None
    text = (job.run_folder / FILE).read_text()
    assert "Infinity" not in text and set(json.loads(text)["missing"]) == {"site-1"}


def test_the_log_of_a_registration_holds_the_counts_and_nothing_else(tmp_path, data_root, caplog):
    def more(result) -> None:
        meta_of(result)["images"]["fedsm round=9 site=site-1 refused"] = 1

    settings = small_settings(rounds=1, method="fedavg")
    caplog.set_level("INFO")
    Federation(tmp_path, data_root, settings, SITES, fault=on(REGISTER, more)).run()
    lines = [record.getMessage() for record in caplog.records if "registered images" in record.getMessage()]
    assert len(lines) == len(SITES) and not any("round=9" in line for line in lines)
