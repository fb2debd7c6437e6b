"""`fedsm kit prepare`: makes a kit that FLARE alone made ready for FedSM jobs.

For kits of `nvflare package`, whose private key was made where the kit is used, and of `nvflare provision`. What
`fedsm provision` adds to its kits is added here; what the kit's owner has written stays.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from fedsm.core.components import SERVER_CLASSES, SITE_CLASSES
from fedsm.core.errors import UserError

SERVER, SITE, RELAY, USER = "server", "site", "relay", "user"
_CONFIGS = {SERVER: "fed_server.json", SITE: "fed_client.json", RELAY: "fed_relay.json", USER: "fed_admin.json"}
_CLASSES = {SERVER: SERVER_CLASSES, SITE: SITE_CLASSES}


@dataclass
class Prepared:
    """A kit that was made ready.

    Attributes:
        kind: whose it is.
        storage: where a server keeps jobs and results.
        kept: the owner's files in `local/` that were there already.
        problems: what the owner must still change in them.
    """

    kind: str
    storage: Path | None = None
    kept: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def prepare_kit(kit: Path, storage: Path | None = None, byoc: bool = False) -> Prepared:
    """Adds to a kit what FedSM jobs need there, and closes it to other accounts. A second call changes nothing.

    Args:
        kit: the kit's folder, as FLARE made it.
        storage: of a server: where jobs and results are kept; default: in the kit.
        byoc: of a server or site: whether jobs may bring their code.

    Raises:
        UserError: no kit, or an option that is not for this kind of kit.
    """
    from app_fedsm.provisioning.kits import close_kit, fill_server, fill_site

    kit = kit.resolve()
    prepared = Prepared(kind_of(kit))
    _check_options(prepared.kind, storage, byoc)
    local = kit / "local"
    before = {name for name in ("resources.json", "authorization.json", "fedsm_site.yaml") if (local / name).exists()}
    if prepared.kind == SITE:
        fill_site(kit, byoc)
    elif prepared.kind == SERVER:
        prepared.storage = fill_server(kit, (storage or kit / "storage").absolute(), byoc)
    close_kit(kit)
    prepared.kept = sorted(before)
    prepared.problems = _problems(local, prepared.kind)
    return prepared


def kind_of(kit: Path) -> str:
    """Whose kit it is.

    Raises:
        UserError: it is none.
    """
    for kind, name in _CONFIGS.items():
        if (kit / "startup" / name).is_file():
            return kind
    raise UserError(
        f"{kit} is no startup kit: startup/ holds none of {', '.join(_CONFIGS.values())}",
        remedy="give the folder above startup/, as `nvflare package` names it: output_dir",
    )


def _check_options(kind: str, storage: Path | None, byoc: bool) -> None:
    if storage is not None and kind != SERVER:
        raise UserError(f"--storage is for a server's kit, and this is a {kind}'s", remedy="leave it out")
    if byoc and kind not in _CLASSES:
        raise UserError(f"--byoc is for a server's or a site's kit, and this is a {kind}'s", remedy="leave it out")


def _problems(local: Path, kind: str) -> list[str]:
    """What an owner's own file lacks: it is never written over."""
    if kind not in _CLASSES:
        return []
    try:
        allowed = json.loads((local / "resources.json").read_text(encoding="utf-8"))["class_allow_list"]
        missing = [name for name in _CLASSES[kind] if name not in allowed]
    except (OSError, ValueError, KeyError, TypeError):
        return ["local/resources.json, which was there, cannot be read: remove it and call this again"]
    if not missing:
        return []
    return [
        f"local/resources.json, which was there, does not allow {', '.join(missing)}: add it to class_allow_list, or"
        " remove the file and call this again"
    ]
