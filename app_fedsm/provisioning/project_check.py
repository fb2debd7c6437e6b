"""Checks a project.yml before kits are made: a wrong name or host is costly once it is in certificates."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from nvflare.apis.utils.format_check import name_check
from nvflare.lighter.constants import DEFINED_ROLES

from app_fedsm.provisioning.monitoring import parse_statsd
from app_fedsm.provisioning.ports import port_collisions, port_problem
from app_fedsm.provisioning.relay_check import connection_problem, relay_problems
from app_fedsm.provisioning.study_check import study_problems
from fedsm.core.errors import UserError
from fedsm.core.names import is_site_name

_TYPES = ("server", "client", "relay", "admin")
_KEYS = {  # FLARE ignores unknown keys without a message: with a misspelt port key it would use its default port
    "server": "fed_learn_port admin_port default_host host_names connection_security listening_host storage byoc"
    " statsd",
    "client": "listening_host connect_to connection_security byoc statsd",
    "relay": "listening_host connect_to connection_security",
    "admin": "role connect_to",
}
_CERTIFICATES = "app_fedsm.provisioning.certificates.YearsCertBuilder"
_BUILDERS = ("WorkspaceBuilder", "StaticFileBuilder", "CertBuilder")  # ends of class names; ours ends so too
_SUBMITTERS = ("lead", "project_admin")
_LONGEST = 64  # of a certificate's name


@dataclass
class Project:
    """A project file that was read, and what is wrong with it."""

    name: str = ""
    participants: list[dict] = field(default_factory=list)
    studies: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def of_type(self, kind: str) -> list[dict]:
        """The participants of a type."""
        return [p for p in self.participants if p.get("type") == kind]


class WrongProject(UserError):
    """A project file that cannot be used. The error is one line, as every one; `problems` has a line for each."""

    problems: Sequence[str] = ()


def read_project(path: Path) -> Project:
    """Reads and checks a project file.

    Raises:
        WrongProject: the file is wrong.
        UserError: it cannot be read.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise UserError(f"{path} cannot be read: {' '.join(str(e).split())}") from e
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold `key: value` lines", remedy="poc_workspace/project.yml is an example")
    project = check_project(content)
    if project.errors:
        some = "1 problem" if len(project.errors) == 1 else f"{len(project.errors)} problems"
        error = WrongProject(f"{some}, nothing was made", file=path)
        error.problems = project.errors
        raise error
    return project


def check_project(content: dict) -> Project:
    """Everything that is wrong with a project, each in one line with the participant's name and the remedy."""
    project = Project()
    _check_head(content, project)
    listed = content.get("participants")
    for number, entry in enumerate(listed if isinstance(listed, list) else [], start=1):
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            project.participants.append(entry)
            _check_participant(entry, project)
        else:
            project.errors.append(f"participant number {number}: it has no name; write `- name: ...`")
    _check_together(project)
    errors, warnings = study_problems(content, project.participants)
    project.errors += errors
    project.warnings += warnings
    project.studies = [str(name) for name in content.get("studies") or [] if not errors]
    _check_builders(content.get("builders"), project)
    return project


def _check_head(content: dict, project: Project) -> None:
    if content.get("api_version") not in (3, 4):
        project.errors.append(f"api_version is {content.get('api_version')!r}; write `api_version: 3`")
    name = content.get("name")
    if not isinstance(name, str) or not is_site_name(name) or len(name) > _LONGEST - 1:
        project.errors.append(f"name: {name!r} names no folder; letters, digits, '-' and '_' only, 63 at most")
    else:
        project.name = name


