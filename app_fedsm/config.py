"""Settings of a job from a task's and a method's YAML file and what the person asked for."""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from fedsm.errors import UserError
from fedsm.settings import JobSettings
from fedsm.tracks import KINDS

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
SELECTORS = sorted(k.removeprefix("selector_") for k in KINDS if k.startswith("selector_"))


def available(what: str) -> list[str]:
    """Names of the `tasks` or `methods` that have a YAML file."""
    return sorted(p.name.removesuffix(".yaml") for p in (resources.files("app_fedsm") / what).iterdir())


def _load(what: str, name: str) -> dict:
    known = available(what)
    if name not in known:
        raise UserError(f"unknown {what[:-1]} {name!r}; known: {', '.join(known)}")
    return _parse(resources.files("app_fedsm") / what / f"{name}.yaml", f"{what[:-1]} {name!r}")


def _parse(file: Traversable, where: str) -> Any:
    try:
        return yaml.safe_load(file.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise UserError(f"{where} is no YAML: {' '.join(str(e).split())}") from e


def _load_task(task: str) -> dict:
    """A task by its name or, with a path to a YAML file, a person's own."""
    if task in available("tasks") or not (task.endswith((".yaml", ".yml")) or "/" in task):
        return _load("tasks", task)
    try:
        content = _parse(Path(task), f"task file {task}")
    except OSError as e:
        raise UserError(f"task file {task}: {e.strerror}; give a YAML file or {', '.join(available('tasks'))}") from e
    try:
        settings = JobSettings.from_dict({"task": content, "tracks": {}}).task
    except UserError as e:
        raise UserError(f"task file {task}: {str(e).removeprefix('task: ')}") from e
    if not _NAME.fullmatch(settings.name):
        raise UserError(
            f"task file {task}: name {settings.name!r} is part of a job's: letters, digits, '-' and '_' only"
        )
    if not all(isinstance(label, str) for label in settings.labels):  # YAML reads `1:` and `no:` as something else
        raise UserError(f"task file {task}: the names of labels must be text; put them in quotes")
    return content


def build_settings(
    task: str,
    method: str,
    lam: float | None = None,
    selector: str | None = None,
    overrides: list[str] | None = None,
    **given: Any,
) -> JobSettings:
    """Puts a job's settings together.

    Args:
        task: name of a file in `app_fedsm/tasks`, or path of a YAML file.
        method: name of a file in `app_fedsm/methods`.
        lam: SoftPull's coefficient; default: the task's.
        selector: kind of selector; default: the method's.
        overrides: `KEY=VALUE` with dots and YAML values, e.g. `task.unet.channels=[8, 16, 32]`.
        **given: settings of `JobSettings`; None means not given.

    Raises:
        UserError: unknown task, method, selector or setting.
    """
    values: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    values |= {"method": method, "task": _load_task(task), "tracks": _load("methods", method)["tracks"]}
    if lam is not None:
        if "personal" not in values["tracks"]:
            raise UserError(f"method {method!r} has no personal track: lam means nothing to it")
        values["tracks"]["personal"]["lam"] = lam
    if selector is not None:
        if selector not in SELECTORS:
            raise UserError(f"unknown selector {selector!r}; known: {', '.join(SELECTORS)}")
        values["tracks"]["selector"] = {"kind": f"selector_{selector}"}
    for item in overrides or []:
        _override(values, item)
    return JobSettings.from_dict(values)


def _override(values: dict, item: str) -> None:
    key, equals, text = item.partition("=")
    if not equals:
        raise UserError(f"--set takes KEY=VALUE, got {item!r}")
    *path, last = key.strip().split(".")
    target = values
    for part in path:
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            raise UserError(f"--set {key}: {part!r} is no group of settings")
    try:
        target[last] = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise UserError(f"--set {key}: {text!r} is no YAML value") from e
