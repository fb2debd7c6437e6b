"""The descriptor `encoder` through a whole federation: sums after the last round, a selector that stands alone."""

import pytest
import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from fedsm.data.dataset import load_site
from fedsm.flare import exchange
from fedsm.selectors.network_features import encoder_features, encoder_weights
from fedsm.super_model.artefact import load_super_model
from fedsm.tracks import build_inference_selector
from tests.helpers.federation import Federation, results_of
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import last_weights


def encoder_settings(**given):
    return small_settings(selector="statistics", overrides=["tracks.selector.descriptor=encoder"], **given)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data_root):
    return Federation(tmp_path_factory.mktemp("encoder"), data_root, encoder_settings(rounds=2), SITES).run()


def test_the_run_finishes_with_a_selector(finished):
    assert finished.panic is None
    results = results_of(finished)
    assert set(results["test"]["selector_accuracy"]["per_site"]) == set(SITES)
    assert results["test"]["selector_accuracy"]["mean"] > 0.6, "chance is 0.33"
    assert results["wire"]["delivery_up_bytes"] == dict.fromkeys(SITES, 8 * (1 + 56 + 56 * 57 // 2))
    assert "super_model" in results["test"]


def test_the_sums_are_those_of_the_last_global_model(finished, data_root):
    """And not of the one before: the selector's means are the training images' through the last encoder."""
    settings = encoder_settings(rounds=2)
    last = encoder_weights(settings.task, last_weights(finished.run_folder)["global"])
    files = load_super_model(finished.run_folder / "super_model")
    selector = files.networks["selector"]
    for key, value in last.items():
        assert torch.equal(selector[f"encoder/{key}"], value)
    describe = encoder_features(settings.task, last)
    for k, site in enumerate(SITES):
        mean = describe(load_site(data_root / site, site, settings)["train"].images).mean(0)
        assert torch.allclose(selector["means"][k], mean, atol=1e-5)
    images = load_site(data_root / SITES[0], SITES[0], settings)["test"].images
    yhat = build_inference_selector(files.settings, 3, selector, torch.device("cpu")).probabilities(images)
    hits = (yhat.argmax(1) == 0).float().mean().item()
    assert hits == pytest.approx(results_of(finished)["test"]["selector_accuracy"]["per_site"][SITES[0]])


def test_a_site_that_is_gone_after_the_last_round_has_no_class(tmp_path, data_root):
    def fault(site, task, shareable, work):
        if site.name == "site-2" and task == exchange.VALIDATE:
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return work()

    federation = Federation(tmp_path, data_root, encoder_settings(rounds=1), SITES, fault=fault).run()
    assert federation.panic is None
    accuracy = results_of(federation)["test"]["selector_accuracy"]["per_site"]
    assert accuracy["site-2"] == 0
    assert accuracy["site-1"] > 0.5


def test_a_finished_run_goes_on_with_new_sums(finished, tmp_path, data_root):
    """One more round: the encoder has changed, and so have all the sums."""
    settings = encoder_settings(rounds=3)
    folder = str(finished.run_folder / "checkpoints")
    federation = Federation(tmp_path, data_root, settings, SITES, resume_from=folder).run()
    assert federation.panic is None
    last = encoder_weights(settings.task, last_weights(federation.run_folder)["global"])
    selector = load_super_model(federation.run_folder / "super_model").networks["selector"]
    before = load_super_model(finished.run_folder / "super_model").networks["selector"]
    describe = encoder_features(settings.task, last)
    for k, site in enumerate(SITES):
        mean = describe(load_site(data_root / site, site, settings)["train"].images).mean(0)
        assert torch.allclose(selector["means"][k], mean, atol=1e-5)
        assert not torch.allclose(before["means"][k], mean, atol=1e-3)
