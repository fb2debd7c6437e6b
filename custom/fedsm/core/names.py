"""Names from a message or a file must not be paths: each is checked against its pattern where it is read.

A name that passes has no separator, no control character and no leading dot or dash, so it cannot leave its folder. A
symbolic link still could: `below` resolves a path and refuses one that is not below its root.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from fedsm.core.errors import UserError
from fedsm.core.limits import MOST_SITES

# fullmatch everywhere: `$` would let a line break through.
_RUN_ID = re.compile(r"[0-9a-f]{12}")  # uuid4().hex[:12]
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # FLARE's are UUIDs
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # FLARE: a dot means a hierarchy; certificates: 64 at most
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_SERVER = "server"  # FLARE's name for the server among the participants
_SHOWN = 80


def check_run_id(value: object, where: str) -> str:
    """Returns a run's id: 12 hexadecimal digits.

    Args:
        value: what was read.
        where: where it was read, for the message: a file, or the task.

    Raises:
        UserError: it is none.
    """
    return _matching(_RUN_ID, value, where, "run id (12 digits 0-9, a-f)")


def check_job_id(value: object, where: str) -> str:
    """Returns the id of a FLARE job.

    Raises:
        UserError: it is none.
    """
    return _matching(_JOB_ID, value, where, "job's id")


def is_site_name(value: object) -> bool:
    """Whether a site may have this name: letters, digits, '-' and '_', 64 at most, not FLARE's word for the server."""
    return isinstance(value, str) and bool(_SITE.fullmatch(value)) and value != _SERVER


def check_site_name(value: object, where: str) -> str:
    """Returns a site's name.

    Raises:
        UserError: it is none.
    """
    if not isinstance(value, str) or not is_site_name(value):
        raise _error(value, where, "site's name (letters, digits, '-' and '_' only)")
    return value


def check_site_names(values: object, where: str) -> list[str]:
    """Returns the names of sites, each once.

    Raises:
        UserError: not a list of names, or one of them is there twice.
    """
    if not isinstance(values, (list, tuple)):
        raise _error(values, where, "list of sites")
    if len(values) > MOST_SITES:
        message = f"{len(values)} sites, the limit is {MOST_SITES}"
        raise UserError(f"{where}: {message}", public=message)
    for value in values:
        check_site_name(value, where)
    if twice := [name for name, count in Counter(values).items() if count > 1]:
        raise UserError(f"{where}: site {twice[0]!r} is listed twice", public="the job lists a site twice")
    return list(values)


def is_plain_name(value: object) -> bool:
    """Whether something may be the name of a file or a model: letters, digits, '_', '.' and '-', 200 at most."""
    return isinstance(value, str) and bool(_PLAIN.fullmatch(value))


def check_plain_names(values: Iterable[object], where: str, what: str) -> None:
    """Refuses anything but plain names of files or models, such as `personal.site-1`.

    Args:
        values: what was read.
        where: the file that names them.
        what: what they are names of, for the message.

    Raises:
        UserError: one is no plain name.
    """
    for value in values:
        _matching(_PLAIN, value, where, f"plain {what}")


def below(root: Path, path: Path) -> Path:
    """Returns a path with its links resolved.

    Raises:
        UserError: it is not below `root` after its links are resolved.
    """
    resolved, top = path.resolve(), root.resolve()
    if top not in resolved.parents:
        raise UserError(
            f"{path} leads out of {root}", remedy="remove the link", public="a path leads out of its folder"
        )
    return resolved


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Refuses symbolic links in a folder that may come from others: files written there would go where the links lead.

    Args:
        folder: the folder, which may be reached by a link itself.
        names: which of its entries are looked at, with all that is in them; those that are not there are left out.

    Raises:
        UserError: naming the first link.
    """
    for name in names:
        top = folder / name
        found = [top, *(Path(root, n) for root, folders, files in os.walk(top) for n in (*folders, *files))]
        if link := next((path for path in found if path.is_symlink()), None):
            raise UserError(
                f"{link} is a link, which leads out of {folder}",
                remedy="replace it by what it leads to",
                public="a folder holds a link",
            )


def _matching(pattern: re.Pattern[str], value: object, where: str, what: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise _error(value, where, what)
    return value


def _error(value: object, where: str, what: str) -> UserError:
    shown = ascii(value)  # shows control characters and line breaks instead of sending them to the terminal
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
    return UserError(f"{where}: {shown} is no {what}", public=f"refused: no {what}")
