"""Settings of a job from a task's and a method's YAML file and the options that were given."""

from __future__ import annotations

import copy
import functools
import re
from importlib import resources
from pathlib import Path
from typing import Any

from app_fedsm.config.names import available
from fedsm.core.errors import UserError
from fedsm.core.model import as_switch, known_words
from fedsm.core.settings import JobSettings
from fedsm.core.task_settings import TaskSettings
from fedsm.core.yaml_file import parse_value, read_yaml
from fedsm.selectors.inference import MIXTURE, THRESHOLD
from fedsm.tracks import KINDS, at_sites, complete_tracks

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
SELECTORS = sorted(k.removeprefix("selector_") for k in KINDS if k.startswith("selector_"))
PERSONAL = sorted(name for name, kind in KINDS.items() if kind.personal)
TRACK_OF = {"lam": "personal", "personal": "personal", "selector": "selector", "blend": "selector"}  # options of one


class Unfit(UserError):
    """An option that means nothing to the method it was given to."""


def _load(what: str, name: str) -> dict:
    known = available(what)
    if name not in known:
        raise UserError(f"unknown {what[:-1]} {name!r}", remedy=known_words(name, known))
    return copy.deepcopy(_packaged(what, name))


@functools.cache  # an experiment builds hundreds of jobs from them
def _packaged(what: str, name: str) -> dict:
    return read_yaml(resources.files("app_fedsm.config") / what / f"{name}.yaml").content


def tracks_of(method: str) -> dict[str, dict]:
    """The tracks of a method: name -> kind and options.

    Raises:
        UserError: unknown method.
    """
    return _load("methods", method)["tracks"]


def load_preset(name: str) -> dict[str, Any]:
    """The settings of a preset: keys as `--set` takes them, with dots.

    `tracks.NAME.OPTION` goes to methods whose track has that option, and is left out elsewhere: one preset serves all.

    Raises:
        UserError: unknown preset.
    """
    return _load("presets", name)


def why_unfit(option: str, method: str, personal: str | None = None, selector: str | None = None) -> str | None:
    """Why an option of `TRACK_OF` means nothing to a method, or None.

    Args:
        option: its name.
        method: name of a file in `app_fedsm/config/methods`.
        personal: the kind that replaces the method's own.
        selector: the same for the selector.
    """
    tracks, track = tracks_of(method), TRACK_OF[option]
    if track not in tracks:
        return f"method {method!r} has no {track} track: {option} means nothing to it"
    own = tracks[track]["kind"]
    if own == {"personal": personal, "selector": f"selector_{selector}"}.get(option):
        return None  # what the method has anyway
    if option == "personal" and not KINDS[own].personal:
        return f"method {method!r} is a kind of personal model itself: {option} is for FedSM's"
    rule = KINDS[tracks["selector"]["kind"]].rule if "selector" in tracks else None
    if option == "personal" and rule == MIXTURE:
        return f"method {method!r} mixes {own}'s networks, which travel in every round: {option} is for FedSM's"
    if option == "selector" and rule != THRESHOLD:
        return f"method {method!r} is made by its own selector: {option} is for FedSM's"
    if option == "blend" and (asked := KINDS.get(f"selector_{selector}", KINDS[own]).rule) != THRESHOLD:
        return f"the {asked} selector has no threshold: blend means nothing to it"
    kind = personal if personal in PERSONAL else own
    if option == "lam" and "lam" not in KINDS[kind].options.model_fields:
        return f"personal kind {kind!r} has no lam"
    return None


def _load_task(task: str) -> dict:
    """A task by its name or, with a path to a YAML file, a person's own."""
    if task in available("tasks") or not (task.endswith((".yaml", ".yml")) or "/" in task):
        return _load("tasks", task)
    source = read_yaml(Path(task), remedy=f"give a YAML file or {', '.join(available('tasks'))}")
    name = TaskSettings.from_dict(source.content, source=source).name
    if not _NAME.fullmatch(name):
        raise UserError(
            f"name {name!r} is part of a job's: letters, digits, '-' and '_' only",
            file=source.file,
            line=source.line_of(["name"]),
        )
    return source.content


def build_settings(
    task: str,
    method: str,
    lam: float | None = None,
    selector: str | None = None,
    personal: str | None = None,
    preset: str | None = None,
    overrides: list[str] | None = None,
    dotted: dict[str, Any] | None = None,
    **given: Any,
) -> JobSettings:
    """Puts a job's settings together: what is given, over the preset's, over the task's file and the defaults.

    Args:
        task: name of a file in `app_fedsm/config/tasks`, or path of a YAML file.
        method: name of a file in `app_fedsm/config/methods`.
        lam: SoftPull's coefficient; default: the task's.
        selector: kind of selector; default: the method's.
        personal: kind of the personal track; default: the method's.
        preset: name of a file in `app_fedsm/config/presets`; default: none.
        overrides: `KEY=VALUE` with dots and YAML values, e.g. `task.unet.channels=[8, 16, 32]`.
        dotted: the same as key and value.
        **given: settings of `JobSettings`; None means not given.

    Raises:
        UserError: unknown task, method, selector, personal kind, preset or setting.
        Unfit: one of them means nothing to the method.
    """
    values: dict[str, Any] = {"method": method, "task": _load_task(task), "tracks": tracks_of(method)}
    recipe = load_preset(preset) if preset is not None else {}
    for key, value in ({"preset": preset} | recipe).items() if recipe else ():
        if not key.startswith("tracks."):
            _override(values, key, value)
    values |= {k: v for k, v in given.items() if v is not None}
    tracks = values["tracks"]
    if personal is not None and personal not in PERSONAL:
        raise UserError(f"unknown personal kind {personal!r}", remedy=known_words(personal, PERSONAL))
    if selector is not None and selector not in SELECTORS:
        raise UserError(f"unknown selector {selector!r}", remedy=known_words(selector, SELECTORS))
    asked = {"personal": personal, "selector": selector, "lam": lam, "blend": as_switch(given.get("blend")) or None}
    for option in (key for key, value in asked.items() if value is not None):
        if why := why_unfit(option, method, personal, selector):
            raise Unfit(why)
    if personal is not None and tracks["personal"]["kind"] != personal:
        tracks["personal"] = {"kind": personal}
    if selector is not None and tracks["selector"]["kind"] != f"selector_{selector}":
        tracks["selector"] = {"kind": f"selector_{selector}"}
    for key, value in recipe.items():
        if key.startswith("tracks.") and _has_option(tracks, key):
            _override(values, key, value)
    if lam is not None:
        tracks["personal"]["lam"] = lam
    for key, value in [*map(parse_setting, overrides or []), *(dotted or {}).items()]:
        _override(values, key, value)
    settings = at_sites(JobSettings.from_dict(values))
    return settings.replace(tracks=complete_tracks(settings))


def _has_option(tracks: dict[str, dict], key: str) -> bool:
    """Whether a method's track has an option; `key` is `tracks.NAME.OPTION`."""
    _, track, option = key.split(".")
    return track in tracks and option in KINDS[tracks[track]["kind"]].options.model_fields


def parse_setting(item: str) -> tuple[str, Any]:
    """`KEY=VALUE` to the key and its YAML value.

    Raises:
        UserError: it is not of this form.
    """
    key, equals, text = item.partition("=")
    if not equals:
        raise UserError(f"--set takes KEY=VALUE, got {item!r}")
    return key.strip(), parse_value(text, f"--set {key}")


def _override(values: dict, key: str, value: Any) -> None:
    *path, last = key.split(".")
    target = values
    for part in path:
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            raise UserError(f"--set {key}: {part!r} is no group of settings")
    target[last] = value
