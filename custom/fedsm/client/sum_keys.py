"""A site's key pair for the secure sums of one run, and what it has already answered with it, on its own disk.

`<state_dir>/<run id>/secure_sum.json`. A restarted process goes on with the same key. What was masked and opened is
noted before the answer leaves: with one key pair a site masks one update of each round, and opens one sum of it. Two
masked updates of one round would give away their difference, and two sums of one round that of the sites in which they
differ.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from fedsm.core.errors import UserError
from fedsm.core.files import write_json
from fedsm.core.model import Checked
from fedsm.core.names import below, check_run_id
from fedsm.core.secure_sum import masks

FILE = "secure_sum.json"


class _Kept(Checked):
    private: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    masked: Annotated[int, Field(ge=0)] = 0  # the last round of which an update was masked
    context: str = ""  # of that round
    opened: list[str] = []  # the sites whose sum was opened in that round


class SumKeys:
    """The key pair of one run at one site.

    Args:
        state_dir: the site's `state_dir`.
        run_id: the run's name.
        site: the site's name, for messages.
    """

    def __init__(self, state_dir: Path, run_id: str, site: str):
        folder = below(state_dir, state_dir / check_run_id(run_id, "the server's task"))
        self._path, self._site = folder / FILE, site

    def renew(self) -> str:
        """Makes a new key pair, at each registration, and forgets what was answered with the old one.

        Returns:
            the public key, in hexadecimal digits.
        """
        self._write(_Kept(private=masks.new_private_key().hex()))
        return self.public

    @property
    def private(self) -> bytes:
        """The private key."""
        return bytes.fromhex(self._read().private)

    @property
    def public(self) -> str:
        """The public key, in hexadecimal digits."""
        return masks.public_key(self.private).hex()

    def note_masked(self, number: int, context: bytes) -> None:
        """Notes that an update of a round is about to leave.

        Raises:
            UserError: one of this round, or of a later one, has left already.
        """
        kept = self._read()
        if number <= kept.masked:
            message = f"refused: an update of round {kept.masked} was masked with this key already"
            raise UserError(message, site=self._site, public=message)
        self._write(kept.replace(masked=number, context=context.hex(), opened=[]))

    def note_opened(self, number: int, context: bytes, sites: list[str]) -> None:
        """Notes that the sum of these sites is about to be opened; again for the same sites is no harm.

        Raises:
            UserError: the site masked nothing in this round, for another group, or has opened another sum.
        """
        kept = self._read()
        message = ""
        if (kept.masked, kept.context) != (number, context.hex()):
            message = f"refused: the site masked no update for this sum of round {number}"
        elif kept.opened and kept.opened != sites:
            message = f"refused: the site has opened another sum of round {number}"
        if message:
            raise UserError(message, site=self._site, public=message)
        self._write(kept.replace(opened=sites))

    def _read(self) -> _Kept:
        try:
            kept: Any = json.loads(self._path.read_text())
            return _Kept.from_dict(kept)
        except (OSError, ValueError, UserError) as e:
            message = "the site has lost its key of secure sums: it gets a new one when it registers with a resumed job"
            raise UserError(f"{message} ({self._path})", site=self._site, public=message) from e

    def _write(self, kept: _Kept) -> None:
        try:
            write_json(self._path, kept.to_dict())
        except OSError as e:
            message = "the site cannot write its key of secure sums: its disk is full or read-only"
            raise UserError(f"{message} ({self._path})", site=self._site, public=message) from e
