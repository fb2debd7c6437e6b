"""Checks a checkpoint's JSON before it is used: its names become file names here and at the sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsm.core.errors import UserError
from fedsm.core.names import check_plain_names, check_run_id, check_site_names


def check_state(state: Any, path: Path) -> dict:
    """Returns a checkpoint's plain values.

    Args:
        state: the content of the JSON.
        path: the JSON, for the message.

    Raises:
        UserError: incomplete, or an invalid run id, site, model or file name.
    """
    where = f"checkpoint {path}"
    try:
        number, files = state["round"], state["files"]
        best = state.get("best", {})
        names = [*files, *files.values(), *best, *(entry["file"] for entry in best.values())]
        record = state.get("record")
        names_of_run = record and (record["run_id"], record["sites"], record.get("forgotten", []))
    except (KeyError, TypeError, AttributeError) as e:
        raise UserError(f"{where} is incomplete ({e!r})", remedy="remove it to go on from the one before") from e
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise UserError(f"{where}: round {number!r} is no number", remedy="remove it to go on from the one before")
    check_plain_names(names, where, "file name")
    if names_of_run:
        run_id, sites, forgotten = names_of_run
        check_run_id(run_id, where)
        check_site_names(sites, where)
        check_site_names(forgotten, where)
    return state
