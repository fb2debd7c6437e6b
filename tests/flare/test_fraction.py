"""`fraction`: in each round only some sites are asked, through the real controller and task server."""

import pytest

from app_fedsm.cli.status import summary
from fedsm.core.draw import draw
from fedsm.flare import exchange
from fedsm.server.record import Progress
from tests.helpers.federation import Federation, failing, in_round, results_of
from tests.helpers.plain_loop import algorithm_1, largest_difference
from tests.helpers.small_jobs import SITES, small_settings, write_site
from tests.helpers.weights import TOLERANCE, last_weights

ROUNDS = 5
FOUR = [*SITES, "site-4"]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr("fedsm.flare.task_runner.RETRY_PAUSE", 0.05)


def drawn(seed: int = 0, rounds: int = ROUNDS) -> dict[int, list[str]]:
    """Round -> two of the three sites."""
    return {n: sorted(draw(SITES, 2, seed, n)[0]) for n in range(1, rounds + 1)}


def sampled_settings(**given):
    return small_settings(**{"rounds": ROUNDS, "lam": 0.7, "overrides": ["fraction=0.5"]} | given)


def answered(federation: Federation) -> dict[int, list[str]]:
    return {row["round"]: row["answered"] for row in results_of(federation)["validation"]["history"]}


def test_a_sampled_run_equals_the_plain_loop(tmp_path, data_root):
    """Half of three sites: two in each round. FedAvg and SoftPull over these two, the third keeps its personal model
    and its Adam, at the server and on its disk (every task is a new process); the average over rounds (`ema`) of a
    personal model counts its own rounds."""

    def restart(site, task, shareable, work):
        site.restart()
        return work()

    settings = sampled_settings(selector="gradient", overrides=["fraction=0.5", "ema=0.5"])
    federation = Federation(tmp_path, data_root, settings, SITES, fault=restart).run()
    assert federation.panic is None
    assert answered(federation) == drawn()
    assert len({tuple(sites) for sites in drawn().values()}) > 1, "it is not always the same two"

    plain = algorithm_1(data_root, settings, SITES, 0.7, "gradient", present=drawn())
    weights = last_weights(federation.run_folder)
    models = ["global", *(f"personal.{site}" for site in SITES)]
    for model in [*models, *(f"{model}.raw" for model in models), "selector"]:
        assert largest_difference(weights[model], plain[model]) < TOLERANCE, model

    results = results_of(federation)
    assert [(row["asked"], row["missing"]) for row in results["validation"]["history"]] == [(2, {})] * ROUNDS
    for site in SITES:
        sent = [bytes_ > 0 for bytes_ in results["wire"]["up_bytes"][site]]
        assert sent == [site in sites for sites in drawn().values()]
    assert set(results["test"]["global"]["per_site"]) == set(SITES), "at the end all are asked"
    events = Progress(federation.run_folder / "progress.jsonl").events()
    assert f"round {ROUNDS} of {ROUNDS} done, 2 of 2 sites that were asked answered" in summary(events)


def test_a_resumed_run_asks_the_same_sites(tmp_path, data_root):
    settings = sampled_settings()
    straight = Federation(tmp_path / "straight", data_root, settings, SITES).run()

    def stop_in_round_3(site, task, shareable, work):
        result = work()
        if task == exchange.TRAIN and in_round(shareable) == 3:
            site.federation.abort.trigger(True)
        return result

    folder, saved = tmp_path / "stopped", tmp_path / "saved"
    first = Federation(folder, data_root, settings, SITES, fault=stop_in_round_3).run()
    assert not (first.run_folder / "results.json").exists()
    first.run_folder.rename(saved)
    second = Federation(folder, data_root, settings, SITES, resume_from=str(saved / "checkpoints")).run()
    a, b = last_weights(straight.run_folder), last_weights(second.run_folder)
    for model in a:
        assert largest_difference(a[model], b[model]) == 0, model
    one, two = results_of(straight), results_of(second)
    assert answered(straight) == answered(second) == drawn()
    assert one["validation"]["best"] == two["validation"]["best"] and one["test"] == two["test"]


def test_another_site_takes_the_place_of_one_that_fails(tmp_path, data_root):
    """Of the two that are drawn in round 2 one fails. `min_sites` is 2: the third is asked instead, not the failed one
    again, and the round is that of the plain loop with these two."""
    lost, kept = drawn()[2]
    third = next(site for site in SITES if site not in (lost, kept))
    settings = sampled_settings(rounds=2)
    federation = Federation(tmp_path, data_root, settings, SITES, fault=failing((lost, 2))).run()
    assert federation.panic is None
    row = results_of(federation)["validation"]["history"][1]
    assert (row["answered"], list(row["missing"]), row["asked"], row["attempts"]) == (
        sorted([kept, third]),
        [lost],
        3,
        2,
    )
    present = drawn() | {2: sorted([kept, third])}
    plain, weights = (
        algorithm_1(data_root, settings, SITES, 0.7, "statistics", present=present),
        last_weights(federation.run_folder),
    )
    for model in ["global", *(f"personal.{site}" for site in SITES)]:
        assert largest_difference(weights[model], plain[model]) < TOLERANCE, model


def test_the_job_stops_where_the_others_fail_as_well(tmp_path, data_root):
    fault = failing(*[(site, 1) for site in SITES] * 3)
    federation = Federation(tmp_path, data_root, sampled_settings(rounds=2), SITES, fault=fault).run()
    assert "round 1: 0 of 3 sites gave a good answer after 3 attempts, min_sites is 2" in federation.panic


def test_masked_sums_of_the_drawn_sites_are_their_plain_sums(tmp_path):
    """Three of four sites in each round; with `secure_sum` the server sees their sum alone."""
    for i, site in enumerate(FOUR):
        write_site(tmp_path / "data" / site, 12 + 4 * i, i)
    options = {
        "rounds": 2, "method": "fedavg", "norm_check": "off", "min_sites": 3, "overrides": ["fraction=0.75"]
    }  # fmt: skip
    runs = [
        Federation(tmp_path / name, tmp_path / "data", small_settings(**options, **more), FOUR).run()
        for name, more in (("plain", {}), ("secure", {"secure_sum": {"bits": 64}}))
    ]
    assert [run.panic for run in runs] == [None, None]
    assert answered(runs[0]) == answered(runs[1]) == {n: sorted(draw(FOUR, 3, 0, n)[0]) for n in (1, 2)}
    a, b = (last_weights(run.run_folder)["global"] for run in runs)
    assert largest_difference(a, b) < 1e-4
