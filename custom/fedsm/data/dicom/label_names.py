"""Which label of the task a segment or a contour stands for."""

from __future__ import annotations

import re

from fedsm.core.task_settings import TaskSettings


def label_of(name: str, code: tuple[str, str] | None, task: TaskSettings) -> str | None:
    """The task's label with this name or code, or None.

    Args:
        name: as the object has it; capitals, blanks and signs do not matter.
        code: its value and scheme.
        task: the task, whose `codes` count as well.
    """
    for label in task.labels:
        known = task.codes.get(label)
        if known and code == (known.code, known.scheme):
            return label
    plain = {_plain(label): label for label in task.labels}
    return plain.get(_plain(name))


def unknown_labels(task: TaskSettings) -> tuple[str, str]:
    """Reason and remedy for a mask none of whose segments is a label."""
    labels = ", ".join(task.labels)
    return f"has no segment that the task knows ({labels})", "name its segments so, or give the task their `codes`"


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()
