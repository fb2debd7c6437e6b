"""Rubbish of every kind: refused by name, told everywhere, and the models are those without it."""

import json
from math import inf
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.dxo import DataKind

from fedsm.core.errors import UserError
from fedsm.core.settings import NORM_CHECKS, JobSettings
from fedsm.flare import exchange
from fedsm.flare.aggregator import SoftPullAggregator
from fedsm.flare.task import TaskSpec
from fedsm.selectors.gaussian import StatisticsSelector, gaussian_classes, sums_template
from fedsm.server.guard import NormGuard
from fedsm.tracks import server_tracks
from fedsm.tracks.base import TRAIN
from tests.helpers.federation import Federation, in_round, results_of
from tests.helpers.plain_loop import algorithm_1, largest_difference
from tests.helpers.shareables import IMAGES, context, snapshot, update
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import TOLERANCE, last_weights


def first_entry(result) -> tuple[dict, str]:
    weights = result["DXO"]["data"]["personal"].data
    return weights, next(iter(weights))


def nan(result):
    weights, key = first_entry(result)
    weights[key] = weights[key] * float("nan")


def shape(result):
    weights, key = first_entry(result)
    weights[key] = weights[key][None]


def oversized(result):
    weights, key = first_entry(result)
    weights[key] = torch.zeros(10**7)


def norm(result):
    for part in result["DXO"]["data"].values():
        part.data = {k: v * 1e6 for k, v in part.data.items()}


RUBBISH = {
    2: (nan, "NaN or infinite"),
    3: (shape, "has shape"),
    4: (oversized, "oversized: 40"),
    5: (lambda r: r["DXO"]["meta"].update(round=4), "answer of round 4, expected 5"),
    6: (lambda r: r["DXO"]["meta"]["images"].update(train=10**9), "claims 1000000000 train images, but registered 10"),
    7: (lambda r: r.pop("DXO"), "not a DXO"),
    8: (norm, "is far above the usual"),
}


def test_a_site_that_sends_rubbish_in_every_round_harms_nobody(tmp_path, data_root):
    """Site 3 takes part in round 1 and sends something else wrong in each of the next seven: the models are those of a
    plain loop without it, and every refusal is in the history, in `refused` and in progress.jsonl."""

    def fault(site, task, shareable, work):
        result = work()
        if site.name == "site-3" and task == exchange.TRAIN and in_round(shareable) in RUBBISH:
            RUBBISH[in_round(shareable)][0](result)
        return result

    # A small rate: over eight rounds at 1e-3 Adam made 1.5e-4 of a last bit on one kind of processor; at 1e-4 2e-7.
    settings = small_settings(rounds=8, lam=0.7, norm_check="refuse", lr=1e-4)
    federation = Federation(tmp_path, data_root, settings, SITES, fault=fault).run()
    assert federation.panic is None
    results = results_of(federation)
    told = [json.loads(line) for line in (federation.run_folder / "progress.jsonl").read_text().splitlines()]
    told = [
        {k: v for k, v in line.items() if k not in ("event", "time")} for line in told if line["event"] == "refused"
    ]
    assert results["refused"] == told and len(told) == len(RUBBISH)
    for entry, (number, (_, words)) in zip(told, RUBBISH.items(), strict=True):
        assert (entry["round"], entry["task"], entry["site"]) == (number, exchange.TRAIN, "site-3")
        assert words in entry["reason"]
        assert results["validation"]["history"][number - 1]["missing"] == {"site-3": entry["reason"]}
    weights = last_weights(federation.run_folder)
    plain = algorithm_1(data_root, settings, SITES, 0.7, "none", dict.fromkeys(RUBBISH, ["site-1", "site-2"]))
    for model in ("global", *(f"personal.{s}" for s in SITES)):
        assert largest_difference(weights[model], plain[model]) < TOLERANCE, model


