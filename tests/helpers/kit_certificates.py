"""Certificates of kits, made as FLARE's provisioning makes them."""

from __future__ import annotations

from pathlib import Path

from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, serialize_pri_key


def new_root(name: str):
    """A root as FLARE's provisioning makes it: its key and certificate."""
    private, public = generate_keys()
    return name, private, generate_cert(Identity(name, "org"), Identity(name), private, public, ca=True)


def write_kit(folder: Path, subject: str, root, role: str | None = None) -> None:
    """The certificates of a kit, as FLARE's provisioning makes them."""
    private, public = generate_keys()
    made = generate_cert(Identity(subject, "org", role), Identity(root[0]), root[1], public)
    folder.mkdir(parents=True)
    (folder / "client.crt").write_bytes(serialize_cert(made))
    (folder / "rootCA.pem").write_bytes(serialize_cert(root[2]))
    (folder / "client.key").write_bytes(serialize_pri_key(private))
