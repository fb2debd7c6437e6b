"""What FLARE's privacy filters do to an update, and how the aggregator takes it."""

import math

import pytest
import torch
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

from fedsm.flare import exchange
from fedsm.selectors.private_sums import SENSITIVITY, gaussian_sigma
from fedsm.server.checks import privacy_problem
from fedsm.tracks import server_tracks
from tests.helpers.federation import Federation, results_of
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import last_weights

KEYS = ("epsilon", "delta", "sigma", "clip", "budget", "releases")
FIRST = "model.0."  # entries of the U-Net's first block


def filtered(site, result, *filters):
    """What FLARE makes of a result on its way out."""
    with site.manager.new_context() as fl_ctx:
        for each in filters:
            result = each.process(result, fl_ctx)
    return result


def run(folder, data_root, filters, **given):
    def fault(site, task, shareable, work):
        result = work()
        return filtered(site, result, *filters.get(site.name, [])) if task == exchange.TRAIN else result

    return Federation(folder, data_root, small_settings(**given), SITES, fault=fault).run()


def test_filters_of_flare_beside_a_site_that_has_none(tmp_path, data_root):
    filters = {
        "site-2": [PercentilePrivacy(percentile=20, gamma=0.01)],
        "site-3": [SVTPrivacy(fraction=0.5, epsilon=10.0, noise_var=10.0, gamma=0.001)],
    }
    federation = run(tmp_path, data_root, filters, rounds=2, selector="gradient")
    assert federation.panic is None
    assert [row["answered"] for row in results_of(federation)["validation"]["history"]] == [SITES, SITES]
    for weights in last_weights(federation.run_folder).values():
        assert all(torch.isfinite(t).all() and t.dtype != torch.float64 for t in weights.values())


def test_what_exclude_vars_keeps_back_stays_as_the_server_had_it(tmp_path, data_root):
    """Everybody keeps the first block back: nobody moves it, and all else moves as it does without the filter."""
    settings = {"rounds": 1, "lam": 1.0}
    plain = last_weights(run(tmp_path / "plain", data_root, {}, **settings).run_folder)
    filters = {site: [ExcludeVars(f"^{FIRST}")] for site in SITES}
    federation = run(tmp_path / "kept", data_root, filters, **settings)
    assert results_of(federation)["validation"]["history"][0]["answered"] == SITES
    start = server_tracks(small_settings(**settings), SITES)["global"].weights
    for model, weights in last_weights(federation.run_folder).items():
        for key, value in weights.items() if model != "selector.sums" else ():
            expected = start if key.startswith(FIRST) else plain[model]
            assert torch.equal(value, expected[key]), (model, key)
            assert not torch.equal(plain[model][key], start[key]), "it moves without the filter"


@pytest.mark.parametrize("sign", [False, True])
def test_entries_that_are_missing_for_no_reason_are_refused(tmp_path, data_root, sign):
    """The same entries gone with and without the filter's signature."""

    def fault(site, task, shareable, work):
        result = work()
        if site.name == "site-2" and task == exchange.TRAIN:
            part = result["DXO"]["data"]["global"]
            part.data.popitem()
            if sign:
                part.add_filter_history("ExcludeVars")
        return result

    federation = Federation(tmp_path, data_root, small_settings(rounds=1), SITES, fault=fault).run()
    missing = results_of(federation)["validation"]["history"][0]["missing"]
    assert missing == {} if sign else "is missing" in missing["site-2"]


def test_a_private_site_is_named_in_the_results(tmp_path, data_root):
    own = {"site-1": {"statistics_privacy": {"epsilon": 2.0, "delta": "1e-5"}}}
    settings = small_settings(rounds=1, selector="statistics")
    federation = Federation(tmp_path, data_root, settings, SITES, site_settings=own).run()
    sigma = gaussian_sigma(2.0, 1e-5, SENSITIVITY)
    assert results_of(federation)["privacy"] == {
        "site-1": {"epsilon": 2.0, "delta": 1e-5, "sigma": sigma, "clip": 4.0, "budget": 2.0, "releases": 1}
    }


@pytest.mark.parametrize("claim", [None, {}, {"epsilon": 1.0}, dict.fromkeys(KEYS, "1"), dict.fromkeys(KEYS, math.nan)])
def test_rubbish_about_privacy_is_refused(claim):
    assert privacy_problem(claim)
    assert privacy_problem(dict.fromkeys(KEYS, 1.0)) is None
