"""A client's startup kit, as `nvflare provision` makes it: the parts that FLARE reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fedsm.core.errors import UserError

RELAY = "relay__resources.json"  # in `local/`, where the site connects to a relay and not to the server


@dataclass(frozen=True)
class Kit:
    """A client's startup kit.

    Attributes:
        root: its folder, which is the client's workspace as well.
        site: the site's name.
        host: the host that the client connects to: the server's, or that of a relay before it.
        port: its port.
        scheme: the protocol inside TLS: `http` (FLARE's default), `grpc` or `tcp`.
        security: `mtls`, `tls` or `clear`.
        server: the name that the certificate at that host must have; empty: not given.
    """

    root: Path
    site: str
    host: str
    port: int
    scheme: str
    security: str
    server: str

    @property
    def startup(self) -> Path:
        return self.root / "startup"

    @property
    def local(self) -> Path:
        return self.root / "local"

    def policy_file(self, name: str) -> Path:
        """`local/<name>`, or the default beside it, which FLARE uses where there is none."""
        own = self.local / name
        return own if own.is_file() else self.local / f"{name}.default"


def load_kit(root: Path) -> Kit:
    """Reads a client's kit.

    Raises:
        UserError: the folder is not a client's kit.
    """
    path = root / "startup" / "fed_client.json"
    if not path.is_file() or not (root / "local").is_dir():
        raise UserError(
            f"{root} is no client's startup kit: it needs startup/fed_client.json and local/",
            remedy="give the folder that `fedsm provision` made for this site",
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        server, client = content["servers"][0], content["client"]
        service = server["service"]
        target = {"address": service["target"], "scheme": service.get("scheme", "grpc")}
        target |= {"connection_security": client.get("connection_security"), "identity": server.get("identity")}
        if (root / "local" / RELAY).is_file():
            path = root / "local" / RELAY
            target = json.loads(path.read_text(encoding="utf-8"))["relay_config"]
        host, _, port = target["address"].rpartition(":")
        return Kit(
            root=root,
            site=client.get("fqsn", root.resolve().name).split(".")[-1],
            host=host,
            port=int(port),
            scheme=target["scheme"],
            security=target.get("connection_security") or "mtls",
            server=target.get("identity") or "",
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as e:
        raise UserError(f"{path} names no server and client ({e!r})", remedy="unpack the kit again") from e
