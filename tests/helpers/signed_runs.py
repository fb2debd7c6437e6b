"""Runs with a signed record, and the certificates of a federation: a root, the server's, a site's and a kit."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedsm.core.signing import server_signer
from fedsm.server.owner import Submitter
from fedsm.server.run_record import sign_run
from tests.helpers.small_jobs import small_settings
from tests.helpers.small_model import SITES, write_super_model

SERVER = "fl.example.org"
LEAD = Submitter("lead@a.org", "a", "lead", "lungs")


def write_federation(folder: Path, days: float = 300) -> Path:
    """`server/startup` with certificate and key, `hospital/startup` as a site's kit has it; returns the folder."""
    now = datetime.datetime.now(datetime.UTC)
    root_key = ec.generate_private_key(ec.SECP256R1())
    root = _certificate("project", root_key.public_key(), "project", root_key, now, 3000)
    for place, name, base in (("server", SERVER, "server"), ("hospital", "site-1", "client")):
        startup = folder / place / "startup"
        startup.mkdir(parents=True)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, key.public_key(), "project", root_key, now, days)
        (startup / "rootCA.pem").write_bytes(root.public_bytes(Encoding.PEM))
        (startup / f"{base}.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (startup / f"{base}.key").write_bytes(private)
    servers = {"servers": [{"name": "project", "identity": SERVER}]}
    (folder / "hospital" / "startup" / "fed_client.json").write_text(json.dumps(servers))
    return folder


def write_signed_run(folder: Path, federation: Path, rounds: int = 2, **more) -> Path:
    """A run with random weights that the federation's server has signed."""
    write_super_model(folder, gamma=rounds / 10)
    (folder / "results.json").write_text(f'{{"rounds": {rounds}}}')
    (folder / "accepted.jsonl").write_text('{"round": 1}\n')
    (folder / "checkpoints" / "weights").mkdir(parents=True)
    for name in ("round_000001.json", "weights/r000001.global.safetensors"):
        (folder / "checkpoints" / name).write_text(name)
    signer = server_signer(federation / "server" / "local", federation / "server" / "startup")
    given = {"run_id": "0123456789ab", "job_id": "job-1", "submitter": LEAD} | more
    sign_run(folder, small_settings(rounds=rounds), SITES, signer, **given)
    return folder


def _certificate(name, public, issuer, issuer_key, now, days):
    builder = x509.CertificateBuilder().subject_name(_name(name)).issuer_name(_name(issuer)).public_key(public)
    builder = builder.serial_number(x509.random_serial_number())
    first, last = now - datetime.timedelta(days=400), now + datetime.timedelta(days=days)
    return builder.not_valid_before(first).not_valid_after(last).sign(issuer_key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
