"""A secret in n shares, of which any t give it back and t - 1 tell nothing.

    f(x) = secret + a_1 x + ... + a_(t-1) x^(t-1)  mod P,      share of member i: f(i + 1)
    secret = f(0) = sum_i f(x_i) prod_(j != i) x_j / (x_j - x_i)  mod P        over any t shares

Shamir, "How to share a secret", Communications of the ACM, 1979.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

PRIME: int = (1 << 256) + 297  # the smallest above 2^256: every secret of 32 bytes is below it
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, count: int, threshold: int) -> list[bytes]:
    """The shares of a secret of 32 bytes, member by member."""
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_at(polynomial, member + 1).to_bytes(SHARE_BYTES, "big") for member in range(count)]


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from the shares of at least `threshold` members: member's position -> share.

    With too few or false shares it is another secret; what comes out is never larger than one.
    """
    points = {member + 1: int.from_bytes(share, "big") for member, share in shares.items()}
    secret = 0
    for x, y in points.items():
        above = below = 1
        for other in points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        secret += y * above * pow(below, -1, PRIME)
    return (secret % PRIME % (1 << 8 * SECRET_BYTES)).to_bytes(SECRET_BYTES, "big")


def _at(polynomial: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value
