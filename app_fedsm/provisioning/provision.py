"""`fedsm provision`: startup kits for a consortium, each ready for FedSM jobs.

It checks the project file, runs `nvflare provision`, and fills each kit's `local/` folder (`kits.py`).
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.federation.nvflare_cli import run_nvflare
from fedsm.core.errors import UserError
from fedsm.core.private_files import close_to_others, private_files

if TYPE_CHECKING:
    from app_fedsm.provisioning.project_check import Project

_PROVISIONED = ("comm_config.json", "relay__resources.json", "study_registry.json")  # in `local/`, beside the defaults
_STORAGE = "storage"  # in the server's kit, where project.yml names no other folder


@dataclass(frozen=True)
class Kits:
    """What was made: one folder per participant."""

    folder: Path
    server: Path
    sites: dict[str, Path]
    relays: dict[str, Path]
    users: dict[str, Path]
    storage: Path  # of the server's jobs and snapshots
    earlier: Path | None  # the kits before these; the content of their `local/` folders was copied
    project: Project


def provision(project_file: Path, out: Path) -> Kits:
    """Makes startup kits that are ready for FedSM jobs.

    Args:
        project_file: the project.yml.
        out: where they go: `<out>/<project>/prod_NN/<participant>/`. The folder also holds the consortium's root key.

    Raises:
        UserError: the project is wrong, or `nvflare provision` refuses it.
    """
    from app_fedsm.provisioning.kits import close_kit, fill_server, fill_site, keep_local
    from app_fedsm.provisioning.monitoring import parse_statsd, write_monitoring
    from app_fedsm.provisioning.project_check import read_project

    project = read_project(project_file)
    server = project.of_type("server")[0]
    workspace = out / project.name
    _check_server_certificate(workspace, server)
    earlier = _newest(workspace)
    with private_files():
        _provision(project_file, out)
    folder = _newest(workspace)
    if folder is None or folder == earlier:
        raise UserError(
            f"nvflare provision made no new kits in {workspace}", remedy="remove its oldest prod_NN folders"
        )

    for name in (p["name"] for p in project.participants):
        if earlier and (earlier / name).is_dir():
            keep_local(earlier / name, folder / name)
    for site in project.of_type("client"):
        fill_site(folder / site["name"], site.get("byoc", False))
    kit = (folder / server["name"]).resolve()
    storage = fill_server(kit, Path(server.get("storage", kit / _STORAGE)), server.get("byoc", False))
    for entry in project.participants:
        if entry["type"] in ("server", "client") and (address := parse_statsd(entry.get("statsd"))):
            write_monitoring(folder / entry["name"], entry["name"], *address)
        close_kit(folder / entry["name"])
    close_to_others(workspace)  # the root key, and the kits that an earlier version made
    return Kits(
        folder=folder,
        server=folder / server["name"],
        sites={p["name"]: folder / p["name"] for p in project.of_type("client")},
        relays={p["name"]: folder / p["name"] for p in project.of_type("relay")},
        users={p["name"]: folder / p["name"] for p in project.of_type("admin")},
        storage=storage,
        earlier=earlier,
        project=project,
    )


def _newest(workspace: Path) -> Path | None:
    return max(workspace.glob("prod_[0-9]*"), default=None)


def _provision(project_file: Path, out: Path) -> None:
    folders = ["-p", str(project_file.resolve()), "-w", str(out.resolve())]
    if said := run_nvflare("provision", *folders, "--force"):  # --force: no question; it only adds
        raise UserError(f"{project_file}: nvflare provision refused it: {said}")


def _check_server_certificate(workspace: Path, server: dict) -> None:
    """Checks the host names: the server keeps its certificate, and sites would refuse names that are not in it.

    Raises:
        UserError: the project's host names are not those of the certificate.
    """
    from cryptography import x509

    state = workspace / "state" / "cert.json"
    if not state.is_file():
        return
    stored = json.loads(state.read_text(encoding="utf-8")).get(server["name"])
    if not stored:
        return
    certificate = x509.load_pem_x509_certificate(stored["cert"].encode())
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = {str(entry.value) for entry in alternatives}
    extra = server.get("host_names", [])
    wanted = {server.get("default_host", server["name"]), *([extra] if isinstance(extra, str) else extra)}
    if not wanted <= known:
        raise UserError(
            f"participant {server['name']!r}: its certificate of the first call is for {', '.join(sorted(known))}, not"
            f" for {', '.join(sorted(wanted - known))}",
            remedy="take these names, or another -o (new kits for everybody)",
        )


def certificates_end(kit: Path) -> datetime.datetime:
    """When the certificate of a participant ends."""
    from cryptography import x509

    path = next(p for p in (kit / "startup" / "server.crt", kit / "startup" / "client.crt") if p.is_file())
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc


def _configuration(kit: Path) -> dict[str, dict]:
    """What FLARE made of the project file for a participant: addresses, identities, relays, studies."""
    files = [*(kit / "startup").glob("fed_*.json"), *((kit / "local" / name) for name in _PROVISIONED)]
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in files if path.is_file()}


def describe(kits: Kits) -> str:
    """Who gets which kit, and what must be edited there."""
    participants = kits.project.participants
    org_admins = {p["org"]: p["name"] for p in participants if p.get("role") == "org_admin"}
    width = max(len(p["name"]) for p in participants)
    lines = [f"kits in {kits.folder}; each holds a private key: send it by a secure channel, to this person only"]
    for entry in participants:
        name, kind, org = entry["name"], entry["type"], entry["org"]
        to = {
            "admin": "the user",
            "server": f"the server's operator ({org})",
            "relay": f"the relay's operator ({org})",
        }.get(kind)
        to = to or org_admins.get(org, f"the IT of {org}")
        notes = [entry.get("role", kind)]
        notes += ["jobs may bring code"] if entry.get("byoc") else []
        if kits.earlier and (kits.earlier / name).is_dir():
            same = _configuration(kits.earlier / name) == _configuration(kits.folder / name)
            notes.append("as before: need not be sent" if same else "changed: send it again")
        lines.append(f"  {name:<{width}}  -> {to}; {', '.join(notes)}")
    ends = min(certificates_end(kits.folder / p["name"]) for p in participants)
    lines += [
        "each site edits, in its kit:",
        "  local/fedsm_site.yaml     `data:` must be set; device, threads and cache if the defaults do not fit",
        "  local/resources.json      num_of_gpus and mem_per_gpu_in_GiB: 0 until they are set",
        "  local/authorization.json  who may do what; authorization.no_byoc.json.sample there: no code inside jobs",
        "the server's operator edits:",
        f"  local/resources.json      jobs and results are kept in {kits.storage}: write another folder there if the"
        " kit moves",
        f"the first certificate ends on {ends:%Y-%m-%d}",
    ]
    if kits.project.studies:
        lines.append(
            f"studies: {', '.join(kits.project.studies)}; a server that runs already is told with `nvflare study`"
        )
    if kits.earlier:
        lines.append(f"the content of the local/ folders of {kits.earlier} was copied")
    return "\n".join(lines)
