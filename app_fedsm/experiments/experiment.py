"""`fedsm experiment`: a grid of runs, one after another or a few at once, and their table.

Every run has a process and a folder of its own. Called again, it repeats nothing that is finished and goes on with
what was interrupted; the table is written anew after every run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app_fedsm.experiments.grid import Run, load_experiment
from app_fedsm.experiments.grid_run import LOG, SPEC, state_of
from app_fedsm.experiments.grid_state import Grid, unique
from app_fedsm.runs.run_folder import lock_folder
from fedsm.core.errors import UserError
from fedsm.core.text import printable

if TYPE_CHECKING:
    from tqdm import tqdm


def run_grid(grid: Grid, start: Callable | None = None) -> int:
    """Runs all that is not finished yet; returns the exit code.

    Args:
        grid: the grid, checked.
        start: starts a run's process; for tests.
    """
    from tqdm import tqdm

    start = start or partial(start_process, parallel=grid.experiment.parallel)
    with tqdm(total=grid.expected(), unit="run", desc=grid.experiment.name, smoothing=0) as bar:
        for phase in (grid.first, grid.rest):
            runs = phase()
            waiting = grid.collect(runs)
            if phase == grid.rest:
                bar.total = len(grid.first()) + len(runs)
            found = len(runs) - len(waiting)
            bar.initial, bar.n = bar.initial + found, bar.n + found  # took no time: does not tell how long others take
            bar.refresh()
            grid.write_tables()
            with contextlib.closing(_work_off(grid, waiting, start, bar)) as ended:
                for run, why in ended:
                    if why:
                        grid.failed[run.folder] = why
                        tqdm.write(f"{run.folder} failed: {why}; see {run.folder / LOG}", file=sys.stderr)
                    grid.collect(runs)
                    grid.write_tables()
                    bar.update()
    return int(bool(grid.failed))


def _work_off(grid: Grid, runs: list[Run], start: Callable, bar: tqdm) -> Generator[tuple[Run, str | None]]:
    """Runs some at once; yields each run that ended with why it failed, or None. Stops them all when it is stopped."""
    from app_fedsm.runs.simulate import undisturbed

    queue, shown = deque(runs), ""
    active: dict[Any, Any] = {}
    try:
        while queue or active:
            while queue and len(active) < grid.experiment.parallel:
                run = queue.popleft()
                active[run] = start(run, grid.spec(run))
            for run in [r for r, process in active.items() if process.poll() is not None]:
                code = active.pop(run).returncode
                yield run, None if code == 0 else _last_line(run.folder / LOG, code)
            progress = ", ".join(f"{_name(r, grid)} {_rounds(r)}/{r.settings.rounds}" for r in active)
            if progress != shown:
                bar.set_postfix_str(progress)
                shown = progress
            time.sleep(0.2)
    finally:
        with undisturbed():
            for process in active.values():
                process.terminate()
            for process in active.values():
                process.wait()


def _name(run: Run, grid: Grid) -> str:
    return str(run.folder.relative_to(grid.out / "runs"))


def _rounds(run: Run) -> int:
    """The last round, or epoch, in a run's progress file."""
    from app_fedsm.runs.run_folder import events_of

    rounds = [event["round"] for event in events_of(run.folder) if event["event"] in ("started", "round")]
    return rounds[-1] if rounds else 0


def start_process(run: Run, spec: dict, parallel: int = 1) -> subprocess.Popen:
    """Starts a run in a session of its own: Ctrl-C comes to us, and we stop it.

    Runs at the same time share the processors: threads that wait for each other by spinning made two of them three
    times slower than one after the other.
    """
    from fedsm.core.files import write_json

    run.folder.mkdir(parents=True, exist_ok=True)
    write_json(run.folder / SPEC, spec)
    env = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // parallel))} if parallel > 1 else {}
    with (run.folder / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "app_fedsm.experiments.grid_run", str(run.folder)], env=env | os.environ,
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip


def _last_line(log: Path, code: int) -> str:
    if code < 0:
        return f"its process was killed by signal {-code}"
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return next((printable(line.strip()) for line in reversed(lines) if line.strip()), f"exit code {code}")


def _given(args: argparse.Namespace) -> tuple[dict, dict]:
    """What the command line sets instead of the file: options of jobs, and keys of the file."""
    from app_fedsm.config.build import parse_setting

    options = {name: getattr(args, name) for name in args.job_options if getattr(args, name) is not None}
    options |= dict(parse_setting(item) for item in options.pop("overrides", []))
    given = {name: getattr(args, name) for name in ("seeds", "parallel", "threads")}
    given |= {name: str(getattr(args, name)) for name in ("data", "out") if getattr(args, name)}
    if args.lr:
        options["lr"] = args.lr if args.lr[1:] else args.lr[0]
        given |= {"choose": "lr"} if args.lr[1:] else {}
    return options, given


def command(args: argparse.Namespace) -> int:
    """The command; returns the exit code."""
    from app_fedsm.runs import simulate
    from fedsm.data.site_folder import list_sites

    experiment = load_experiment(args.file, *_given(args), rows=args.row or [])
    if experiment.data is None:
        raise UserError(
            "--data is missing: a folder with one sub-folder per site", remedy="see `fedsm experiment --help`"
        )
    grid = Grid(experiment, experiment.data, list_sites(experiment.data))
    grid.check()
    if args.dry_run:
        print(_plan(grid))
        return 0
    if grid.collect(grid.first()) + grid.collect(grid.rest()):
        _check_files(grid)
    with lock_folder(experiment.out, "`fedsm experiment`"), simulate.stop_signals():
        try:
            code = run_grid(grid)
        except KeyboardInterrupt:
            print(f"\nstopped; the same command goes on. So far: {experiment.out / 'table.md'}", file=sys.stderr)
            return 130
        print(grid.write_tables())
        print(f"table: {experiment.out / 'table.md'}, {experiment.out / 'table.csv'}")
    return code


def _check_files(grid: Grid) -> None:
    """Reads every file once for each task, as `fedsm run` does before it starts anything."""
    from app_fedsm.runs.simulate import check_data
    from fedsm.data.findings import warnings_of

    checked = []
    for row in grid.rows:
        settings = grid.experiment.runs(row, row.choices[0], grid.experiment.seeds[0], grid.sites)[0].settings
        if settings.task not in checked:
            for line in warnings_of(check_data(grid.data, settings, row.options["task"])):
                print(line, file=sys.stderr)
            checked.append(settings.task)


def _plan(grid: Grid) -> str:
    """What a call would do."""
    lines = [f"{state_of(run.folder, grid.spec(run)):6}  {run.folder}" for run in grid.first()]
    if grid.experiment.choose and grid.experiment.seeds[1:]:
        rest = ", ".join(map(str, grid.experiment.seeds[1:]))
        lines.append(f"then the seeds {rest} with the {grid.experiment.choose} that is best for each row")
    else:
        others = unique(r for row in grid.rows for c in row.choices for r in grid.later(row, c))
        lines += [f"{state_of(run.folder, grid.spec(run)):6}  {run.folder}" for run in others]
    return "\n".join([*lines, *grid.notes])
