"""Tables whose cells are small federations in this process. What is finished stands in a file and is not run again.

A federation is `tests/helpers/federation.py`'s: the real controller, task server, aggregator and executors, without
FLARE's processes and network.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from benchmarks.process import Failed, say
from fedsm.core.files import write_json
from fedsm.core.settings import JobSettings
from fedsm.data.site_folder import list_sites
from tests.helpers.federation import Fault, Federation, in_round, results_of

__all__ = ["Fault", "fill", "in_round", "play"]

FILE = "cells.json"
Cell = Callable[[], dict]


def play(
    folder: Path, data: Path, settings: JobSettings, sites: list[str] | None = None, fault: Fault | None = None
) -> tuple[dict, Path]:
    """Runs one job; returns the content of its results.json, and the folder that the server wrote.

    Args:
        folder: scratch folder, emptied first.
        data: data root with one folder per site.
        settings: the job's settings.
        sites: the sites; default: those of the data root.
        fault: what goes wrong at the sites.

    Raises:
        Failed: the federation gave up.
    """
    shutil.rmtree(folder, ignore_errors=True)
    federation = Federation(folder, data, settings, sites or list_sites(data), fault=fault).run()
    if federation.panic:
        raise Failed(federation.panic)
    return results_of(federation), federation.run_folder


def fill(out: Path, cells: Iterable[tuple[str, Cell]], minutes: float) -> dict[str, dict]:
    """Runs the cells that are not in `out/cells.json` yet, one after the other; returns all that are there now.

    Args:
        out: the folder.
        cells: each one's name and what runs it; its processor time is added to what it returns.
        minutes: processor time after which no further cell is begun.

    Raises:
        Failed: naming the cell whose federation gave up.
    """
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    file = out / FILE
    found = json.loads(file.read_text()) if file.is_file() else {}
    for name, run in cells:
        if name in found:
            continue
        if time.process_time() > 60 * minutes:
            say(f"stopped before {name}: {minutes:g} minutes of processor time are over")
            break
        started = time.process_time()
        try:
            cell = run()
        except Failed as e:
            raise Failed(f"{name}: {e}") from e
        found[name] = cell | {"cpu_seconds": time.process_time() - started}
        write_json(file, found)
        say(f"{name}: {_line(cell)} {found[name]['cpu_seconds']:.0f} s")
    return found


def _line(cell: dict) -> str:
    return " ".join(f"{key}={value:.3f}" for key, value in cell.items() if isinstance(value, float))
