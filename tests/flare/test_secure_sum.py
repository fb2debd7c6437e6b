"""Secure sums through the real controller, aggregator and executors: the models of plain sums, drop-outs, restarts."""

from __future__ import annotations

import json

import pytest
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from safetensors.torch import load_file

from fedsm.client.sum_keys import FILE
from fedsm.flare import exchange
from tests.helpers.federation import Federation, in_round, results_of
from tests.helpers.plain_loop import algorithm_1, largest_difference
from tests.helpers.small_jobs import SITES, small_settings, write_site
from tests.helpers.weights import TOLERANCE, last_weights

CLOSE = 1e-4
FOUR = [*SITES, "site-4"]


def secure_settings(**given):
    return small_settings(
        **({"secure_sum": True, "norm_check": "off", "min_sites": 3, "lam": 0.7, "rounds": 2} | given)
    )


@pytest.fixture
def four_sites(tmp_path):
    for i, site in enumerate(FOUR):
        write_site(tmp_path / "data" / site, 12 + 4 * i, i)
    return tmp_path / "data"


def test_five_rounds_give_the_models_of_plain_sums(tmp_path, data_root):
    """The global model, the trained selector, and every personal model that was handed over."""
    options = {"rounds": 5, "selector": "gradient", "lam": 0.7, "norm_check": "off"}
    plain = Federation(tmp_path / "plain", data_root, small_settings(**options), SITES).run()
    settings = secure_settings(**options, secure_sum={"bits": 64})
    secure = Federation(tmp_path / "secure", data_root, settings, SITES).run()
    assert plain.panic is None and secure.panic is None
    a, b = last_weights(plain.run_folder), last_weights(secure.run_folder)
    for model in ("global", "selector"):
        assert largest_difference(a[model], b[model]) < CLOSE, model
    one, two = results_of(plain), results_of(secure)
    for name in (f"personal.{site}" for site in SITES):
        x, y = (load_file(run.run_folder / "super_model" / f"{name}.safetensors") for run in (plain, secure))
        assert largest_difference(x, y) < CLOSE, name
        assert one["validation"]["best"][name]["round"] == two["validation"]["best"][name]["round"]
    assert two["lam"] == 0.7 and two["refused"] == []


def drops_out(name: str, task: str, number: int):
    """A site that is gone from one task of a round on, until the round is over."""

    def fault(site, asked, shareable, work):
        here = site.name == name and asked in (exchange.SUM, exchange.OPEN) and in_round(shareable) == number
        tasks = {exchange.SUM: (exchange.SUM, exchange.OPEN), exchange.OPEN: (exchange.OPEN,)}[task]
        return make_reply(ReturnCode.EXECUTION_EXCEPTION) if here and asked in tasks else work()

    return fault


def test_a_site_that_drops_out_before_its_update_is_there_is_left_out(tmp_path, four_sites):
    """Its masks with the others are opened by them. The round is that of a plain loop in which it takes no part, but
    its Adam has gone on; with 32 bits."""
    settings = secure_settings(overrides=["tracks={global: {kind: fedavg}}"])
    fault = drops_out("site-2", exchange.SUM, 1)
    federation = Federation(tmp_path, four_sites, settings, FOUR, fault=fault).run()
    assert federation.panic is None
    present, lost = {1: [s for s in FOUR if s != "site-2"]}, {1: ["site-2"]}
    expected = algorithm_1(four_sites, settings, FOUR, 0.7, "none", present, lost)
    assert largest_difference(last_weights(federation.run_folder)["global"], expected["global"]) < TOLERANCE
    row = results_of(federation)["validation"]["history"][0]
    assert row["answered"] == present[1] and list(row["missing"]) == ["site-2"]


