"""Rounds whose networks travel rounded: equal to a plain loop that rounds, after restarts, and against bad answers."""

import time

import pytest
import torch
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy

from fedsm.core.errors import UserError
from fedsm.core.tensors import payload_bytes
from fedsm.core.wire import SCALES, Wire
from fedsm.flare import exchange
from fedsm.tracks import check_options, server_tracks
from fedsm.tracks.base import TRAIN
from tests.helpers.federation import Federation, in_round, results_of
from tests.helpers.plain_loop import algorithm_1, fed_avg, largest_difference, soft_pull
from tests.helpers.shareables import IMAGES, context, snapshot
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import TOLERANCE, last_weights

SETTINGS = {"selector": "statistics", "lam": 0.7, "wire": "int8", "lr": 1e-3}


def eight_bits(value: torch.Tensor) -> torch.Tensor:
    """x' of each block of 256, one after the other."""
    if value.ndim < 2 or value.dtype != torch.float32:
        return value
    blocks = []
    for block in value.flatten().split(256):
        scale = block.abs().max() / 127
        blocks.append(torch.round(block / scale) * scale if scale else torch.zeros_like(block))
    return torch.cat(blocks).reshape(value.shape)


def bfloat16(value: torch.Tensor) -> torch.Tensor:
    return value.bfloat16().float() if value.ndim > 1 and value.dtype == torch.float32 else value


class Rounded:
    """A merge of Algorithm 1 whose updates are rounded, with each site's rest added to its next one."""

    def __init__(self, number):
        self.number = number
        self.rest: dict[int, dict] = {}

    def down(self, w: dict) -> dict:
        return {key: self.number(value) for key, value in w.items()}

    def up(self, k: int, w: dict, trained: dict) -> dict:
        """w + x', of x = y - w' + the rest."""
        came, rest = self.down(w), self.rest.get(k, {})
        x = {key: trained[key] - came[key] + rest.get(key, 0) for key in w}
        arrives = {key: self.number(value) for key, value in x.items()}
        self.rest[k] = {key: x[key] - arrives[key] for key in x}
        return {key: w[key] + arrives[key] for key in w}

    def fed_avg(self, w: dict, trained: list[dict], n: list[int]) -> dict:
        return fed_avg(w, [self.up(k, w, y) for k, y in enumerate(trained)], n)

    def soft_pull(self, w: list[dict], trained: list[dict], lam: float) -> list[dict]:
        return soft_pull(w, [self.up(k, w[k], y) for k, y in enumerate(trained)], lam)


def plain(data_root, settings, number) -> dict:
    merges = Rounded(number), Rounded(number)  # of the global and the personal network: each has its own rests
    return algorithm_1(
        data_root, settings, SITES, 0.7, "none", merge=(merges[0].fed_avg, merges[1].soft_pull), down=merges[0].down
    )


def of_models(weights: dict) -> dict:
    return {name: weights[name] for name in ["global", *(f"personal.{site}" for site in SITES)]}


@pytest.fixture(scope="module")
def straight(tmp_path_factory, data_root):
    """A run of four rounds with 8 bits."""
    return Federation(tmp_path_factory.mktemp("wire"), data_root, small_settings(rounds=4, **SETTINGS), SITES).run()


