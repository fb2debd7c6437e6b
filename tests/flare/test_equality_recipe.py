"""The whole training recipe in a federation: equal to a plain loop, through missing sites, restarts and resumes."""

import json

import pytest
import torch

from fedsm.core.dice import dice_per_image
from fedsm.data.dataset import load_site
from fedsm.flare import exchange
from fedsm.nets import build_unet
from fedsm.super_model.artefact import load_super_model
from tests.helpers.federation import Federation, failing, in_round, results_of
from tests.helpers.plain_loop import algorithm_1, largest_difference
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import TOLERANCE, last_weights, size_of

MODELS = ["global", *(f"personal.{s}" for s in SITES)]
MODELS += [f"{model}.raw" for model in MODELS]


def settings(**given):
    """The preset `best`, shortened, with what it leaves at its default set as well.

    But for site-held norm layers and last rounds alone, which `test_equality_pull.py` has.
    """
    more = {"rounds": 4, "schedule": "cosine", "warmup_rounds": 1, "site_weights": "equal"}
    augment = "{flip: horizontal, rotate: 15, scale: 0.1, intensity: 0.1}"
    overrides = [f"task.augment={augment}", "tracks.personal.norm=pulled", "tracks.personal.alone=0"]
    return small_settings(**{"preset": "best", "overrides": overrides} | more | given)


def run(folder, data_root, job, **more) -> tuple[Federation, dict]:
    federation = Federation(folder, data_root, job, SITES, **more).run()
    assert federation.panic is None
    return federation, last_weights(federation.run_folder)


@torch.no_grad()
def dice_at(data_root, job, site: str, model: dict) -> float:
    part = load_site(data_root / site, site, job)["validation"]
    net = build_unet(job.task).eval()
    net.load_state_dict(model)
    return dice_per_image(net(part.images[:]) > 0, part.labels[:] > 0).mean().item()


@pytest.mark.parametrize("selector", ["statistics", "gradient"])
def test_the_preset_best_equals_a_plain_loop(tmp_path, data_root, selector):
    job = settings(selector=selector, lam=0.7)
    assert (job.loss, job.schedule) == ("dice+ce", "cosine") and job.ema and job.task.augment.flip != "none"
    federation, weights = run(tmp_path, data_root, job)
    plain = algorithm_1(data_root, job, SITES, lam=0.7, selector=selector)
    for model in MODELS + (["selector"] if selector == "gradient" else []):
        assert largest_difference(weights[model], plain[model]) < TOLERANCE, model
    assert largest_difference(weights["global"], weights["global.raw"]) > 10 * TOLERANCE

    results = results_of(federation)
    assert results["preset"] == "best"
    scored = results["validation"]["history"][-1]["validation"]
    for site in SITES:
        assert scored["global"][site] == pytest.approx(dice_at(data_root, job, site, weights["global"]))
        assert scored["personal"][site] == pytest.approx(dice_at(data_root, job, site, weights[f"personal.{site}"]))
    unet, vgg = size_of(weights["global"]), size_of(weights["selector"]) if selector == "gradient" else 0
    assert results["wire"]["down_bytes"][SITES[0]] == [4 * unet + vgg] * 4, "the averages come down as well"
    assert results["wire"]["up_bytes"][SITES[0]] == [2 * unet + vgg] * 4
    lines = map(json.loads, (federation.run_folder / "accepted.jsonl").read_text().splitlines())
    assert {line["n_images"] for line in lines} == {1.0}


INGREDIENTS = [
    {"loss": "dice+ce"},
    {"schedule": "cosine"},
    {"warmup_rounds": 2},
    {"ema": 0.5},
    {"site_weights": "equal"},
]


@pytest.mark.parametrize("ingredient", INGREDIENTS, ids=str)
def test_each_ingredient_alone_equals_a_plain_loop_and_is_noticed(tmp_path, data_root, ingredient):
    job = small_settings(rounds=3, method="fedavg", **ingredient)
    _, weights = run(tmp_path, data_root, job)
    plain = algorithm_1(data_root, job, SITES, lam=0.7, selector="none")
    assert largest_difference(weights["global"], plain["global"]) < TOLERANCE
    without = algorithm_1(data_root, small_settings(rounds=3, method="fedavg"), SITES, lam=0.7, selector="none")
    assert largest_difference(weights["global"], without["global"]) > 10 * TOLERANCE


