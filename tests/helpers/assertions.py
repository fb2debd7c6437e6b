"""What tests of real processes compare."""

from pathlib import Path

import pytest
import torch

from tests.helpers.plain_loop import algorithm_1, largest_difference
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import TOLERANCE, last_weights


def assert_same_means(mine, theirs):
    """The evaluation at home and the federated one: every mean of every model, site, metric and label."""
    assert mine["images"] == theirs["images"] and mine["confusion"] == theirs["confusion"]
    for model, by_site in mine["models"].items():
        for site, metrics in by_site.items():
            for metric, labels in metrics.items():
                means = {label: value["mean"] for label, value in labels.items()}
                found = theirs["models"][model][site][metric]
                assert {label: value["mean"] for label, value in found.items()} == pytest.approx(means, abs=1e-6)


def assert_equals_plain_loop(run_folder: Path, data_root: Path, rounds: int) -> None:
    settings = small_settings(selector="gradient", rounds=rounds)
    plain = algorithm_1(data_root, settings, SITES, lam=0.7, selector="gradient")
    weights = last_weights(run_folder)
    for model in plain:
        assert largest_difference(weights[model], plain[model]) < TOLERANCE, model


def same_images(mapped, loaded) -> bool:
    return all(
        torch.equal(mapped[part].images[:], loaded[part].images)
        and torch.equal(mapped[part].labels[:], loaded[part].labels)
        and mapped[part].labels[:].dtype == torch.uint8
        for part in loaded
    )
