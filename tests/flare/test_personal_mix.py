"""Mixing personal models after training, through the real controller and task server."""

import pytest
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from fedsm.flare import exchange
from fedsm.nets import build_unet
from fedsm.server.checkpoint import Checkpoints
from fedsm.super_model.artefact import load_super_model
from fedsm.tracks.fedbn import norm_entries
from tests.helpers import plain_pulls as plain
from tests.helpers.federation import Federation, results_of
from tests.helpers.hostile import HOSTILE, meta_of, on
from tests.helpers.plain_loop import largest_difference
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import TOLERANCE, size_of

SHARES = [0.2, 0.5, 1.0]


def job(**given):
    return small_settings(selector="statistics", lam=0.9, rounds=2, personal_mix=SHARES, **given)


def best_of(federation) -> dict[str, dict]:
    """Site -> its personal model of the best round, as the checkpoint has it."""
    checkpoints = Checkpoints(federation.run_folder / "checkpoints")
    best = checkpoints.load()["best"]
    return {site: checkpoints.load_weights(best[f"personal.{site}"]["file"]) for site in SITES}


def assert_equal(federation, data_root, settings, silent=(), held=frozenset()) -> dict:
    """The curves, the choices and the models of the super model are those of the plain formulas."""
    assert federation.panic is None
    results, own = results_of(federation), best_of(federation)
    made = load_super_model(federation.run_folder / "super_model")
    assert made.manifest["personal_mix"] == results["personal_mix"]
    assert set(results["personal_mix"]) == set(SITES)
    for site, found in results["personal_mix"].items():
        others = [own[s] for s in SITES if s != site]
        models = {a: plain.mix(own[site], others, a, held) for a in [0.0, *SHARES]}
        if site in silent:
            assert found == {"share": 0.0, "curve": []}
        else:
            scores = {a: plain.validation_dice(data_root, settings, site, m) for a, m in models.items()}
            assert [row["share"] for row in found["curve"]] == list(scores)
            assert [row["dice"] for row in found["curve"]] == pytest.approx(list(scores.values()), abs=1e-3)
            measured = {row["share"]: row["dice"] for row in found["curve"]}
            assert found["share"] == min(a for a, d in measured.items() if d == max(measured.values()))
        difference = largest_difference(made.networks[f"personal.{site}"], models[found["share"]])
        assert difference < (TOLERANCE if found["share"] else 1e-12), site
    return results


@pytest.mark.parametrize("norm", ["pulled", "own"])
def test_curves_choices_and_models_equal_the_plain_formulas(tmp_path, data_root, norm):
    settings = job(overrides=[f"tracks.personal.norm={norm}"])
    federation = Federation(tmp_path, data_root, settings, SITES).run()
    held = norm_entries(build_unet(settings.task)) if norm == "own" else frozenset()
    results = assert_equal(federation, data_root, settings, held=held)
    assert any(found["share"] for found in results["personal_mix"].values()), "or this test says little"
    model = best_of(federation)[SITES[0]]
    down = size_of(model) + size_of({k: v for k, v in model.items() if k not in held})
    assert results["wire"]["mix_down_bytes"] == dict.fromkeys(SITES, down)


def test_the_score_of_the_chosen_share_is_that_of_the_candidate(tmp_path, data_root):
    """The server forms the very model that the site has scored: its validation Dice at gamma 0 of a selector that is
    always right would be the same. Here: Local, where a site's own row of the tables is its personal model."""
    settings = small_settings(method="local", rounds=2, personal_mix=[0.5])
    federation = Federation(tmp_path, data_root, settings, SITES).run()
    assert federation.panic is None
    found = results_of(federation)["personal_mix"]
    made = load_super_model(federation.run_folder / "super_model").networks
    for site in SITES:
        best = max(row["dice"] for row in found[site]["curve"])
        assert plain.validation_dice(data_root, settings, site, made[f"personal.{site}"]) == pytest.approx(
            best, abs=1e-6
        )


def test_a_site_that_fails_or_lies_keeps_its_own_model(tmp_path, data_root):
    """Site 2 fails, site 3 sends five numbers where four were asked for: it is refused by name."""

    def fault(site, task, shareable, work):
        if task == exchange.MIX and site.name == SITES[1]:
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return on(exchange.MIX, lambda result: meta_of(result)["mix"].append(0.9))(site, task, shareable, work)

    settings = job()
    federation = Federation(tmp_path, data_root, settings, SITES, fault=fault).run()
    results = assert_equal(federation, data_root, settings, silent=SITES[1:])
    assert [(r["site"], r["task"], r["reason"]) for r in results["refused"]] == [
        (HOSTILE, exchange.MIX, "personal_mix: expected Dice at 4 shares")
    ]


def test_a_run_that_is_stopped_in_the_evaluation_ends_with_the_same_models(tmp_path, data_root):
    settings = job()
    straight = Federation(tmp_path / "straight", data_root, settings, SITES).run()

    def stop(site, task, shareable, work):
        if task == exchange.EVALUATE:
            site.federation.abort.trigger(True)
            return None
        return work()

    stopped = Federation(tmp_path / "stopped", data_root, settings, SITES, fault=stop).run()
    assert not (stopped.run_folder / "results.json").exists()
    saved = tmp_path / "saved"
    stopped.run_folder.rename(saved)
    resumed = Federation(tmp_path / "stopped", data_root, settings, SITES, resume_from=str(saved / "checkpoints")).run()
    one, two = results_of(straight), results_of(resumed)
    assert one["personal_mix"] == two["personal_mix"]
    assert one["test"] == two["test"]
    a, b = (load_super_model(run.run_folder / "super_model").networks for run in (straight, resumed))
    assert all(largest_difference(a[model], b[model]) == 0 for model in a)


def test_a_run_that_is_stopped_while_sites_try_shares_leaves_no_results(tmp_path, data_root):
    def stop(site, task, shareable, work):
        if task == exchange.MIX:
            site.federation.abort.trigger(True)
            return None
        return work()

    federation = Federation(tmp_path, data_root, job(), SITES, fault=stop).run()
    assert not (federation.run_folder / "results.json").exists()


def test_off_by_default(tmp_path, data_root):
    asked = set()

    def fault(site, task, shareable, work):
        asked.add(task)
        return work()

    federation = Federation(tmp_path, data_root, small_settings(rounds=1), SITES, fault=fault).run()
    assert asked == set(exchange.TASKS)
    results = results_of(federation)
    assert results["personal_mix"] == {} and "mix_down_bytes" not in results["wire"]