def test_a_site_that_misses_a_round(tmp_path, data_root):
    """Site 2 fails in round 2: its personal average has three rounds, the others' and the global one have four."""
    job = settings(lam=0.7)
    _, weights = run(tmp_path, data_root, job, fault=failing(("site-2", 2)))
    plain = algorithm_1(data_root, job, SITES, 0.7, "none", {2: ["site-1", "site-3"]})
    for model in MODELS:
        assert largest_difference(weights[model], plain[model]) < TOLERANCE, model
    assert [int(n) for n in weights["personal.ema.updates"].values()] == [4, 3, 4]


def stop_in_round_3(site, task, shareable, work):
    if task == exchange.TRAIN and in_round(shareable) == 3:
        site.federation.abort.trigger(True)
        return None
    return work()


def test_a_resumed_run_with_restarted_sites_is_the_uninterrupted_one(tmp_path, data_root):
    """The rate comes from the round's number, the averages from the checkpoint: the same weights to the bit."""
    job = settings()
    whole, straight = run(tmp_path / "whole", data_root, job)
    cut = Federation(tmp_path / "cut", data_root, job, SITES, fault=stop_in_round_3).run()
    assert not (cut.run_folder / "results.json").exists()
    saved = tmp_path / "saved"
    cut.run_folder.rename(saved)

    def restart(site, task, shareable, work):
        site.restart()
        return work()

    source = str(saved / "checkpoints")
    resumed, weights = run(tmp_path / "cut", data_root, job, resume_from=source, fault=restart)
    assert set(weights) == set(straight)
    for model in straight:
        assert largest_difference(weights[model], straight[model]) == 0, model
    assert results_of(whole)["test"] == results_of(resumed)["test"]
    made = load_super_model(whole.run_folder / "super_model").networks
    best = results_of(whole)["validation"]["best"]
    for model in (m for m in best if best[m]["round"] == 4):
        assert largest_difference(made[model], weights[model]) == 0, "the super model is the average"


def test_more_rounds_make_the_schedule_longer(tmp_path, data_root, monkeypatch):
    """Rounds 1 and 2 are those of a cosine over two, rounds 3 and 4 those of one over four."""
    two, four = (small_settings(rounds=n, method="fedavg", schedule="cosine") for n in (2, 4))
    first, _ = run(tmp_path / "a", data_root, two)
    _, weights = run(tmp_path / "a", data_root, four, resume_from=str(first.run_folder / "checkpoints"))
    rates = [1.0, 0.5, 0.5, (1 - 0.5**0.5) / 2]
    monkeypatch.setattr("tests.helpers.plain_loop.factor_of", lambda settings, number: rates[number - 1])
    plain = algorithm_1(data_root, four, SITES, lam=0.7, selector="none")
    assert largest_difference(weights["global"], plain["global"]) < TOLERANCE


@pytest.mark.parametrize("change", [*INGREDIENTS, {"rounds": 3, "schedule": "cosine"}], ids=str)
def test_a_resumed_run_keeps_its_recipe(tmp_path, data_root, change):
    done, _ = run(tmp_path / "a", data_root, small_settings(rounds=1, method="fedavg"))
    job = small_settings(**{"rounds": 3, "method": "fedavg"} | change)
    other = Federation(tmp_path / "b", data_root, job, SITES, resume_from=str(done.run_folder / "checkpoints")).run()
    assert "was made with another" in other.panic


def test_a_checkpoint_from_before_the_recipe_had_the_defaults(tmp_path, data_root):
    done, _ = run(tmp_path / "a", data_root, small_settings(rounds=1, method="fedavg"))
    manifest = done.run_folder / "checkpoints" / "round_000001.json"
    state = json.loads(manifest.read_text())
    for key in ("preset", "loss", "schedule", "warmup_rounds", "ema", "site_weights"):
        del state["settings"][key]
    manifest.write_text(json.dumps(state))
    run(
        tmp_path / "b", data_root, small_settings(rounds=2, method="fedavg"),
        resume_from=str(done.run_folder / "checkpoints"),
    )  # fmt: skip
