"""The settings reference from docstrings, until `settings_reference` makes it from the models."""

from __future__ import annotations

import dataclasses
import inspect
import re


def render_all() -> str:
    """Job, task and track settings in Markdown."""
    from fedsm.core.settings import JobSettings, TaskSettings
    from fedsm.tracks import KINDS

    tracks = []
    for name, kind in KINDS.items():
        options = {} if kind.options is None else kind.options
        text = ", ".join(f"`{key}` (default: {option.default})" for key, option in options.items())
        tracks.append(f"- `{name}`: {text or ('`lam`' if kind.options is None else 'no options')}")
    return "\n\n".join(
        [
            "## Job", _fields(JobSettings), "## Task", _fields(TaskSettings),
            "## Options of a track, by its kind", "\n".join(tracks),
        ]
    )  # fmt: skip


def render_site() -> str:
    """The site file, as its module describes it."""
    from fedsm.client import site_settings

    lines = inspect.getdoc(site_settings).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("    data:"))
    end = next(i for i, line in enumerate(lines) if i > start and not line.strip())
    text = "\n".join(line[4:] for line in lines[start:end]).replace("\\", "\\\\")  # the docstring is no raw one
    return f"```yaml\n{text}\n```"


def _fields(cls) -> str:
    """One line per attribute of a dataclass: its default and what its docstring says."""
    text = re.sub(r"\n {8,}", " ", inspect.getdoc(cls).partition("Attributes:\n")[2])
    said = dict(line.strip().split(": ", 1) for line in text.splitlines() if ": " in line)
    rows = []
    for field in dataclasses.fields(cls):
        made = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        default = "required" if made is dataclasses.MISSING else f"default: `{made!r}`"
        rows.append(f"- `{field.name}` ({default}): {said.get(field.name, '')}")
    return "\n".join(rows)
