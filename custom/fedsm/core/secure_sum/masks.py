"""Keys that two sites share, and the masks that are made of them.

    secret of i and j   X25519 of the one's private and the other's public key: both have it, nobody else
    key of a round      HKDF-SHA256 of the secret; the round's context (run, round, sites, keys, shares) goes into it
    mask                the key stream of ChaCha20 under that key, as numbers modulo 2^k

Everything is of the package `cryptography`. No key is used for two messages: another round, or the same one with other
sites, has another context and so other keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedsm.core.secure_sum.fixed_point import Whole, unsigned

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

KEY_BYTES = 32
SEAL_BYTES = 16  # what sealing adds
_NO_NONCE = bytes(16)  # of ChaCha20: every key is used once
_NO_SHORT_NONCE = bytes(12)


def new_private_key() -> bytes:
    """A new private key of X25519."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public key of a private one."""
    return _loaded(private).public_key().public_bytes_raw()


def secret_of(private: bytes, public: bytes) -> bytes:
    """What the owners of two keys share.

    Raises:
        ValueError: the public key is one of the few that give no secret.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    return _loaded(private).exchange(X25519PublicKey.from_public_bytes(public))


def mask_key(secret: bytes, context: bytes, one: str, other: str) -> bytes:
    """The key of two sites' mask in one round, the same for both."""
    return _derived(secret, context, "mask", *sorted((one, other)))


def key_stream(key: bytes, count: int, bits: int) -> Whole:
    """A mask: so many numbers modulo 2^bits, which nobody without the key can tell from random ones."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    stream = Cipher(ChaCha20(key, _NO_NONCE), mode=None).encryptor().update(bytes(count * bits // 8))
    return np.frombuffer(stream, dtype=unsigned(bits))


def seal(secret: bytes, context: bytes, sender: str, receiver: str, content: bytes) -> bytes:
    """A message from one site to another, which the server passes on and cannot read or change."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    key = _derived(secret, context, "share", sender, receiver)
    return ChaCha20Poly1305(key).encrypt(_NO_SHORT_NONCE, content, context)


def unseal(secret: bytes, context: bytes, sender: str, receiver: str, sealed: bytes) -> bytes:
    """What was sealed.

    Raises:
        ValueError: it was changed, or is of another round, sender or receiver.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    key = _derived(secret, context, "share", sender, receiver)
    try:
        return ChaCha20Poly1305(key).decrypt(_NO_SHORT_NONCE, sealed, context)
    except InvalidTag as e:
        raise ValueError(f"what came from {sender!r} was changed on its way") from e


def _derived(secret: bytes, context: bytes, *words: str) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = "|".join(("fedsm secure sum 1", *words)).encode()  # names of sites have no `|`
    return HKDF(SHA256(), KEY_BYTES, salt=context, info=info).derive(secret)


def _loaded(private: bytes) -> X25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private)