def test_a_registration_with_absurd_counts_is_refused(tmp_path, data_root):
    """Nobody could contradict a site that registers with 10^9 images; `max_images` does. It takes no part."""

    def fault(site, task, shareable, work):
        result = work()
        if site.name == "site-2" and task == exchange.REGISTER:
            result["DXO"]["meta"]["images"]["train"] = 10**9
            result["DXO"]["data"]["selector"].data["n"] = torch.tensor(1e9, dtype=torch.float64)
        return result

    federation = Federation(tmp_path, data_root, small_settings(rounds=1), SITES, fault=fault).run()
    results = results_of(federation)
    assert list(results["images"]) == ["site-1", "site-3"]
    assert results["validation"]["history"][0]["missing"] == {
        "site-2": "not registered: claims 1000000000 train images, max_images is 1000000"
    }
    assert "max_images is 1000000" in results["refused"][0]["reason"]


def test_an_evaluation_that_does_not_add_up_is_refused_and_the_run_finishes(tmp_path, data_root):
    """Dice of 2 would look good in every table."""

    def fault(site, task, shareable, work):
        result = work()
        if site.name == "site-2" and task == exchange.EVALUATE and exchange.unpack(shareable)[0]["part"] == "test":
            result["DXO"]["meta"]["evaluation"]["dice"]["global"]["cup"] = 2.0
        return result

    federation = Federation(tmp_path, data_root, small_settings(rounds=1), SITES, fault=fault).run()
    results = results_of(federation)
    assert results["missing_in_evaluation"] == {"site-2": "test Dice is not in [0, 1]"}
    assert results["test"]["global"]["per_site"]["site-2"] is None


def far(aggregator, factor: float):
    """An update whose norm in every track is `factor` times that of `update`."""
    shareable = update(aggregator)
    for part in shareable["DXO"]["data"].values():
        part.data = {k: v * factor for k, v in part.data.items()}
    return shareable


def after_a_round(aggregator):
    """The aggregator in its second round, knowing what is usual: updates of 1 in every entry."""
    for site in SITES:
        assert aggregator.accept(update(aggregator), context(site))
    aggregator.aggregate(context("site-1"))
    aggregator.begin(TaskSpec("a task", exchange.TRAIN, 5))
    told = []
    aggregator._tell = lambda *words: told.append(words)
    return told


@pytest.mark.parametrize("aggregator", [{"norm_check": "refuse"}], indirect=True)
def test_a_far_norm_is_refused(aggregator):
    """4 times the usual norm is taken, 6 times is not (`norm_factor` is 5)."""
    told = after_a_round(aggregator)
    assert aggregator.accept(far(aggregator, 4), context("site-1"))
    before = snapshot(aggregator)
    assert not aggregator.accept(far(aggregator, 6), context("site-2"))
    assert "is far above the usual" in aggregator.results.refused["site-2"]
    assert [(kind, site) for kind, site, _ in told] == [("refused", "site-2")]
    after = snapshot(aggregator)
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_a_far_norm_is_scaled_down_to_the_usual_one(aggregator):
    """An update of 400 in every entry becomes one of 1, as those of the round before were."""
    told = after_a_round(aggregator)
    before = snapshot(aggregator)
    assert aggregator.accept(far(aggregator, 400), context("site-1"))
    aggregator.aggregate(context("site-1"))
    after = snapshot(aggregator)
    for key in (k for k in before if k.startswith("global/")):
        assert torch.allclose(after[key], before[key] + 1, rtol=1e-4)
    assert {kind for kind, _, _ in told} == {"warned"} and all("scaled down" in reason for _, _, reason in told)


@pytest.mark.parametrize("aggregator", [{"norm_check": mode} for mode in NORM_CHECKS], indirect=True)
def test_an_absurd_norm_is_refused_in_every_mode(aggregator):
    """No model survives 501 = 100 x norm_factor + 1 times the usual update."""
    after_a_round(aggregator)
    assert not aggregator.accept(far(aggregator, 501), context("site-1"))


