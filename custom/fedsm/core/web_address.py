"""Addresses of web servers: what one may look like in a job, and whether the server answers."""

from __future__ import annotations

import urllib.error
import urllib.request
from urllib.parse import SplitResult, urlsplit

from fedsm.core.errors import UserError

_PATIENCE = 5  # seconds


def check_web_address(address: str, what: str) -> str:
    """Returns an address without a slash at its end.

    Args:
        address: what was given.
        what: where it was given, for the message; the address itself is not shown, since it may hold a secret.

    Raises:
        UserError: it is no address of a web server, or it holds a user, a password or a token, which would travel with
            the job to all sites.
    """
    parts = _split(address)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"{what} is not the address of a server", remedy="for example http://localhost:5000")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UserError(
            f"{what} holds a user, a password or a token, which would travel with the job",
            remedy="leave it out and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or"
            " MLFLOW_TRACKING_TOKEN, where the job's server runs",
        )
    return address.rstrip("/")


def check_answers(address: str, what: str) -> None:
    """Checks that a web server answers, by one request; any answer will do.

    Args:
        address: the server's.
        what: what kind of server it is, for the message.

    Raises:
        UserError: none answers.
    """
    try:
        urllib.request.urlopen(f"{address.rstrip('/')}/health", timeout=_PATIENCE).close()
    except urllib.error.HTTPError as e:
        e.close()  # it wants a password, or has no such page: it is there
    except (OSError, ValueError) as e:  # URLError is an OSError
        why = getattr(e, "reason", e)
        parts = _split(address)
        where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts else "its address"
        raise UserError(f"no {what} answers at {where} ({why})", remedy="start it, or correct the address") from e


def _split(address: str) -> SplitResult | None:
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises where it is no number
    except ValueError:
        return None
    return parts
