"""Rounding by hand, limit cases, error feedback, and what is refused on receipt."""

import math

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.core.tensors import payload_bytes
from fedsm.core.wire import BLOCK, SCALES, Wire, wire_of
from tests.helpers.small_jobs import small_settings

TINY = 2.0**-149  # the smallest float32 above 0


def there(word: str, x: torch.Tensor) -> torch.Tensor:
    """x' of a value."""
    wire = Wire(word)
    return wire.receive(wire.send({"global": {"w": x}}))["global"]["w"]


def test_eight_bits_by_hand():
    """s = 254 / 127 = 2, so q = (127, -1, 0.5 -> 0, 1.5 -> 2, 0)."""
    x = torch.tensor([[254.0, -2.0, 1.0, 3.0, 0.0]])
    sent = Wire("int8").send({"global": {"w": x}})
    assert sent["global"]["w"].tolist() == [[127, -1, 0, 2, 0]] and sent["global"]["w"].dtype == torch.int8
    assert sent["global" + SCALES]["w"].tolist() == [2.0]
    assert there("int8", x).tolist() == [[254.0, -2.0, 0.0, 4.0, 0.0]]


def test_sixteen_bits_by_hand():
    """bfloat16 has 1 + 7 bits, float16 1 + 10: half a step above 1 is a tie, which goes to the even neighbour, 1."""
    x = torch.tensor([[1 + 1 / 128, 1 + 1 / 256, -3.0]])
    assert there("bfloat16", x).tolist() == [[1 + 1 / 128, 1.0, -3.0]]
    assert there("float16", torch.tensor([[1 + 1 / 1024, 1 + 1 / 2048]])).tolist() == [[1 + 1 / 1024, 1.0]]


def test_blocks_have_scales_of_their_own_and_the_last_may_be_short():
    """257 values: 256 of 3, all equal, and one alone. Both blocks are exact but for float32's own rounding."""
    x = torch.full((1, BLOCK + 1), 3.0)
    x[0, -1] = -5e-4
    sent = Wire("int8").send({"t": {"w": x}})
    assert sent["t" + SCALES]["w"].tolist() == pytest.approx([3 / 127, 5e-4 / 127])
    assert sent["t"]["w"][0, :BLOCK].tolist() == [127] * BLOCK and sent["t"]["w"][0, -1] == -127
    assert torch.allclose(there("int8", x), x, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "x", [torch.zeros(2, 300), torch.zeros(0, 3), torch.full((2, 2), TINY), torch.tensor([[TINY, -1e-43]])]
)
def test_zeros_nothing_and_the_smallest_numbers(x):
    arrived = there("int8", x)
    assert arrived.shape == x.shape and torch.isfinite(arrived).all() and (arrived - x).abs().sum() <= 1e-42


def test_the_error_is_at_most_half_a_step_and_the_shape_stays():
    x = torch.randn(5, 7, 3, 3, generator=torch.Generator().manual_seed(0))
    arrived = there("int8", x)
    for part, back in zip(x.flatten().split(BLOCK), arrived.flatten().split(BLOCK), strict=True):
        assert (part - back).abs().max() <= part.abs().max() / 127 / 2 * (1 + 1e-5)


def test_only_kernels_are_rounded():
    kept = {
        "bias": torch.rand(400), "count": torch.tensor(7), "whole": torch.arange(600).reshape(2, 300),
        "sums": torch.rand(4, 4, dtype=torch.float64), "mean": torch.rand(1),
    }  # fmt: skip
    for word in ("bfloat16", "float16", "int8"):
        wire = Wire(word)
        sent = wire.send({"t": dict(kept)})
        assert list(sent) == ["t"] and all(sent["t"][k] is v for k, v in kept.items())
        arrived = wire.receive(sent, {"t": kept})["t"]
        assert all(arrived[k] is v for k, v in kept.items())


def test_float32_is_untouched_and_so_is_all_outside_training_rounds():
    tracks = {"t": {"w": torch.rand(3, 3)}}
    settings = small_settings(wire="int8")
    for wire in (Wire("float32"), wire_of(settings, "fedsm_evaluate"), wire_of(settings, "fedsm_validate")):
        assert wire.send(tracks) is tracks and wire.receive(tracks) is tracks and wire.templates(tracks) is tracks
        assert wire.send_update(tracks, {}) == (tracks, {})
    assert wire_of(settings, "fedsm_train").send(tracks) is not tracks


def test_bytes():
    """36,864 values of a kernel in 144 blocks, and 64 of a bias, which stay: 0.2552 and 0.5009 of float32's."""
    x = {"t": {"w": torch.rand(64, 64, 3, 3), "bias": torch.rand(64)}}
    assert payload_bytes(Wire("int8").send(x)) == 36_864 + 4 * 144 + 4 * 64
    assert payload_bytes(Wire("bfloat16").send(x)) == 2 * 36_864 + 4 * 64
    for word in ("float32", "bfloat16", "float16", "int8"):
        wire = Wire(word)
        sent, looks = wire.send(x), wire.templates(x)
        told = [{n: {k: (v.shape, v.dtype) for k, v in t.items()} for n, t in each.items()} for each in (sent, looks)]
        assert told[0] == told[1] and payload_bytes(looks) == payload_bytes(sent)


