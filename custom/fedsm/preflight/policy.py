"""What the site's own rules let a job do: bring its code along, or use what is installed."""

from __future__ import annotations

import json

from fedsm.preflight.kit import Kit
from fedsm.preflight.line import Line

_OURS = "fedsm."


def read_policy(kit: Kit, name: str) -> dict:
    """The content of a file in `local/`.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds something else.
    """
    content = json.loads(kit.policy_file(name).read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("expected a mapping")
    return content


def check_code(kit: Kit) -> list[Line]:
    """Says which way our code may come here: installed (class_allow_list) or inside the job (the right `byoc`)."""
    try:
        resources, rules = read_policy(kit, "resources.json"), read_policy(kit, "authorization.json")
        permissions = rules["permissions"]
        bringers = sorted(role for role, rights in permissions.items() if _may_bring(rights))
        allowed = [str(entry) for entry in resources.get("class_allow_list", [])]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as e:
        return [Line("FAIL", "code", f"local/ cannot be used: {e!r}", "unpack the kit's local/ again")]
    listed = "*" in allowed or any(_OURS.startswith(e) for e in allowed if e.endswith("."))
    listed = listed or resources.get("class_list_enforcement_mode") == "warn"
    add = (
        f'copy local/resources.json.default to resources.json, add "{_OURS}" to its class_allow_list'
        if kit.policy_file("resources.json").suffix == ".default"
        else f'add "{_OURS}" to class_allow_list in local/resources.json'
    )
    if listed:
        who = f"also inside a job of {', '.join(bringers)}" if bringers else "BYOC is forbidden here"
        return [Line("PASS", "code", f"the installed fedsm may run; {who}")]
    if bringers:
        what = f"only code inside the job may run (BYOC, by {', '.join(bringers)}), not the installed fedsm"
        return [Line("WARN", "code", what, f"{add}; or have jobs exported with --byoc")]
    return [Line("FAIL", "code", f'no job can run: BYOC is forbidden, "{_OURS}" not in class_allow_list', add)]


def _may_bring(rights: str | dict) -> bool:
    """Whether a role has the right `byoc`: by itself, or with all others."""
    value = rights.get("byoc", rights.get("*", "none")) if isinstance(rights, dict) else rights
    return value != "none"
