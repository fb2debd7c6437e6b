"""Checks relays in a project.yml, and who connects through them.

FLARE's defaults for a relay's listener are a port that nobody knows, the host `localhost`, and a connection in clear.
"""

from __future__ import annotations

from typing import Any

from app_fedsm.provisioning.ports import port_problem

_SECURITY = ("mtls", "tls", "clear")
_EXAMPLE = "listening_host: {default_host: relay.hospital.org, port: 8010, connection_security: mtls}"


def relay_problems(entry: dict) -> tuple[list[str], list[str]]:
    """What is wrong with a relay, and what may be wrong; without the participant's name."""
    listener = entry.get("listening_host")
    if not isinstance(listener, dict):
        return [f"a relay says where it listens; write `{_EXAMPLE}`"], []
    errors, warnings = [], []
    if problem := port_problem(listener.get("port")):
        errors.append(f"port of listening_host {problem}")
    security = listener.get("connection_security")
    if security not in _SECURITY:
        errors.append(
            f"connection_security of listening_host is {security!r}, and FLARE's default would be clear text; write"
            " `connection_security: mtls`"
        )
    elif security == "clear":
        warnings.append("its listener is in clear: who listens on the line reads the models; use mtls")
    if not listener.get("default_host"):
        warnings.append("listening_host has no default_host: sites look for this relay on their own machine")
    return errors, warnings


def connection_problem(entry: dict, targets: list[str]) -> str | None:
    """What is wrong with `connect_to` of a site or a relay.

    Args:
        entry: the participant.
        targets: the names of the server and of the relays.
    """
    to: Any = entry.get("connect_to")
    if to is None or isinstance(to, str):  # a string is another host of the server
        return None
    if not isinstance(to, dict):
        return "connect_to must be `{name: RELAY}`, or a host of the server"
    name = to.get("name")
    if name is not None and name not in targets:
        return f"connect_to names {name!r}, which is no relay and not the server; there are {', '.join(targets)}"
    return None