@pytest.mark.parametrize("word", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_sent(word, bad):
    x = torch.zeros(2, 300)
    x[1, 299] = bad
    with pytest.raises(UserError, match="track 'global': entry 'w' has values that do not fit into"):
        Wire(word).send({"global": {"w": x}})


def test_what_is_too_large_for_float16_is_not_sent():
    with pytest.raises(UserError, match="do not fit into float16; set wire to bfloat16"):
        Wire("float16").send({"global": {"w": torch.tensor([[70000.0]])}})
    assert there("float16", torch.tensor([[65504.0]])).item() == 65504


@pytest.mark.parametrize("word", ["bfloat16", "float16", "int8"])
def test_what_was_left_out_is_sent_later(word):
    """The sum of what arrived is the sum of the updates but for one rounding: the last rest."""
    wire, rng = Wire(word), torch.Generator().manual_seed(0)
    true, arrived, left, plain = torch.zeros(3, 200).double(), torch.zeros(3, 200).double(), {}, 0.0
    for _ in range(50):
        update = torch.randn(3, 200, generator=rng) * torch.logspace(-4, 0, 200) + 1e-4
        sent, left = wire.send_update({"t": {"w": update}}, left)
        true += update
        arrived += wire.receive(sent)["t"]["w"]
        plain = plain + (there(word, update).double() - update)
    assert torch.allclose(arrived + left["t"]["w"], true, rtol=0, atol=1e-4)
    step = {"bfloat16": 2**-8, "float16": 2**-11, "int8": 1 / 127}[word]
    assert left["t"]["w"].abs().max() <= step * 5
    assert plain.abs().max() > 2 * (arrived - true).abs().max(), "without it the error builds up"


def test_a_small_value_beside_a_large_one_arrives_when_enough_is_left():
    """s = 1, 0.3 each time: 0, then 0.6 -> 1, then -0.4 + 0.3 = -0.1 -> 0."""
    wire, left, arrived = Wire("int8"), {}, []
    for _ in range(3):
        sent, left = wire.send_update({"t": {"w": torch.tensor([[127.0, 0.3]])}}, left)
        arrived.append(wire.receive(sent)["t"]["w"][0, 1].item())
    assert arrived == [0.0, 1.0, 0.0] and left["t"]["w"][0, 1].item() == pytest.approx(-0.1, abs=1e-6)


def test_sites_that_get_the_same_model_share_what_is_rounded():
    wire, model, made = Wire("int8"), {"global": {"w": torch.rand(4, 4)}}, {}
    one, two = wire.send(model, made), wire.send(model, made)
    assert one["global"]["w"] is two["global"]["w"]


LIKE = {"t": {"w": torch.zeros(2, 300), "bias": torch.zeros(3)}}


def spoil(sent: dict, how: str) -> None:
    scales = sent["t" + SCALES]
    if how == "float32":
        sent["t"]["w"] = torch.zeros(2, 300)
    elif how == "float64":
        sent["t"]["w"] = torch.zeros(2, 300).double()
    elif how == "shape":
        sent["t"]["w"] = torch.zeros(2, 301, dtype=torch.int8)
    elif how == "no scales":
        del scales["w"]
    elif how == "fewer scales":
        scales["w"] = scales["w"][1:]
    elif how == "more scales":
        scales["w"] = torch.ones(1000)
    elif how == "wide scales":
        scales["w"] = scales["w"].double()
    elif how == "scales of a bias":
        scales["bias"] = torch.ones(1)
    elif how == "scales of nothing":
        scales["other"] = torch.ones(1)
    elif how == "scales of no track":
        sent["u" + SCALES] = {}
    else:
        scales["w"][1] = float(how)


REFUSED = [
    ("float32", "is float32, expected int8"), ("float64", "is float64, expected int8"), ("no scales", "has no scales"),
    ("fewer scales", r"scales of shape \(2,\), expected 3"), ("more scales", r"\(1000,\), expected 3"),
    ("wide scales", "has float64 scales"), ("scales of a bias", "is none that is rounded"),
    ("scales of nothing", "scales without an entry"), ("scales of no track", "scales without a track"),
    ("nan", "a scale that is no number"), ("inf", "a scale that is no number"), ("-1", "a scale that is no number"),
    ("1e38", "a scale that is no number"),
]  # fmt: skip


@pytest.mark.parametrize(("how", "reason"), [*REFUSED, ("shape", r"has shape \(2, 301\), expected \(2, 300\)")])
def test_what_is_refused_at_the_server(how, reason):
    wire = Wire("int8")
    sent = wire.send(LIKE)
    spoil(sent, how)
    with pytest.raises(UserError, match=reason):
        wire.receive(sent, LIKE)


@pytest.mark.parametrize(("how", "reason"), [r for r in REFUSED if r[0] != "float64"])
def test_what_is_refused_at_a_site(how, reason):
    """Which does not know the shapes; the network says what does not fit it. float64 is never rounded."""
    wire = Wire("int8")
    sent = wire.send(LIKE)
    spoil(sent, how)
    with pytest.raises(UserError, match=reason) as caught:
        wire.receive(sent)
    assert caught.value.public.startswith("refused: ")


@pytest.mark.parametrize("word", ["bfloat16", "float16"])
def test_nan_and_other_types_are_refused_with_sixteen_bits(word):
    wire = Wire(word)
    dtype = getattr(torch, word)
    bad = {
        "holds NaN": torch.full((2, 300), math.nan, dtype=dtype), "is float32": LIKE["t"]["w"],
        "has shape": torch.zeros(2, 3, dtype=dtype),
    }  # fmt: skip
    for reason, value in bad.items():
        with pytest.raises(UserError, match=reason):
            wire.receive({"t": {"w": value}}, LIKE)
    with pytest.raises(UserError, match="has scales"):
        wire.receive({"t": {"w": torch.zeros(2, 300, dtype=dtype)}, "t" + SCALES: {"w": torch.ones(3)}}, LIKE)


def test_what_the_server_does_not_know_is_left_for_its_other_checks():
    wire = Wire("int8")
    sent = wire.send(LIKE)
    sent["t"]["backdoor"] = torch.zeros(3)
    del sent["t"]["bias"]
    assert set(wire.receive(sent, LIKE)["t"]) == {"w", "backdoor"}
