"""The word that clients have to know where the service can be reached from other machines."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from fedsm.core.errors import UserError

_LEAST = 16  # characters: what a person types by heart would be guessed


class Token:
    """A token, of which only a digest is kept."""

    def __init__(self, token: str):
        self._digest = _digest(token)

    def matches(self, given: str) -> bool:
        """Whether this is the token; takes as long for a good guess as for a bad one."""
        return hmac.compare_digest(_digest(given), self._digest)


def new_token() -> str:
    """A token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def read_token(path: Path) -> str:
    """The token of a file: its only line.

    Raises:
        UserError: it has none, or one that is too short.
    """
    try:
        text = path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError as e:
        raise UserError("holds other characters than ASCII", file=path, remedy="write one line of 16 or more") from e
    if len(text) < _LEAST or len(text.split()) != 1:
        raise UserError(f"is no token of at least {_LEAST} characters in one line", file=path,
                        remedy="write one, for example with `openssl rand -hex 24`")  # fmt: skip
    return text


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
