"""Fixed-point numbers, Shamir's shares and masks, on numbers small enough to do by hand."""

import numpy as np
import pytest
import torch

from fedsm.core.secure_sum import fixed_point, masks, shamir


def test_fixed_point_by_hand():
    """32 bits, clip 4: s = 2^30 / 4 = 2^28. Shares 1/4 and 3/4 of 2 and -1: q = 1/4 * 2 * 2^28 = 2^27 and
    -3/4 * 2^28 = -3 * 2^26 = 2^32 - 3 * 2^26. Their sum is 2^27 - 3 * 2^26 = -2^26, and -2^26 / 2^28 = -0.25."""
    one = fixed_point.encode(np.array([2.0]), 0.25, 4, 32)
    other = fixed_point.encode(np.array([-1.0]), 0.75, 4, 32)
    assert (one[0], other[0]) == (2**27, 2**32 - 3 * 2**26)
    assert fixed_point.decode(one + other, 1.0, 4, 32)[0] == -0.25


@pytest.mark.parametrize("bits", [32, 64])
def test_no_overflow_and_a_bounded_error(bits):
    """The worst case: all n sites send the whole clip in one entry, with shares that sum to 1. The error of the sum is
    at most n clip / 2^(k - 1)."""
    n, clip = 6, 1000.0
    for value in (clip, -clip):
        total = sum(fixed_point.encode(np.array([value]), 1 / n, clip, bits) for _ in range(n))
        assert abs(fixed_point.decode(total, 1.0, clip, bits)[0] - value) <= n * clip / 2 ** (bits - 1) + 1e-9


def test_clip_by_hand():
    """The norm of (3, 4) is 5. Clip 10 leaves it, clip 1 gives (0.6, 0.8)."""
    row = np.array([3.0, 4.0])
    assert fixed_point.clipped(row, 10) is row
    assert fixed_point.clipped(row, 1) == pytest.approx([0.6, 0.8])


def test_an_update_is_the_same_after_a_row_of_numbers():
    """Floats in the order of their names, whatever the dict's; a counter is left out and comes back as 0."""
    update = {"w": torch.tensor([[1.0, 2.0]]), "steps": torch.tensor(7), "b": torch.tensor([3.0])}
    row = fixed_point.flat(update)
    assert row.tolist() == [3.0, 1.0, 2.0]
    back = fixed_point.shaped(row, update)
    assert torch.equal(back["w"], update["w"]) and torch.equal(back["b"], update["b"]) and back["steps"] == 0


def test_shamir_by_hand(monkeypatch):
    """secret 5, f(x) = 5 + 2 x: shares 7, 9, 11. From members 0 and 2, at x = 1 and 3:
    f(0) = 7 * 3 / (3 - 1) + 11 * 1 / (1 - 3) = 10.5 - 5.5 = 5."""
    monkeypatch.setattr(shamir.secrets, "randbelow", lambda below: 2)
    shares = shamir.split((5).to_bytes(32, "big"), 3, 2)
    assert [int.from_bytes(share, "big") for share in shares] == [7, 9, 11]
    assert int.from_bytes(shamir.join({0: shares[0], 2: shares[2]}), "big") == 5


def test_any_threshold_of_shares_gives_the_secret_and_fewer_do_not():
    secret = bytes(range(224, 256))
    shares = shamir.split(secret, 5, 3)
    assert shamir.join({m: shares[m] for m in (0, 3, 4)}) == shamir.join({m: shares[m] for m in (1, 2, 3)}) == secret
    assert shamir.join({m: shares[m] for m in (0, 1)}) != secret
    assert shamir.join(dict(enumerate(shamir.split(b"\xff" * 32, 3, 3)))) == b"\xff" * 32


def test_the_prime_is_prime():
    """Miller and Rabin's test with a few bases; the largest secret is below it."""
    p, d, r = shamir.PRIME, shamir.PRIME - 1, 0
    while d % 2 == 0:
        d, r = d // 2, r + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        x = pow(base, d, p)
        assert x in (1, p - 1) or any((x := x * x % p) == p - 1 for _ in range(r - 1)), base
    assert p >= 2**256


def test_two_sites_have_one_mask_and_every_round_another():
    a, b = masks.new_private_key(), masks.new_private_key()
    ab, ba = masks.secret_of(a, masks.public_key(b)), masks.secret_of(b, masks.public_key(a))
    assert ab == ba
    assert masks.mask_key(ab, b"round 1", "x", "y") == masks.mask_key(ba, b"round 1", "y", "x")
    assert masks.mask_key(ab, b"round 1", "x", "y") != masks.mask_key(ab, b"round 2", "x", "y")
    with pytest.raises(ValueError):
        masks.secret_of(a, bytes(32))  # a key with which every secret would be 0


def test_chacha20_is_the_published_one():
    """The first test vector of RFC 8439 (appendix A.1): key, counter and nonce of zeros."""
    words = masks.key_stream(bytes(32), 4, 32)
    assert words.tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_a_sealed_message_is_for_one_receiver_of_one_round():
    secret = masks.secret_of(masks.new_private_key(), masks.public_key(masks.new_private_key()))
    sealed = masks.seal(secret, b"round 1", "x", "y", b"shares")
    assert masks.unseal(secret, b"round 1", "x", "y", sealed) == b"shares"
    for context, sender, receiver in ((b"round 2", "x", "y"), (b"round 1", "y", "x"), (b"round 1", "x", "z")):
        with pytest.raises(ValueError, match="changed on its way"):
            masks.unseal(secret, context, sender, receiver, sealed)
