"""The kit's certificate: whose it is, how long it lasts, and that key and root belong to it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from fedsm.preflight.kit import Kit
from fedsm.preflight.line import Line

_SOON = 30  # days
_NEW_KIT = "ask the project's lead for a new kit of this site"


def check_certificate(kit: Kit) -> list[Line]:
    """Checks client.crt, client.key and rootCA.pem against each other and the clock."""
    now = datetime.now(UTC)
    try:
        own = x509.load_pem_x509_certificate((kit.startup / "client.crt").read_bytes())
        root = x509.load_pem_x509_certificate((kit.startup / "rootCA.pem").read_bytes())
        key = load_pem_private_key((kit.startup / "client.key").read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as e:
        return [Line("FAIL", "certificate", f"startup/ cannot be used: {e}", f"unpack the kit again, or {_NEW_KIT}")]
    lines = []

    def fail(what: str, remedy: str = _NEW_KIT) -> None:
        lines.append(Line("FAIL", "certificate", what, remedy))

    names = own.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    name = str(names[0].value) if names else ""
    if name != kit.site:
        fail(f"client.crt is that of {name!r}, the kit is that of {kit.site!r}")
    if _public(key.public_key()) != _public(own.public_key()):
        fail("client.key does not belong to client.crt")
    try:
        own.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        fail("client.crt is not signed by the kit's rootCA.pem")
    start = max(own.not_valid_before_utc, root.not_valid_before_utc)
    end = min(own.not_valid_after_utc, root.not_valid_after_utc)  # no certificate outlasts the root
    days = (end - now).days
    if now < start:
        fail(f"valid from {start:%Y-%m-%d %H:%M} UTC, but the clock here says {now:%Y-%m-%d %H:%M}", "set the clock")
    elif now > end:
        fail(f"expired on {end:%Y-%m-%d}")
    elif days < _SOON:
        lines.append(Line("WARN", "certificate", f"expires in {days} days, on {end:%Y-%m-%d}", _NEW_KIT + " in time"))
    return lines or [Line("PASS", "certificate", f"of {name}, valid until {end:%Y-%m-%d} ({days} days)")]


def _public(key: Any) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