def test_a_site_that_drops_out_before_the_sum_is_opened_is_in_it(tmp_path, four_sites):
    """Three of four open the sum, the fourth's seed included: all four are in the round."""
    settings = secure_settings(overrides=["tracks={global: {kind: fedavg}}"])
    federation = Federation(tmp_path, four_sites, settings, FOUR, fault=drops_out("site-4", exchange.OPEN, 2)).run()
    assert federation.panic is None
    expected = algorithm_1(four_sites, settings, FOUR, 0.7, "none")
    assert largest_difference(last_weights(federation.run_folder)["global"], expected["global"]) < TOLERANCE
    assert all(row["answered"] == FOUR for row in results_of(federation)["validation"]["history"])


def test_restarted_sites_go_on_with_their_keys(tmp_path, data_root):
    """A new process before every task but that which follows training: an update is not kept on the disk. A site that
    has lost its state folder between two rounds says so, and the job stops with its checkpoint; resumed, it registers
    with a new key, and the run goes on."""

    def restart(site, task, shareable, work):
        if task != exchange.SUM:
            site.restart()
        return work()

    settings = secure_settings(rounds=3, selection="algorithm2")
    kept = Federation(tmp_path / "kept", data_root, settings, SITES).run()
    restarted = Federation(tmp_path / "restarted", data_root, settings, SITES, fault=restart).run()
    assert restarted.panic is None
    a, b = last_weights(kept.run_folder), last_weights(restarted.run_folder)
    assert largest_difference(a["global"], b["global"]) < 1e-6
    assert largest_difference(a["personal.site-1"], b["personal.site-1"]) < 1e-6


def test_resume_with_new_keys_gives_the_models_of_an_undisturbed_run(tmp_path, data_root, monkeypatch):
    """Site 3 loses its key in round 2: it says so, and with 3 needed the job stops with its checkpoint. In the resumed
    job all sites register with new keys."""
    monkeypatch.setattr("fedsm.flare.task_runner.RETRY_PAUSE", 0.05)
    settings = secure_settings(rounds=3)
    straight = Federation(tmp_path / "straight", data_root, settings, SITES).run()

    def loses_key(site, task, shareable, work):
        if site.name == "site-3" and task == exchange.SUM and in_round(shareable) == 2:
            for file in (tmp_path / "stopped" / "site-3").rglob(FILE):
                file.unlink()
        return work()

    stopped = Federation(tmp_path / "stopped", data_root, settings, SITES, fault=loses_key).run()
    assert "has lost its key of secure sums" in stopped.panic and "min_sites is 3" in stopped.panic
    saved = tmp_path / "saved"
    stopped.run_folder.rename(saved)
    resumed = Federation(tmp_path / "stopped", data_root, settings, SITES, resume_from=str(saved / "checkpoints")).run()
    assert resumed.panic is None
    a, b = last_weights(straight.run_folder), last_weights(resumed.run_folder)
    for model in a:
        if not model.startswith("selector"):
            assert largest_difference(a[model], b[model]) < 1e-6, model


def test_a_site_that_wants_secure_sums_refuses_other_jobs(tmp_path, data_root):
    """`min_sum` in a site's own file: a lead, or the server, cannot switch the setting off for it."""
    wants = {site: {"min_sum": 3} for site in SITES}
    plain = Federation(
        tmp_path / "plain", data_root, small_settings(rounds=1, round_retries=0), SITES, site_settings=wants
    ).run()
    assert "min_sum wants secure sums" in plain.panic


def test_a_site_that_sends_rubbish_spoils_the_round_and_no_model(tmp_path, data_root):
    """A masked update of random numbers: the mean would be longer than any mean of clipped updates. No model changes,
    and every site is warned of, because none can be named."""

    def rubbish(site, task, shareable, work):
        reply = work()
        if task == exchange.SUM and site.name == "site-1" and in_round(shareable) == 1:
            _, tracks = exchange.unpack(reply)
            tracks["masked"]["masked"].random_()
        return reply

    settings = secure_settings(rounds=1, overrides=["tracks={global: {kind: fedavg}}"])
    federation = Federation(tmp_path, data_root, settings, SITES, fault=rubbish).run()
    assert federation.panic is None
    warned = results_of(federation)["warned"]
    assert {entry["site"] for entry in warned} == set(SITES)
    assert "the mean of masked updates has the norm" in json.dumps(warned)
