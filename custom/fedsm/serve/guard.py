"""Who may ask: checked before any other code sees a request, and the headers that every answer has.

- Host: a name that is not ours means DNS rebinding, a foreign page that got its own name to mean this machine.
  Addresses cannot be rebound, so any is taken.
- Origin and Sec-Fetch-Site: browsers say truthfully which page asks. Another site's page is refused, with or without a
  token, so it can neither use the service nor guess at tokens. Programs send neither.
- Token: compared in constant time; there are no cookies that a browser would send by itself.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import traceback
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedsm.serve.limits import Refused
from fedsm.serve.token import Token

log = logging.getLogger(__name__)

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:;"
    " connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
_RAW_HEADERS = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]


class Guard:
    """The outermost layer of the service.

    Args:
        app: what it guards.
        hosts: names, beside `localhost` and addresses, by which clients may call this machine.
        token: what clients have to know; None: nothing.
        pages: what may be got without a token, and from a link on another site's page: it says nothing about images.
        login: the address to which a token is sent.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str], token: Token | None, pages: Collection[str], login: str
    ):  # fmt: skip
        self._app = app
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._token, self._pages, self._login = token, frozenset(pages), login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], *_RAW_HEADERS]
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, receive, guarded)
        except Refused as e:
            await _say(guarded, e)
        except Exception as e:  # a bug: the place goes to our log, not the values, which may be a patient's
            last = traceback.extract_tb(e.__traceback__)[-1]
            log.error("unexpected %s at %s:%s", type(e).__name__, last.filename, last.lineno)
            if not started:
                await _say(guarded, Refused(500, "something is wrong in the service", "see its log"))

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if scope["type"] != "http" or not self._is_ours(headers.get("host", "")):
            raise Refused(421, "this service has another name", "use its address, or start it with --allow-host NAME")
        is_page = scope["method"] in ("GET", "HEAD") and scope["path"] in self._pages
        if not is_page and _from_another_page(headers):
            raise Refused(403, "requests from pages of other sites are refused")
        if self._token and not is_page and scope["path"] != self._login:
            kind, _, given = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not self._token.matches(given.strip()):
                raise Refused(401, "a token is needed", "send `Authorization: Bearer TOKEN`")

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        return name in self._hosts or is_address(name)


def is_address(name: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _from_another_page(headers: Headers) -> bool:
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()


async def _say(send: Send, refused: Refused) -> None:
    body = json.dumps(problem_of(refused)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in headers_of(refused).items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def problem_of(refused: Refused) -> dict[str, str | None]:
    """The body of a refusal; `detail` is FastAPI's name for it."""
    return {"detail": refused.message, "remedy": refused.remedy}


def headers_of(refused: Refused) -> dict[str, str]:
    """The headers of a refusal."""
    if refused.status == 401:
        return {"www-authenticate": "Bearer"}
    return {"retry-after": "3"} if refused.status == 503 else {}
