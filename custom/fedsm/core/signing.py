"""Signatures that anybody can check without a network: an Ed25519 key, and the certificate that vouches for it.

    record  <- signed by -  the server's Ed25519 key  <- signed by -  startup/server.key of the server's kit
                                                                      |
    startup/rootCA.pem, which is in every kit  - signed ->  startup/server.crt

So a hospital needs nothing but its own kit to know that a record is that of its federation's server. In the simulator
there is no such certificate: the key is that of whoever ran it, and shows that nothing has changed since.
"""

from __future__ import annotations

import base64
import binascii
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from fedsm.core.errors import UserError
from fedsm.core.file_lock import locked
from fedsm.core.files import write_bytes
from fedsm.core.private_files import close_to_others

KEY_FILE = "fedsm_record_key.pem"
_VOUCHING = b"fedsm record key of the server\n"  # so that this signature can stand for nothing else


@dataclass(frozen=True)
class Voucher:
    """What shows whose an Ed25519 key is.

    Attributes:
        certificate: PEM of the certificate whose key vouches for it.
        signature: of the public key, by the certificate's key.
    """

    certificate: str
    signature: bytes

    @classmethod
    def write(cls, public: bytes, certificate: Path, key: Path) -> Voucher:
        """Vouches for a public key with a certificate's own key (RSA, EC or Ed25519).

        Raises:
            OSError, ValueError, TypeError: one of them is not there, not PEM, or of another kind.
        """
        text = certificate.read_text(encoding="ascii")
        private = load_pem_private_key(key.read_bytes(), password=None)
        if _raw(private.public_key()) != _raw(x509.load_pem_x509_certificate(text.encode()).public_key()):
            raise ValueError(f"{key} does not belong to {certificate}")
        return cls(text, _sign(private, _VOUCHING + public))

    def load(self) -> x509.Certificate:
        """The certificate.

        Raises:
            ValueError: it is none.
        """
        return x509.load_pem_x509_certificate(self.certificate.encode())

    def problem(self, public: bytes) -> str | None:
        """Why this does not vouch for a public key, or None."""
        try:
            _verify(self.load().public_key(), self.signature, _VOUCHING + public)
        except (ValueError, TypeError, InvalidSignature):
            return "its certificate does not vouch for the key that signed it"
        return None


@dataclass(frozen=True)
class Signer:
    """Who signs: a key, and the certificate that vouches for it, if there is one."""

    key: ed25519.Ed25519PrivateKey
    voucher: Voucher | None = None

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self.key.public_key().public_bytes_raw()


def server_signer(local: Path, startup: Path) -> Signer:
    """The signer of a FLARE server: a key in its kit's `local/`, made when it is first needed, and its certificate.

    Where the process cannot read the certificate's key, nobody vouches for the record's key.
    """
    signer = Signer(_own_key(local / KEY_FILE))
    try:
        return Signer(signer.key, Voucher.write(signer.public, startup / "server.crt", startup / "server.key"))
    except (OSError, ValueError, TypeError):
        return signer


def owner_signer() -> Signer:
    """The signer of runs on one machine: a key of this account; one for this run alone where none can be kept."""
    try:
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return Signer(_own_key(base / "fedsm" / KEY_FILE))
    except (OSError, RuntimeError):  # no home folder, or a read-only one
        return Signer(ed25519.Ed25519PrivateKey.generate())


def signature_problem(public: bytes, signature: bytes, content: bytes) -> str | None:
    """Why a signature is not that of a public key, or None."""
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except (ValueError, InvalidSignature):
        return "its signature is wrong: it was changed after it was signed"
    return None


def encode(content: bytes) -> str:
    """Bytes as text, as keys and signatures are shown."""
    return base64.b64encode(content).decode("ascii")


def decode(text: object, most: int = 1024) -> bytes:
    """What `encode` wrote.

    Raises:
        ValueError: it is no such text, or too long.
    """
    if not isinstance(text, str) or len(text) > 2 * most:
        raise ValueError("no base64")
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error) as e:
        raise ValueError("no base64") from e


def _own_key(path: Path) -> ed25519.Ed25519PrivateKey:
    """The key in a file, which is made once; two processes that start at once get the same one.

    Raises:
        OSError: it cannot be made or read.
        UserError: the file holds something else.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f"{path.name}.lock"), path.parent.name):
        if not path.exists():
            made = ed25519.Ed25519PrivateKey.generate()
            write_bytes(path, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    close_to_others(path)
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UserError("holds no Ed25519 key", file=path, remedy="remove it: a new one is made")
    return key


def _sign(key: object, content: bytes) -> bytes:
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(content, _pss(), hashes.SHA256())
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(content, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(content)
    raise TypeError(f"a key of type {type(key).__name__}")


def _verify(key: object, signature: bytes, content: bytes) -> None:
    if isinstance(key, rsa.RSAPublicKey):
        key.verify(signature, content, _pss(), hashes.SHA256())
    elif isinstance(key, ec.EllipticCurvePublicKey):
        key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    elif isinstance(key, ed25519.Ed25519PublicKey):
        key.verify(signature, content)
    else:
        raise TypeError(f"a key of type {type(key).__name__}")


def _pss() -> padding.PSS:
    return padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


def _raw(key: object) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined, no-any-return]