@pytest.mark.parametrize("word", ["int8", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_equals_a_plain_loop_that_rounds(tmp_path, data_root, word):
    """Two rounds: in the second one the rests of the first are sent."""
    settings = small_settings(rounds=2, **SETTINGS | {"wire": word})
    weights = last_weights(Federation(tmp_path, data_root, settings, SITES).run().run_folder)
    number = {"int8": eight_bits, "bfloat16": bfloat16}[word]
    expected = plain(data_root, settings, number)
    exact = algorithm_1(data_root, settings, SITES, 0.7, "none")
    for model, own in of_models(weights).items():
        assert largest_difference(own, expected[model]) < TOLERANCE, model
        assert largest_difference(own, exact[model]) > 10 * TOLERANCE, "rounding is seen"


def test_what_travels_is_counted(straight):
    """Two U-Nets each way: less than a third of float32's, though this tiny one has many biases for its kernels."""
    assert straight.panic is None
    wire = results_of(straight)["wire"]
    settings = small_settings(**SETTINGS)
    models = {name: track.payload(TRAIN, SITES[0]) for name, track in server_tracks(settings, SITES).items()}
    expected = payload_bytes(Wire("int8").send(models))
    assert expected < 0.3 * payload_bytes(models)
    for way in ("down_bytes", "up_bytes"):
        assert all(rounds == [expected] * 4 for rounds in wire[way].values()), way
    assert min(wire["delivery_down_bytes"].values()) >= payload_bytes(models), "the last models are not rounded"


def test_rests_survive_restarts(tmp_path, data_root, straight):
    """A new process for every task: Adam's moments and the rests come from the site's disk."""

    def restart(site, task, shareable, work):
        site.restart()
        return work()

    settings = small_settings(rounds=4, **SETTINGS)
    restarted = Federation(tmp_path, data_root, settings, SITES, fault=restart).run()
    one, two = last_weights(straight.run_folder), last_weights(restarted.run_folder)
    assert all(largest_difference(one[model], two[model]) == 0 for model in one)


def test_a_resumed_run_goes_on_with_the_rests(tmp_path, data_root, straight):
    def stop_in_round_3(site, task, shareable, work):
        result = work()
        if task == exchange.TRAIN and in_round(shareable) == 3:
            time.sleep(0.3)  # some sites have kept their rests of round 3 when the server dies
            site.federation.abort.trigger(True)
        return result

    settings, folder, saved = small_settings(rounds=4, **SETTINGS), tmp_path / "stopped", tmp_path / "saved"
    Federation(folder, data_root, settings, SITES, fault=stop_in_round_3).run().run_folder.rename(saved)
    second = Federation(folder, data_root, settings, SITES, resume_from=str(saved / "checkpoints")).run()
    one, two = last_weights(straight.run_folder), last_weights(second.run_folder)
    assert second.panic is None
    assert all(largest_difference(one[model], two[model]) == 0 for model in one)
    other = settings.replace(wire="float32", rounds=5)
    third = Federation(folder, data_root, other, SITES, resume_from=str(second.run_folder / "checkpoints")).run()
    assert "made with another 'wire' setting" in third.panic


@pytest.mark.parametrize("aggregator", [{"wire": "int8"}], indirect=True)
class TestAnswers:
    def answer(self, aggregator):
        tracks = {n: {k: torch.ones_like(v) for k, v in t.expects(TRAIN).items()} for n, t in aggregator.tracks.items()}
        return exchange.pack(Wire("int8").send(tracks), {"round": 5, "images": IMAGES}, "WEIGHT_DIFF")

    def test_a_good_one_is_restored_and_merged(self, aggregator):
        before = snapshot(aggregator)
        assert aggregator.accept(self.answer(aggregator), context("site-1")), aggregator.results.refused
        aggregator.aggregate(context("site-1"))
        after = snapshot(aggregator)
        assert all(torch.allclose(after[k], before[k] + 1) for k in before if k.startswith("global/"))
        assert aggregator.results.up["site-1"] == payload_bytes(exchange.unpack(self.answer(aggregator))[1])

    @pytest.mark.parametrize(
        ("damage", "reason"),
        [
            (lambda kernels, scales, key: scales[key].fill_(float("nan")), "a scale that is no number"),
            (lambda kernels, scales, key: scales[key].fill_(1e38), "a scale that is no number"),
            (lambda kernels, scales, key: scales[key].fill_(-1), "a scale that is no number"),
            (lambda kernels, scales, key: scales.update({key: torch.ones(999)}), "scales of shape (999,), expected"),
            (lambda kernels, scales, key: scales.pop(key), "has no scales"),
            (lambda kernels, scales, key: kernels.update({key: kernels[key].float()}), "is float32, expected int8"),
            (lambda kernels, scales, key: kernels.update({key: kernels[key][None]}), "has shape"),
            (lambda kernels, scales, key: [each.pop(key) for each in (kernels, scales)], "is missing"),
            (lambda kernels, scales, key: kernels.update(backdoor=torch.zeros(1)), "unexpected entry 'backdoor'"),
            (lambda kernels, scales, key: kernels.update(more=torch.zeros(10**6)), "oversized"),
            (lambda kernels, scales, key: kernels.update(b=torch.zeros(3, 3, dtype=torch.int8)), "unexpected entry"),
        ],
    )  # fmt: skip
    def test_bad_ones_are_refused_by_name_and_change_nothing(self, aggregator, damage, reason):
        before = snapshot(aggregator)
        shareable = self.answer(aggregator)
        parts = shareable["DXO"]["data"]
        kernels, scales = parts["personal"].data, parts["personal" + SCALES].data
        damage(kernels, scales, next(iter(scales)))
        assert not aggregator.accept(shareable, context("site-2"))
        assert reason in aggregator.results.refused["site-2"]
        after = snapshot(aggregator)
        assert all(torch.equal(before[k], after[k]) for k in before)

    @pytest.mark.parametrize("missing", ["personal" + SCALES, "personal"])
    def test_tracks_that_are_not_there(self, aggregator, missing):
        shareable = self.answer(aggregator)
        del shareable["DXO"]["data"][missing]
        assert not aggregator.accept(shareable, context("site-2"))
        assert "tracks are" in aggregator.results.refused["site-2"]

    def test_filters_of_a_site(self, aggregator):
        """Keeping entries back works; what changes values by their size would change whole numbers: it is refused."""
        fl_ctx = context("site-1")
        kept_back = ExcludeVars("^model.0.").process(self.answer(aggregator), fl_ctx)
        before = snapshot(aggregator)
        assert aggregator.accept(kept_back, fl_ctx), aggregator.results.refused
        assert aggregator.results.up["site-1"] < payload_bytes(exchange.unpack(self.answer(aggregator))[1])
        aggregator.aggregate(fl_ctx)
        after = snapshot(aggregator)
        for key in (key for key in before if key.startswith("global/")):
            moved = 0 if key.startswith("global/model.0.") else 1
            assert torch.allclose(after[key], before[key] + moved), key
        cut = PercentilePrivacy(percentile=20, gamma=0.01).process(self.answer(aggregator), context("site-2"))
        assert not aggregator.accept(cut, context("site-2"))
        assert "expected int8" in aggregator.results.refused["site-2"]


def test_a_site_refuses_a_servers_bad_scales(tmp_path, data_root):
    def fault(site, task, shareable, work):
        if task == exchange.TRAIN and site.name == "site-2":
            scales = shareable["DXO"]["data"]["global" + SCALES].data  # the same tensors go to all sites
            key = next(iter(scales))
            scales[key] = torch.full_like(scales[key], 1e38)
        return work()

    settings = small_settings(rounds=1, round_retries=0, **SETTINGS)
    federation = Federation(tmp_path, data_root, settings, SITES, fault=fault).run()
    missing = results_of(federation)["validation"]["history"][0]["missing"]
    assert "refused: track 'global': entry" in missing["site-2"] and "a scale that is no number" in missing["site-2"]


def test_masks_need_float32():
    given = {"norm_check": "off", "min_sites": 3, "secure_sum": True, "method": "fedavg"}
    check_options(small_settings(**given), 3)
    with pytest.raises(UserError, match="wire: int8 has others; set wire to float32"):
        check_options(small_settings(wire="int8", **given), 3)


@pytest.mark.parametrize("how", ["float16", "adaquant"])
def test_flares_quantizer_filters_work_on_our_collection(aggregator, how):
    """Both ways, with the dequantizer at the other end. Its 8 and 4 bits need CUDA (`.cuda()` in its source)."""
    pytest.importorskip("bitsandbytes", reason="FLARE's filters import it; see docs/how-to/thin-wire.md")
    from nvflare.app_opt.pt.quantization.dequantizer import ModelDequantizer
    from nvflare.app_opt.pt.quantization.quantizer import ModelQuantizer

    fl_ctx = context("site-1")
    for kind in ("WEIGHT_DIFF", "WEIGHTS"):
        rng = torch.Generator().manual_seed(0)
        tracks = {
            name: {k: torch.randn(v.shape, generator=rng) for k, v in track.expects(TRAIN).items()}
            for name, track in aggregator.tracks.items()
        }
        sent = exchange.pack({n: dict(t) for n, t in tracks.items()}, {"round": 5, "images": IMAGES}, kind)
        back = ModelDequantizer().process(ModelQuantizer(how).process(sent, fl_ctx), fl_ctx)
        _, arrived = exchange.unpack(back)
        for name, tensors in tracks.items():
            assert all(arrived[name][k].dtype == torch.float32 for k in tensors)
            assert largest_difference(arrived[name], tensors) < 0.1
    assert aggregator.accept(back, fl_ctx), aggregator.results.refused


def test_halves_of_a_filter_are_taken_without_a_dequantizer(aggregator):
    """What FLARE's `ModelQuantizer` makes with float16, at a site alone: the server's answers lie on its disk."""
    before = snapshot(aggregator)
    tracks = {
        n: {k: torch.ones_like(v).half() for k, v in t.expects(TRAIN).items()} for n, t in aggregator.tracks.items()
    }
    sent = exchange.pack(tracks, {"round": 5, "images": IMAGES}, "WEIGHT_DIFF")
    for part in sent["DXO"]["data"].values():
        part.set_meta_prop("quant_state", {key: {} for key in part.data})
        part.set_meta_prop("source_datatype", dict.fromkeys(part.data, "float32"))
        part.set_meta_prop("quantized_flag", True)
    assert aggregator.accept(sent, context("site-1")), aggregator.results.refused
    aggregator.aggregate(context("site-1"))
    after = snapshot(aggregator)
    assert all(torch.allclose(after[k], before[k] + 1) for k in before if k.startswith("global/"))
    assert all(after[k].dtype == value.dtype for k, value in before.items())
