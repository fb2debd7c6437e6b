"""Whom the reader of a signed record trusts: the federation of a startup kit, a public key, or nobody."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from fedsm.core.errors import UserError
from fedsm.core.signing import Voucher, decode, encode
from fedsm.core.text import one_line

# Where a participant's kit says which one of all that the root has signed is the server.
_IDENTITY = {"fed_client.json": ("servers", "identity"), "fed_admin.json": ("admin", "server_identity")}
_ROOT = "rootCA.pem"


@dataclass(frozen=True)
class Trust:
    """What is known beforehand of who may have signed; neither root nor key: nothing.

    Attributes:
        what: names it in messages.
        root: the project's root certificate.
        server: the server's name in its certificate. Sites and users have certificates of the same root, so the root
            alone would take any participant for the server.
        public: the one key that may have signed.
    """

    what: str = ""
    root: x509.Certificate | None = None
    server: str = ""
    public: bytes = b""

    def problem(self, public: bytes, voucher: Voucher | None, made: datetime) -> str | None:
        """Why a record of this signer is not to be trusted, or None.

        Args:
            public: the key that signed it.
            voucher: what shows whose key that is.
            made: when it was signed, as it says: the certificate must have been valid then, and need not be now.
        """
        if voucher and (reason := voucher.problem(public)):
            return reason
        if self.public and self.public != public:
            return f"it is signed with another key than {self.what}: {encode(public)}"
        if self.root is None:
            return None
        if voucher is None:
            return f"no certificate vouches for the key that signed it, so nothing ties it to the server of {self.what}"
        try:
            certificate = voucher.load()
            certificate.verify_directly_issued_by(self.root)
        except (ValueError, TypeError, InvalidSignature):
            return f"the certificate behind it is not signed by the root of {self.what}: it is of another federation"
        if (name := name_of(certificate)) != self.server:
            return f"it is signed by {one_line(name, 80)!r}, and the server of {self.what} is {self.server!r}"
        if not certificate.not_valid_before_utc <= made <= certificate.not_valid_after_utc:
            return f"the server's certificate was not valid on {made:%Y-%m-%d}, when it says that it was signed"
        return None


def trust_in(given: bool | str | Path) -> Trust:
    """What a person gave to be trusted.

    Args:
        given: the folder of a startup kit, its `startup/rootCA.pem`, a public key (a PEM file, or the text that
            `fedsm verify` prints), or True: nobody, so that only changes are found.

    Raises:
        UserError: it is none of these.
    """
    if given is True:
        return Trust()
    path = Path(str(given))
    if path.is_dir():
        return _of_kit(path, path / "startup")
    if path.is_file():
        return _of_file(path)
    try:
        public = decode(str(given))
        ed25519.Ed25519PublicKey.from_public_bytes(public)
    except ValueError as e:
        raise UserError(
            f"{one_line(given, 80)} is neither a kit's folder, nor a file, nor a public key",
            remedy="give your startup kit, or the key as `fedsm verify` prints it",
        ) from e
    return Trust(f"the key {given}", public=public)


def name_of(certificate: x509.Certificate) -> str:
    """Whose certificate it is: its common name."""
    names = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def _of_file(path: Path) -> Trust:
    content = path.read_bytes()
    if b"BEGIN CERTIFICATE" in content:
        return _of_kit(path, path.parent, path.name)
    try:
        key = load_pem_public_key(content)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise UserError("holds neither a certificate nor an Ed25519 public key", file=path)
    return Trust(str(path), public=key.public_bytes_raw())


def _of_kit(given: Path, startup: Path, root: str = _ROOT) -> Trust:
    """From the files of a kit's `startup/`."""
    for name, (section, key) in _IDENTITY.items():
        if not (startup / name).is_file():
            continue
        try:
            entry = json.loads((startup / name).read_text(encoding="utf-8"))[section]
            server = (entry[0] if isinstance(entry, list) else entry)[key]
            certificate = x509.load_pem_x509_certificate((startup / root).read_bytes())
        except (OSError, ValueError, KeyError, IndexError, TypeError) as e:
            raise UserError(f"names no server and root ({one_line(e, 120)})", file=startup / name) from e
        if not isinstance(server, str) or not server:
            raise UserError("names no server", file=startup / name)
        return Trust(str(given), certificate, server)
    raise UserError(
        f"{given} does not say which participant is the server: {' and '.join(_IDENTITY)} are missing in {startup}",
        remedy="give the startup kit of a site or user, the folder above startup/",
    )
