"""What the site's own rules allow a job: to bring its own code, or to use the installed package."""

from __future__ import annotations

import json

from fedsm.core.components import EXECUTOR, JOB_ID_GUARD
from fedsm.preflight.kit import Kit
from fedsm.preflight.line import Line


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
    """Checks how our code may run here: installed (class_allow_list) or inside the job (the right `byoc`)."""
    try:
        resources, rules = read_policy(kit, "resources.json"), read_policy(kit, "authorization.json")
        permissions = rules["permissions"]
        bringers = sorted(role for role, rights in permissions.items() if _may_bring(rights))
        allowed = [str(entry) for entry in resources.get("class_allow_list", [])]
        guarded = any(c.get("path") == JOB_ID_GUARD["path"] for c in resources.get("components", []))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as e:
        return [Line("FAIL", "code", f"local/ cannot be used: {e!r}", "unpack the kit's local/ again")]
    wide = _too_wide(resources, allowed)
    add = (
        f'copy local/resources.json.default to resources.json, add "{EXECUTOR}" to its class_allow_list'
        if kit.policy_file("resources.json").suffix == ".default"
        else f'add "{EXECUTOR}" to class_allow_list in local/resources.json'
    )
    if EXECUTOR in allowed or wide:
        who = f"jobs of {', '.join(bringers)} may bring code" if bringers else "BYOC is forbidden here"
        if wide:
            what = f"{wide} lets a job that brings no code call any function of fedsm; {who}"
            remedy = f'local/resources.json: "{EXECUTOR}" in class_allow_list and nothing wider, mode "enforce"'
            return [Line("WARN", "code", what, remedy)]
        if not bringers and not guarded:
            what = "a job can choose its id here, and FLARE empties the folder of that name in the kit, such as startup"
            remedy = f"add {json.dumps(JOB_ID_GUARD)} to components in local/resources.json"
            return [Line("WARN", "code", what, remedy)]
        return [Line("PASS", "code", f"the installed fedsm may run; {who}")]
    if bringers:
        what = f"only code inside the job may run (BYOC, by {', '.join(bringers)}), not the installed fedsm"
        return [Line("WARN", "code", what, f"{add}; or have jobs exported with --byoc")]
    return [Line("FAIL", "code", f'no job can run: BYOC is forbidden, "{EXECUTOR}" not in class_allow_list', add)]


def _too_wide(resources: dict, allowed: list[str]) -> str | None:
    """What in the site's rules allows more of our package than the one class that jobs need here."""
    if resources.get("class_list_enforcement_mode") == "warn":
        return "class_list_enforcement_mode: warn"
    entries = [e for e in allowed if e == "*" or (e != EXECUTOR and EXECUTOR.startswith(f"{e.rstrip('.')}."))]
    return f'class_allow_list with "{entries[0]}"' if entries else None


def _may_bring(rights: str | dict) -> bool:
    """Whether a role has the right `byoc`: given by name, or as one of all rights."""
    value = rights.get("byoc", rights.get("*", "none")) if isinstance(rights, dict) else rights
    return value != "none"
