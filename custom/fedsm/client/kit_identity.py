"""A site's FLARE certificate, with which it signs its keys of secure sums and checks those of other sites.

The server passes public keys on. Without signatures a server that means harm could put its own keys in their place and
read what it passes on. The root key that makes certificates is not at the server but with whoever provisioned.
"""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from fedsm.core.errors import UserError
from fedsm.core.secure_sum.group import Member, PublicKey, signed_content
from fedsm.core.trust import trust_in

_ROOT, _CERTIFICATE, _KEY = "rootCA.pem", "client.crt", "client.key"  # FLARE's, in `startup/` of a kit
_SERVER_OF = "fed_client.json"  # of `startup/`, too: names the server
_SITE_ROLE = "client"  # certificates of persons have another role; those of sites have none, or this one


class KitIdentity:
    """The certificate and key of a kit.

    Args:
        startup: the kit's `startup/` folder.
    """

    def __init__(self, startup: Path):
        self._root = x509.load_pem_x509_certificate((startup / _ROOT).read_bytes())
        self._certificate = (startup / _CERTIFICATE).read_text()
        # The server's certificate says no role, as a site's. With it a server could be a member of its own sum.
        self._server = trust_in(startup.parent).server if (startup / _SERVER_OF).is_file() else None
        key = load_pem_private_key((startup / _KEY).read_bytes(), password=None)
        if not isinstance(key, RSAPrivateKey):
            raise ValueError(f"its key is a {type(key).__name__}, not of RSA")
        self._key = key

    def sign(self, run_id: str, site: str, key: str) -> PublicKey:
        """A public key with the site's signature and certificate."""
        signature = self._key.sign(signed_content(run_id, site, key), _padding(), SHA256())
        return PublicKey(key=key, signature=signature.hex(), certificate=self._certificate)

    def problem(self, run_id: str, member: Member) -> str | None:
        """Why a member's key is not believed to be that site's, or None."""
        try:
            certificate = x509.load_pem_x509_certificate(member.certificate.encode())
            self._check_issued(certificate)
            public = certificate.public_key()
            if not isinstance(public, RSAPublicKey):
                return "its certificate is not of RSA"
            content = signed_content(run_id, member.site, member.key)
            public.verify(bytes.fromhex(member.signature), content, _padding(), SHA256())
        except (ValueError, TypeError, InvalidSignature):
            return "it is not signed by a certificate of this project"
        names = _values(certificate, NameOID.COMMON_NAME)
        roles = _values(certificate, NameOID.UNSTRUCTURED_NAME)
        if names != [member.site] or set(roles) - {_SITE_ROLE} or member.site == self._server:
            return "it is signed by another participant"
        return None

    def _check_issued(self, certificate: x509.Certificate) -> None:
        """As FLARE does, by the signature alone: its certificates name their issuer without the organisation."""
        root, algorithm = self._root.public_key(), certificate.signature_hash_algorithm
        if not isinstance(root, RSAPublicKey) or algorithm is None:
            raise ValueError("the root is not of RSA")
        root.verify(certificate.signature, certificate.tbs_certificate_bytes, padding.PKCS1v15(), algorithm)


def identity_of(startup: Path, site: str) -> KitIdentity | None:
    """The identity of a kit; None where there is no kit: in FLARE's simulator.

    Raises:
        UserError: there is one, and it cannot be used. The site does not go on without signatures then.
    """
    if not (startup / _KEY).is_file():
        return None
    try:
        return KitIdentity(startup)
    except (OSError, ValueError, TypeError) as e:
        message = "the site's certificate cannot be used to sign keys of secure sums"
        raise UserError(f"{message} ({e})", site=site, file=startup / _KEY, public=message) from e


def _padding() -> padding.PSS:
    return padding.PSS(mgf=padding.MGF1(SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)


def _values(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(oid)]
