"""An admin session with a FLARE server, with a user's startup kit; each of FLARE's errors becomes one line."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedsm.core.errors import UserError
from fedsm.core.task_names import DEFAULT_STUDY

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

_CONFIG = Path("startup") / "fed_admin.json"


class NoServer(UserError):
    """The server does not answer, or not any more. It may come back."""


@dataclass(frozen=True)
class Login:
    """How a user comes to a server.

    Attributes:
        kit: the user's startup kit, the folder with `startup/`.
        study: FLARE shows jobs and sites of this study alone.
    """

    kit: Path
    study: str = DEFAULT_STUDY


@contextlib.contextmanager
def connect(login: Login, timeout: float = 15.0) -> Iterator:
    """Opens a session with the kit's own certificate.

    Args:
        login: the user's kit and study.
        timeout: seconds to try.

    Raises:
        NoServer: none answers, or it stops answering.
        UserError: no such kit or study, or the server refuses the certificate.
    """
    from nvflare.apis.utils.format_check import name_check
    from nvflare.fuel.flare_api import api_spec
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    kit = login.kit.resolve()
    user = user_of(kit)
    if name_check(login.study, "study")[0]:
        raise UserError(f"{login.study!r} names no study", remedy="small letters, digits, '-' and '_' only, 63 at most")
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)  # it would log every refused connection
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # FLARE prints every attempt
            session = new_secure_session(user, str(kit), timeout=timeout, study=login.study, auto_login_max_tries=2)
    except api_spec.NoConnection as e:
        raise NoServer(f"no FLARE server answers at {address(kit)}: is it started, and its port open?") from e
    except (api_spec.AuthenticationError, api_spec.AuthorizationError) as e:
        studies = f"`nvflare study list --startup-kit {shlex.quote(str(kit))}` names yours"
        raise UserError(
            f"the server at {address(kit)} refused {kit.name}: {_first_line(e)}",
            remedy=None if login.study == DEFAULT_STUDY else studies,
        ) from e
    except Exception as e:  # FLARE raises many kinds here: TLS, configuration, its own errors
        raise UserError(f"no session with {address(kit)} by the kit {kit.name}: {_first_line(e)}") from e
    try:
        yield session
    except (api_spec.NoConnection, api_spec.SessionClosed) as e:  # closed: it was started again meanwhile
        raise NoServer(f"the server at {address(kit)} does not answer any more") from e
    finally:
        with contextlib.suppress(Exception):  # the server may have stopped meanwhile
            session.close()


def user_of(kit: Path) -> str:
    """The user whose startup kit it is: FLARE names the folder after him.

    Raises:
        UserError: it is no user's.
    """
    if not (kit / _CONFIG).is_file():
        raise UserError(
            f"{kit} is no user's startup kit: {_CONFIG} is missing", remedy="--kit is the folder above startup/"
        )
    return kit.resolve().name


def address(kit: Path) -> str:
    """Host and port of the kit's server."""
    try:
        admin = json.loads((kit / _CONFIG).read_text())["admin"]
        return f"{admin['host']}:{admin['port']}"
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UserError(f"{kit / _CONFIG} cannot be read: {e}", remedy="ask for the kit again") from e


def running_at(session: Session) -> dict[str, set[str]]:
    """Site -> ids of the jobs that it runs, of the sites of the session's study that answer now.

    The server's own list keeps a killed site for ten minutes, so each site is asked. One request per site, because the
    server may wait longer for a site that was just killed (10 s) than a session waits for the server (5 s).
    """
    from nvflare.fuel.flare_api.api_spec import InvalidTarget, NoClientsAvailable, NoConnection, NoReply

    running: dict[str, set[str]] = {}
    for client in session.get_connected_client_list():
        try:
            answers = session.get_client_job_status([client.name]) or []
        except InvalidTarget:  # not in the study: the server lists all sites, and answers for the study's only
            continue
        except (NoReply, NoClientsAvailable):  # it has gone since the list was made
            continue
        except NoConnection:
            session.get_system_info()  # raises the same if it is the server that is silent
            continue
        for answer in answers:
            if answer["status"] != "no_reply":
                running.setdefault(answer["client_name"], set()).add(answer.get("job_id", ""))
    return running


def registered(session: Session) -> list[str]:
    """Names of the sites that answer now."""
    return sorted(running_at(session))


def runs(session: Session, job_id: str) -> bool:
    """Whether the server runs a job now. FLARE still lists a job as RUNNING that was lost with a killed server."""
    return any(job.job_id == job_id for job in session.get_system_info().job_info)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
