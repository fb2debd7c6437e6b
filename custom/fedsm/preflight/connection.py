"""The connection to the server: name, port, TLS with the kit's own certificate, and its clock. The site does not join.

FLARE's default scheme is WebSocket on HTTP: a plain GET is answered with an error page, whose Date header is the
server's clock. Any page at all proves that the server accepted the kit's certificate: in TLS 1.3 a server checks it
after the client's side of the handshake is done. gRPC and TCP answer nothing to an unknown client and give no time; for
them TLS 1.2 is used, whose handshake ends after the server has checked.
"""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from fedsm.preflight.kit import Kit
from fedsm.preflight.line import Line

_PATIENCE = 10  # seconds
_SKEW = 60  # seconds


def check_server(kit: Kit) -> list[Line]:
    """Connects to the server as its client would; one line on that and one on the clock."""
    where = f"{kit.host}:{kit.port}"
    try:
        connection = _connection(kit)
    except (OSError, ssl.SSLError):
        return [Line("FAIL", "server", f"{where} not tried: the kit's key or certificate cannot be used", "see above")]
    date = None
    try:
        connection.connect()
        sock = connection.sock
        secure = isinstance(sock, ssl.SSLSocket)
        name = _common_name(sock.getpeercert() or {}) if isinstance(sock, ssl.SSLSocket) else ""
        if kit.scheme in ("http", "https"):
            connection.request("GET", "/")
            date = connection.getresponse().getheader("Date")
    except socket.gaierror:
        remedy = f"ask for a DNS entry, or add the server's address to /etc/hosts; try: getent hosts {kit.host}"
        return [Line("FAIL", "server", f"host name {kit.host} is not known here", remedy)]
    except ssl.SSLCertVerificationError as e:
        remedy = "if a proxy opens TLS, have this port exempted; else ask the project's lead for a new kit"
        return [
            Line("FAIL", "server", f"{where} shows a certificate that rootCA.pem refuses: {e.verify_message}", remedy)
        ]
    except (ssl.SSLError, ConnectionResetError, BrokenPipeError, HTTPException) as e:
        remedy = "is this the server's port, and the kit the newest of this project? else ask for a new one"
        return [Line("FAIL", "server", f"{where} refuses this kit's certificate, or is no FLARE server ({e})", remedy)]
    except OSError as e:
        remedy = f"is the server started? does the firewall let TCP {kit.port} out? try: nc -vz {kit.host} {kit.port}"
        return [Line("FAIL", "server", f"{where}: {e.strerror or e}", remedy)]
    finally:
        connection.close()
    if secure and kit.server and name != kit.server:
        what = f"{where} is {name!r}, the kit wants {kit.server!r}"
        return [Line("FAIL", "server", what, "ask the project's lead which host and port are right")]
    if not secure:
        line = Line("WARN", "server", f"{where} answers, without TLS", "ask the project's lead for a kit with mtls")
    else:
        line = Line("PASS", "server", f"{name} answers at {where}, {kit.security} ({kit.scheme})")
    return [line, check_clock(date, kit.scheme)]


def check_clock(date: str | None, scheme: str) -> Line:
    """Compares the clock with the server's Date header, where there was one."""
    try:
        ahead = (datetime.now(UTC) - parsedate_to_datetime(date or "")).total_seconds()
    except (ValueError, TypeError):  # no date, or none that can be read
        remedy = "compare `date -u` here with the server's"
        return Line("WARN", "clock", f"not compared: a server that speaks {scheme} does not send its time", remedy)
    if abs(ahead) > _SKEW:
        what = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
        return Line("WARN", "clock", what, "set the clock by NTP: timedatectl set-ntp true")
    return Line("PASS", "clock", f"within {_SKEW} s of the server's")


def _connection(kit: Kit) -> HTTPConnection:
    if kit.security == "clear":
        return HTTPConnection(kit.host, kit.port, timeout=_PATIENCE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # as FLARE: the certificate's name is compared with the kit's instead
    custom = kit.startup / "customRootCA.pem"  # of a proxy that ends TLS
    root = custom if kit.security == "tls" and custom.is_file() else kit.startup / "rootCA.pem"
    context.load_verify_locations(root)
    if kit.security != "tls":
        context.load_cert_chain(kit.startup / "client.crt", kit.startup / "client.key")
    if kit.scheme not in ("http", "https"):
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
    return HTTPSConnection(kit.host, kit.port, timeout=_PATIENCE, context=context)


def _common_name(certificate: dict) -> str:
    parts = dict(pair for group in certificate.get("subject", ()) for pair in group)
    return parts.get("commonName", "")