@pytest.mark.parametrize(
    ("aggregator", "warnings"), [({"norm_check": "warn"}, 3), ({"norm_check": "off"}, 0)], indirect=["aggregator"]
)
def test_a_far_norm_is_merged_if_the_job_says_so(aggregator, warnings):
    """One warning for each track; none with `norm_check` off."""
    told = after_a_round(aggregator)
    assert aggregator.accept(far(aggregator, 11), context("site-2"))
    assert [kind for kind, _, _ in told] == ["warned"] * warnings


def test_weights_are_judged_beside_larger_controls():
    """SCAFFOLD's controls are a hundred times its weights here: one norm over both would not notice 6 times the
    usual weights."""
    server, settings = SoftPullAggregator(), small_settings(method="scaffold", norm_check="refuse")
    server.bind(server_tracks(settings, SITES), SITES, settings)
    server.begin(TaskSpec("registration", exchange.REGISTER, 0))
    for site in SITES:
        assert server.accept(exchange.pack({}, {"round": 0, "images": IMAGES}), context(site))

    def answer(weight: float, control: float):
        template = server.tracks["global"].expects(TRAIN)
        sizes = {k: control if k.startswith("control/") else weight for k in template}
        tensors = {k: torch.full_like(v, sizes[k]) for k, v in template.items()}
        meta = {"round": server._spec.number, "images": IMAGES}
        return exchange.pack({"global": tensors}, meta, DataKind.WEIGHT_DIFF)

    server.begin(TaskSpec("round 1", exchange.TRAIN, 1))
    assert server.accept(answer(0.01, 1), context("site-1"))
    server.aggregate(context("site-1"))
    server.begin(TaskSpec("round 2", exchange.TRAIN, 2))
    assert server.accept(answer(0.04, 4), context("site-1"))
    assert not server.accept(answer(0.06, 1), context("site-2"))
    assert "track 'global': norm" in server.results.refused["site-2"]
    assert not server.accept(answer(0.01, 6), context("site-3"))
    assert "track 'global.control': norm" in server.results.refused["site-3"]


def test_the_usual_norm_is_the_median_of_five_rounds():
    """In the first round: of the answers themselves, of two the smaller. Then medians; zeros (a track that rested) and
    a single outlier count for nothing; the sixth round pushes out the first."""
    guard = NormGuard("warn", 2.0)
    assert guard.usual("global", 100) == inf and not guard.knows("global")
    guard.note("global", "a", 7.0)
    guard.note("global", "b", 1e12)
    assert guard.usual("global", 100) == 7
    guard.note("global", "c", 9.0)
    assert guard.usual("global", 100) == 9
    guard.close({"global": [0.0, 0.0]})
    assert guard.usual("global", 100) == inf and not guard.knows("global")
    guard.close({"global": [3.0, 4.0, 1e9]})
    assert guard.usual("global", 100) == 4 and guard.knows("global")
    for _ in range(5):
        guard.close({"global": [1.0]})
    assert guard.usual("global", 100) == 1 and len(guard.history["global"]) == 5
    assert guard.usual("personal", 9) == inf, "each track for itself"
    assert guard.limit(3.0) == 6 and guard.absurd(3.0) == 600
    assert NormGuard("off", 2.0).limit(3.0) == inf


def test_norms_survive_a_resume(tmp_path, data_root):
    """They are in the checkpoint: the first round of the resumed run is judged by those of the earlier one."""
    first = Federation(tmp_path, data_root, small_settings(rounds=1), SITES).run()
    saved = tmp_path / "saved"
    first.run_folder.rename(saved)
    norms = json.loads((saved / "checkpoints" / "round_000001.json").read_text())["record"]["norms"]
    assert [len(row) for row in norms["global"]] == [3]
    source = str(saved / "checkpoints")
    second = Federation(tmp_path, data_root, small_settings(rounds=2), SITES, resume_from=source).run()
    state = json.loads((second.run_folder / "checkpoints" / "round_000002.json").read_text())
    assert state["record"]["norms"]["global"][0] == norms["global"][0]


