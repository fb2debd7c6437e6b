"""Runs the service until it is stopped."""

from __future__ import annotations

import ipaddress
import logging
import socket
import ssl
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from fedsm.core.errors import UserError
from fedsm.serve.service import Service
from fedsm.serve.token import Token

_CONNECTIONS = 256  # more get 503
_OPEN_FILES = 8192  # each file of a series that is read is one of the kernel's memory, and open meanwhile
_IDLE_SECONDS = 15
_TALKATIVE = ("python_multipart", "nibabel.global", "PIL")  # their warnings quote what was uploaded


@dataclass(frozen=True)
class Listening:
    """Where the service listens.

    Attributes:
        host: an address or a name of this machine.
        port: 0: a free one.
        names: by which clients may call it, beside `localhost`, `host` and addresses.
        certificate: PEM file of TLS; None: plain HTTP.
        key: its key.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    names: Collection[str] = field(default=())
    certificate: Path | None = None
    key: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def address(self, port: int) -> str:
        """What a person types into a browser."""
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self.host, self.host)
        return f"http{'s' if self.certificate else ''}://{f'[{host}]' if ':' in host else host}:{port}/"

    def bind(self) -> socket.socket:
        """A socket that listens.

        Raises:
            UserError: the address is taken, or not this machine's, or the certificate cannot be used.
        """
        if self.certificate and self.key:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
            except OSError as e:  # ssl.SSLError is one
                why = e.strerror or e.args[-1]
                raise UserError(f"cannot be used with --key ({why})", file=self.certificate) from e
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # Without the protocol's number asyncio leaves Nagle's algorithm on, and an answer waits 40 ms for the client.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.host, self.port))
            listener.listen(_CONNECTIONS)
        except OSError as e:
            listener.close()
            what = e.strerror or e
            raise UserError(
                f"cannot listen on {self.host} port {self.port} ({what})", remedy="choose another --port or --host"
            ) from e
        return listener


def needs() -> None:
    """Checks that the packages of the service are there.

    Raises:
        UserError: naming the one that is not.
    """
    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as e:
        raise UserError(f"the service needs the package {e.name!r}", remedy="pip install 'fedsm[serve]'") from e


def run(service: Service, listening: Listening, listener: socket.socket, token: str | None) -> None:
    """Serves until Ctrl-C or SIGTERM.

    Args:
        service: what answers.
        listening: where.
        listener: what `listening.bind` gave.
        token: what clients have to know; None: nothing.
    """
    import uvicorn

    from fedsm.serve.app import create_app

    names = [listening.host, *listening.names, *([] if listening.is_local else [socket.gethostname()])]
    config = uvicorn.Config(
        create_app(service, names, Token(token) if token else None), log_config=None, log_level=logging.WARNING,
        access_log=False, server_header=False, ws="none", http="h11", loop="asyncio",
        limit_concurrency=_CONNECTIONS, timeout_keep_alive=_IDLE_SECONDS, timeout_graceful_shutdown=5,
        ssl_certfile=listening.certificate, ssl_keyfile=listening.key,
    )  # fmt: skip
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    _allow_open_files()
    uvicorn.Server(config).run(sockets=[listener])


def _allow_open_files() -> None:
    if sys.platform == "linux":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
