"""What tests of real processes compare."""

import pytest


def assert_same_means(mine, theirs):
    """The evaluation at home and the federated one: every mean of every model, site, metric and label."""
    assert mine["images"] == theirs["images"] and mine["confusion"] == theirs["confusion"]
    for model, by_site in mine["models"].items():
        for site, metrics in by_site.items():
            for metric, labels in metrics.items():
                means = {label: value["mean"] for label, value in labels.items()}
                found = theirs["models"][model][site][metric]
                assert {label: value["mean"] for label, value in found.items()} == pytest.approx(means, abs=1e-6)
