"""The federated run equals Algorithm 1, written as a plain loop."""

import pytest

from tests.helpers.federation import Federation, results_of
from tests.helpers.plain_loop import algorithm_1, largest_difference
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import TOLERANCE, last_weights


@pytest.mark.parametrize("selector", ["gradient", "fedavg", "statistics"])
def test_in_process_run_equals_plain_loop(tmp_path, data_root, selector):
    settings = small_settings(selector=selector, lam=0.7, local_epochs=2 if selector == "gradient" else 1)
    federation = Federation(tmp_path, data_root, settings, SITES).run()
    assert federation.panic is None
    weights = last_weights(federation.run_folder)

    plain = algorithm_1(data_root, settings, SITES, lam=0.7, selector=selector)
    models = ["global", *(f"personal.{s}" for s in SITES)] + (["selector"] if selector != "statistics" else [])
    for model in models:
        assert largest_difference(weights[model], plain[model]) < TOLERANCE, model

    results = results_of(federation)
    assert results["sites"] == SITES
    assert all(
        results["wire"]["registration_up_bytes"][s] == (16_640 if selector == "statistics" else 0) for s in SITES
    )
    assert len(results["validation"]["history"]) == 3


def test_a_network_of_monai_in_place_of_the_unet_equals_the_plain_loop(tmp_path, data_root):
    network = "task.network={name: SegResNet, init_filters: 8, blocks_down: [1, 1], blocks_up: [1]}"
    settings = small_settings(selector="statistics", lam=0.7, rounds=2, overrides=[network])
    federation = Federation(tmp_path, data_root, settings, SITES).run()
    assert federation.panic is None
    weights, plain = (
        last_weights(federation.run_folder),
        algorithm_1(data_root, settings, SITES, lam=0.7, selector="none"),
    )
    assert "convInit.conv.weight" in weights["global"]
    for model in ["global", *(f"personal.{s}" for s in SITES)]:
        assert largest_difference(weights[model], plain[model]) < TOLERANCE, model
