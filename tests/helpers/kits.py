"""Real startup kits, certificates and a server, for tests of a site before it joins."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.helpers.processes import free_port

PROJECT = """api_version: 3
name: check
participants:
  - {{name: localhost, type: server, org: lead, fed_learn_port: {port}, admin_port: {admin}, host_names: [localhost]}}
  - {{name: site-1, type: client, org: hospital}}
  - {{name: admin@lead.org, type: admin, org: lead, role: project_admin}}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config, scheme: {scheme}}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


def provision(folder: Path, scheme: str = "http") -> Path:
    """Runs `nvflare provision`; returns the folder with the kits `localhost` (the server, on loopback) and `site-1`."""
    folder.mkdir(parents=True)
    (folder / "project.yml").write_text(PROJECT.format(port=free_port(), admin=free_port(), scheme=scheme))
    command = [Path(sys.executable).with_name("nvflare"), "provision", "-p", "project.yml", "-w", "ws"]
    subprocess.run(command, cwd=folder, env=os.environ | {"HOME": str(folder)}, check=True, capture_output=True)
    return folder / "ws" / "check" / "prod_00"


@contextlib.contextmanager
def started_server(kits: Path, folder: Path):
    """FLARE's server of these kits, as its start.sh runs it; ended by its process id."""
    root = shutil.copytree(kits / "localhost", folder / "server")
    port = int(
        json.loads((root / "startup/fed_server.json").read_text())["servers"][0]["service"]["target"].split(":")[1]
    )
    command = [sys.executable, "-m", "nvflare.private.fed.app.server.server_train", "-m", str(root)]
    command += ["-s", "fed_server.json", "--set", "secure_train=true", "org=lead", "config_folder=config"]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, cwd=root, env=os.environ | {"HOME": str(folder)}, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 600
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()[-2000:]
            time.sleep(0.5)
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def tls_listener(certificates: Path, ask_client: Path, reply: bytes):
    """A TLS server on loopback that asks for a certificate signed by `ask_client`; yields its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    context.load_verify_locations(ask_client)
    context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listener.accept()
                with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as connection:
                    if reply and connection.recv(4096):
                        connection.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


def point_to(kit: Path, port: int, scheme: str = "http", host: str = "localhost") -> None:
    """Lets a kit look for its server elsewhere."""
    path = kit / "startup" / "fed_client.json"
    content = json.loads(path.read_text())
    content["servers"][0]["service"] = {"target": f"{host}:{port}", "scheme": scheme}
    path.write_text(json.dumps(content))


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def write_key(path: Path, key: rsa.RSAPrivateKey) -> None:
    plain = serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))


def write_certificates(startup: Path, name: str = "site-1", first_day: float = -10, last_day: float = 300) -> None:
    """A root and a client's certificate by it, valid between these days from now."""
    root_key, key, now = new_key(), new_key(), datetime.now(UTC)

    def sign(subject: str, public, first: float, last: float) -> bytes:
        builder = x509.CertificateBuilder().subject_name(_name(subject)).issuer_name(_name("root"))
        builder = builder.public_key(public).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now + timedelta(days=first)).not_valid_after(now + timedelta(days=last))
        return builder.sign(root_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    (startup / "rootCA.pem").write_bytes(sign("root", root_key.public_key(), -400, 4000))
    (startup / "client.crt").write_bytes(sign(name, key.public_key(), first_day, last_day))
    write_key(startup / "client.key", key)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