def _check_participant(entry: dict, project: Project) -> None:
    name, kind = entry["name"], entry.get("type")
    where = f"participant {name!r}"
    if kind not in _TYPES:
        project.errors.append(f"{where}: type {kind!r} is none of {', '.join(_TYPES)}; correct it")
        return
    if len(name) > _LONGEST:
        project.errors.append(f"{where}: the name has {len(name)} characters; {_LONGEST} at most")
    org = entry.get("org")
    if not isinstance(org, str) or name_check(org, "org")[0]:
        project.errors.append(f"{where}: org {org!r}; letters, digits and '_' only")
    known = {"name", "type", "org", *_KEYS[kind].split()}
    for key in sorted(set(map(str, entry)) - known):
        project.warnings.append(f"{where}: key {key!r} is not known here and may do nothing; known: {_KEYS[kind]}")
    if not isinstance(entry.get("byoc", True), bool):
        project.errors.append(f"{where}: byoc must be true or false, got {entry['byoc']!r}")
    if "statsd" in entry and parse_statsd(entry["statsd"]) is None:
        project.errors.append(f"{where}: statsd must be HOST:PORT, as localhost:9125, got {entry['statsd']!r}")
    if kind in ("client", "relay") and not is_site_name(name):
        what = "site" if kind == "client" else "relay"
        project.errors.append(f"{where}: a {what}'s name has letters, digits, '-' and '_' only and is not 'server'")
    if kind == "relay":
        errors, warnings = relay_problems(entry)
        project.errors += [f"{where}: {line}" for line in errors]
        project.warnings += [f"{where}: {line}" for line in warnings]
    if kind == "admin":
        if name_check(name, "admin")[0]:
            project.errors.append(f"{where}: a user's name is an e-mail address, as lead@hospital.org")
        if entry.get("role") not in DEFINED_ROLES:
            project.errors.append(f"{where}: role {entry.get('role')!r} is none of {', '.join(DEFINED_ROLES)}")
    if kind == "server":
        _check_server(entry, where, project)


def _check_server(entry: dict, where: str, project: Project) -> None:
    for key in ("fed_learn_port", "admin_port"):
        port = entry.get(key, 8002)
        if problem := port_problem(port):
            project.errors.append(f"{where}: {key} {problem}")
        elif port < 1024:
            project.warnings.append(f"{where}: {key} {port} needs root on the server; choose one above 1023, as 8002")
    extra = entry.get("host_names", [])
    hosts = [entry.get("default_host", entry["name"]), *(extra if isinstance(extra, list) else [extra])]
    for host in dict.fromkeys(map(str, hosts)):
        if name_check(host, "host_name")[0]:
            project.errors.append(f"{where}: {host!r} is no host name; as fedsm.hospital.org or 10.0.0.7")
        elif not _resolves(host):
            project.warnings.append(
                f"{where}: host {host!r} is not known on this machine; the sites must be able to resolve it"
            )
    storage = entry.get("storage")
    if storage is not None and not (isinstance(storage, str) and PurePosixPath(storage).is_absolute()):
        project.errors.append(f"{where}: storage must be an absolute path on the server, got {storage!r}")


def _resolves(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


def _check_together(project: Project) -> None:
    for name, count in Counter(p["name"] for p in project.participants).items():
        if count > 1:
            project.errors.append(f"participant {name!r}: the name is there {count} times; rename or remove")
    servers, clients = project.of_type("server"), project.of_type("client")
    if len(servers) != 1:
        names = ", ".join(repr(p["name"]) for p in servers) or "none"
        project.errors.append(f"participants: exactly one server is needed, found {names}")
    if len(clients) < 2:
        names = ", ".join(repr(p["name"]) for p in clients) or "none"
        project.errors.append(f"participants: at least 2 clients are needed, found {names}")
    if not any(p.get("role") in _SUBMITTERS for p in project.of_type("admin")):
        project.errors.append("participants: no user may submit a job; add an admin with `role: lead`")
    targets = [p["name"] for p in [*servers, *project.of_type("relay")]]
    for entry in [*clients, *project.of_type("relay")]:
        if problem := connection_problem(entry, targets):
            project.errors.append(f"participant {entry['name']!r}: {problem}")
    project.errors += port_collisions(project.participants)


def _check_builders(builders: Any, project: Project) -> None:
    paths = [str(b.get("path")) for b in builders if isinstance(b, dict)] if isinstance(builders, list) else []
    for name in _BUILDERS:
        if not any(path.endswith(name) for path in paths):
            project.errors.append(f"builders: {name} is missing; copy `builders` of poc_workspace/project.yml")
    if any(path.endswith(".cert.CertBuilder") for path in paths):
        project.warnings.append(f"builders: FLARE's CertBuilder ends certificates after 360 days; use {_CERTIFICATES}")
