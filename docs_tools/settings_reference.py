"""The settings reference of the documentation, from the models: `python -m docs_tools.settings_reference`."""

from __future__ import annotations

import json
from typing import Any

from app_fedsm.experiments.experiment_file import ExperimentFile
from fedsm.client.site_file import PrivacyOfStatistics, PrivacyOfTraining, SiteFile
from fedsm.core.model import Settings, expected
from fedsm.core.secure_settings import SecureSum
from fedsm.core.settings import JobSettings, UpdatePrivacy
from fedsm.core.task_settings import AugmentSettings, LabelCode, SelectorNetSettings, TaskSettings, UNetSettings
from fedsm.tracks import KINDS
from fedsm.tracks.options import TrackOptions

# title -> the text below it, and its tables: (prefix of the keys, model)
SECTIONS: dict[str, tuple[str, list[tuple[str, type[Settings]]]]] = {
    "Job": (
        "Set them with an option of `fedsm run` and `fedsm job export` (`rounds` is `--rounds`) or with"
        " `--set KEY=VALUE`. They stand in the job's `config_fed_server.json`, and every site checks them again.",
        [("", JobSettings), ("secure_sum.", SecureSum), ("update_privacy.", UpdatePrivacy)],
    ),
    "Task": (
        "In a task's YAML file (`--task FILE`), or with `--set task.KEY=VALUE`.",
        [
            ("", TaskSettings),
            ("unet.", UNetSettings),
            ("selector_net.", SelectorNetSettings),
            ("augment.", AugmentSettings),
            ("codes.LABEL.", LabelCode),
        ],
    ),
    "Tracks": (
        "A method's file names its tracks, each with a kind and perhaps options: `--set tracks.personal.prox=0.5`."
        " Kinds that are not listed have no options.",
        [(f"{name}: ", kind.options) for name, kind in sorted(KINDS.items()) if kind.options is not TrackOptions],
    ),
    "Site": (
        "In `fedsm_site.yaml` in the `local/` folder of a site's kit. Nothing of it is sent to the server.",
        [("", SiteFile), ("statistics_privacy.", PrivacyOfStatistics), ("dp.", PrivacyOfTraining)],
    ),
    "Experiment": (
        "In the YAML file of `fedsm experiment FILE`.",
        [("", ExperimentFile)],
    ),
}


_READING = (
    "YAML files are read as YAML 1.2: `1e-3` is a number, `yes` and `off` are words unless true or false is expected,"
    " and a key that stands twice is an error."
)


def render() -> str:
    """The whole reference as a Markdown page."""
    return "\n\n".join(["# Settings", _READING, *map(_section, SECTIONS)]) + "\n"


def render_all() -> str:
    """Sections for a page of its own title: all but the site's file, which has its own page."""
    return "\n\n".join([_READING, *(_section(title) for title in SECTIONS if title != "Site")]) + "\n"


def render_site() -> str:
    """The tables of the site's file."""
    return _tables("Site") + "\n"


def _section(title: str) -> str:
    return "\n\n".join([f"## {title}", SECTIONS[title][0], _tables(title)])


def _tables(title: str) -> str:
    parts = []
    for prefix, model in SECTIONS[title][1]:
        if prefix:
            parts += [f"### `{prefix.rstrip('.: ')}`", (model.__doc__ or "").strip()]
        parts.append(table(model, prefix if prefix.endswith(".") else ""))
    return "\n\n".join(parts)


def table(model: type[Settings], prefix: str = "") -> str:
    """One row per field: key, what it may be, default, description."""
    schema = model.model_json_schema()
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        value = expected(schema["properties"][name], schema.get("$defs", {}))
        default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
        rows.append(f"| `{prefix}{name}` | {_cell(value)} | {default} | {_cell(field.description or '')} |")
    return "\n".join(rows)


def _default(value: Any) -> str:
    if value is None or isinstance(value, Settings):  # the description says what happens then
        return ""
    text = value if isinstance(value, str) and value else json.dumps(value)
    return f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(render(), end="")