def test_an_oversized_answer_is_refused_before_it_is_read(tmp_path, aggregator):
    """What FLARE received to disk is judged by the size of its files."""
    file = tmp_path / "huge.safetensors"
    with file.open("wb") as f:
        f.truncate(10**9)  # sparse: it takes no room

    def materialize():
        raise AssertionError("it was read")

    shareable = update(aggregator)
    weights, key = first_entry(shareable)
    weights[key] = SimpleNamespace(file_path=str(file), materialize=materialize)
    assert not aggregator.accept(shareable, context("site-1"))
    assert aggregator.results.refused["site-1"].startswith("oversized: 100")


def test_tracks_in_numpy_float64_are_not_oversized(aggregator):
    """A site's filter may turn float32 into float64; that is the most a good answer can have."""
    shareable = update(aggregator)
    for part in shareable["DXO"]["data"].values():
        part.data = {k: v.double().numpy() for k, v in part.data.items()}
    assert aggregator.accept(shareable, context("site-1")), aggregator.results.refused


def test_a_filter_s_own_words_in_the_meta_are_not_kept(aggregator):
    assert aggregator.accept(update(aggregator, filter_history=["x"], junk="y" * 10**6), context("site-1"))
    assert set(aggregator.results.accepted["site-1"]) == {"round", "images"}


def test_an_answer_that_breaks_in_the_merge_stops_the_job_with_its_checkpoint(tmp_path, data_root, monkeypatch):
    """It should not happen; but models that are half merged must not be gone on with."""
    real = SoftPullAggregator._merge

    def merge(self, site, tracks, meta):
        if self._spec.number == 2 and site == "site-2":
            raise RuntimeError("half way")
        return real(self, site, tracks, meta)

    monkeypatch.setattr(SoftPullAggregator, "_merge", merge)
    federation = Federation(tmp_path, data_root, small_settings(rounds=3), SITES).run()
    assert "the answer of site 'site-2' could not be merged: RuntimeError: half way" in federation.panic
    assert not (federation.run_folder / "checkpoints" / "round_000002.json").exists()


def test_statistics_that_are_no_covariance_do_not_take_the_selector_from_all():
    """Sums of which one site's are noise: Cholesky alone would fail at every site after the last round."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(50, 63, generator=generator, dtype=torch.float64)
    good = {"n": torch.tensor(50.0), "sum": rows.sum(0), "outer": (rows.T @ rows)[*torch.triu_indices(63, 63)]}
    noise = {k: torch.randn(v.shape, generator=generator, dtype=torch.float64) for k, v in sums_template(63).items()}
    classes = gaussian_classes([good, noise | {"outer": noise["outer"] * 1e3, "n": torch.tensor(10.0)}])
    tensors = classes | {"shrinkage": torch.tensor(0.02, dtype=torch.float64)}
    selector = StatisticsSelector(small_settings(), 2, tensors, torch.device("cpu"))
    assert torch.isfinite(selector.distances_of(rows)).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round_retries": -1}, "round_retries must be a whole number from 0 to 1000, got -1"),
        ({"norm_check": "maybe"}, "norm_check must be one of off, warn, clip, refuse"),
        ({"norm_factor": 1}, "norm_factor must be a number above 1"),
        ({"norm_factor": float("nan")}, "norm_factor must be"),
        ({"max_images": 0}, "max_images must be"),
        ({"absent_wait": 0}, "absent_wait must be"),
        ({"keep_checkpoints": 0}, "keep_checkpoints must be"),
    ],
)
def test_settings_are_checked(change, words):
    with pytest.raises(UserError, match=words):
        JobSettings.from_dict(small_settings().to_dict() | change)


def test_yaml_s_off_is_a_word():
    assert small_settings(overrides=["norm_check=off"]).norm_check == "off"
