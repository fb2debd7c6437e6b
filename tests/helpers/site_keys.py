"""Kits whose private keys are made where they are used: `nvflare cert` and `nvflare package`.

Each party has a folder and a home of its own. They share nothing: only zip files go from one to another, as by e-mail.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import yaml

PROJECT = "fedsm_keys"
_ROOT_KEY = "rootCA.key"  # the project admin's own


class Party:
    """A person or machine of the federation.

    Args:
        folder: where the parties' folders are.
        name: the party's name.
        entry: the rest of its line in the participant's file; None: the project admin, who has no kit here.
    """

    def __init__(self, folder: Path, name: str, entry: dict | None = None):
        self.name = name
        self.folder = folder / f"of_{name}"
        self.folder.mkdir()
        if entry:
            content = {"name": PROJECT, "participants": [{"name": name} | entry]}
            (self.folder / "me.yaml").write_text(yaml.safe_dump(content))

    @property
    def kit(self) -> Path:
        return self.folder / "workspace" / PROJECT / "prod_00" / self.name

    def nvflare(self, *arguments: str) -> None:
        """A command in the party's folder, under the most careless umask."""
        env = os.environ | {"HOME": str(self.folder / "home")}
        done = subprocess.run(
            [sys.executable, "-m", "nvflare.cli", *arguments], cwd=self.folder, env=env, umask=0,
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def request(self) -> Path:
        """Makes key and certificate request; returns what goes to the project admin."""
        self.nvflare("cert", "request", "-p", "me.yaml", "--out", "request")
        return self.folder / "request" / f"{self.name}.request.zip"

    def package(self, signed: Path, fingerprint: str) -> None:
        """Makes the kit of what came back; the fingerprint was told on another way."""
        shutil.copy(signed, self.folder)
        self.nvflare("package", signed.name, "--request-dir", "request", "--fingerprint", fingerprint)


class ProjectAdmin(Party):
    """Who signs. No private key of another is ever in this folder: that is checked after every step."""

    def __init__(self, folder: Path, port: int):
        super().__init__(folder, "project_admin")
        server = {"host": "localhost", "fed_learn_port": port}
        profile = {"name": PROJECT, "scheme": "http", "connection_security": "mtls", "server": server}
        (self.folder / "project_profile.yaml").write_text(yaml.safe_dump(profile))
        self.nvflare("cert", "init", "--profile", "project_profile.yaml", "-o", "ca")
        self.fingerprint = json.loads((self.folder / "ca" / "ca.json").read_text())["rootCA_fingerprint"]

    def approve(self, request: Path) -> Path:
        """Signs a request; returns what goes back."""
        shutil.copy(request, self.folder)
        self.check()
        profile = ("-c", "ca", "--profile", "project_profile.yaml", "--valid-days", "1825")
        self.nvflare("cert", "approve", request.name, *profile)
        self.check()
        return self.folder / request.name.replace(".request.", ".signed.")

    def check(self) -> None:
        """Looks for private keys in every file, and inside zip files."""
        for path in self.folder.rglob("*"):
            if path.is_file() and path.name != _ROOT_KEY:
                content = path.read_bytes()
                parts = {"": content}
                if path.suffix == ".zip":
                    archive = zipfile.ZipFile(io.BytesIO(content))
                    parts |= {name: archive.read(name) for name in archive.namelist()}
                assert not [name for name, part in parts.items() if b"PRIVATE KEY" in part], path


def assert_keys_are_closed(folder: Path) -> None:
    """Every private key can be read by its owner alone, and so can the folder that holds it."""
    keys = list(folder.rglob("*.key"))
    assert keys
    for key in keys:
        assert key.stat().st_mode & 0o777 == 0o600, key
        assert key.parent.stat().st_mode & 0o777 == 0o700, key.parent
