"""`fedsm run`: a job in FLARE's simulator on this machine, or all images in one place (`--method centralized`)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.job_options import add_job_options, add_tracking, option_name, settings_of
from app_fedsm.cli.output import Result, add_format
from app_fedsm.config.names import CENTRALIZED
from fedsm.core.errors import UserError
from fedsm.core.text import printable

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser
    from app_fedsm.tracking import Tracking
    from fedsm.core.settings import JobSettings

FROM_ROUND = "go back to the checkpoint of round N; later ones are dropped"
_EXAMPLE = """example:
  fedsm data synth demo_data
  fedsm run --task retinal --data demo_data --rounds 20 --size 64 --out runs/first
"""
_FEDERATED = (  # options that mean nothing where all images are in one place
    "selector_lr", "lam", "selector", "personal", "blend", "min_sites", "round_timeout", "round_retries", "norm_check",
    "threads", "from_round", "track", "track_uri",
)  # fmt: skip


def _run(args: argparse.Namespace) -> Result:
    if args.from_round is not None and not args.resume:
        raise UserError("--from-round goes with --resume")
    if args.resume:
        return _resume(args)
    if args.data is None:
        raise UserError(
            "--data is missing", remedy="give a folder with one sub-folder per site; see `fedsm run --help`"
        )
    if args.method == CENTRALIZED:
        return _run_centralized(args)
    from app_fedsm.tracking import choose_tracking

    return _simulate(settings_of(args), args.data, args, choose_tracking(args.track, args.track_uri))


def _resume(args: argparse.Namespace) -> Result:
    """Goes on with the run of a folder; a finished run is no error: prints that it has finished, exit code 0."""
    from app_fedsm.cli import run_end
    from app_fedsm.runs import hints, run_folder
    from app_fedsm.tracking import choose_tracking, noted_tracking
    from fedsm.core.settings import JobSettings
    from fedsm.server.resume import check_rounds_kept

    out = args.out
    if fixed := [name for name in args.job_options if name != "rounds" and getattr(args, name) is not None]:
        raise UserError(
            "--resume goes on with the run's own settings",
            remedy=f"leave out {option_name(fixed[0])} (--rounds and --data may change)",
        )
    earlier = run_folder.load_run(out)
    if earlier["settings"].get("method") == CENTRALIZED:
        raise UserError(
            f"{out} is a {CENTRALIZED} run, which keeps no checkpoints", remedy="start it again with --force"
        )
    changes = {} if args.rounds is None else {"rounds": args.rounds}
    settings, data = JobSettings.from_dict(earlier["settings"] | changes), args.data or Path(earlier["data"])
    if args.from_round is None and (results := _finished_results(out, settings.rounds, data)):
        print(hints.finished(out, settings.rounds))
        return run_end.finished(out, results)
    done = run_folder.rounds_done(out)
    run_folder.check_rounds(out, done, earlier["settings"]["rounds"], settings.rounds, args.from_round)
    check_rounds_kept(settings, earlier["settings"]["rounds"])
    args.threads = earlier["threads"] if args.threads is None else args.threads
    if args.cache is None:
        args.cache = Path(earlier["cache"])
    asked = args.track or args.track_uri
    tracking = choose_tracking(args.track, args.track_uri) if asked else noted_tracking(earlier)
    return _simulate(settings, data, args, tracking)


def _finished_results(out: Path, rounds: int, data: Path) -> dict | None:
    """The results of a run that has done so many rounds with its present sites: none was forgotten and none joins."""
    from app_fedsm.runs.run_folder import RESULTS
    from app_fedsm.runs.simulate import known_sites
    from fedsm.core.plain_json import read_json, reading
    from fedsm.data.site_folder import site_folders

    if not (out / RESULTS).is_file():
        return None
    with reading(out / RESULTS, "copy the run again, or start it again with --force"):
        results = read_json(out / RESULTS)
        sites, done = results["sites"], results["rounds"]
    joining = set(site_folders(data)) - set(sites) if data.is_dir() else set()
    return results if done == rounds and known_sites(out) == sites and not joining else None


def _simulate(settings: JobSettings, data: Path, args: argparse.Namespace, tracking: Tracking) -> Result:
    """Checks the data, runs the job, and says how it ended and how to go on."""
    from app_fedsm.cli import run_end
    from app_fedsm.runs import hints, run_folder, simulate
    from fedsm.data.findings import warnings_of

    tracking.check_answers()
    out = args.out
    known = simulate.known_sites(out) if args.resume else []
    reports = simulate.check_data(data, settings, args.task or settings.task.name, known)
    sites = [report.site for report in reports]
    threads = len(sites) if args.threads is None else args.threads
    if not 1 <= threads <= len(sites):
        raise UserError(f"--threads must be between 1 and the number of sites ({len(sites)}), got {threads}")
    with simulate.lock_run(out):
        run_folder.prepare_folder(out, args.resume, args.force, args.from_round)
        for line in warnings_of(reports):
            print(line, file=sys.stderr)
        try:
            with simulate.stop_signals():
                results = simulate.simulate(settings, data, sites, out, threads, args.resume, args.cache, tracking)
        except KeyboardInterrupt:
            remedy = hints.go_on(out)
            print(f"\nstopped; {remedy}", file=sys.stderr)
            return run_end.stopped(out, sites, settings.rounds, remedy)
        except simulate.SimulationFailed as e:
            remedy = hints.go_on(out)
            print(f"fedsm: the run failed: {printable(e)}\n{remedy}", file=sys.stderr)
            return run_end.failed(out, sites, settings.rounds, e, remedy)
        return _finish(args, results)


def _finish(args: argparse.Namespace, results: dict) -> Result:
    from app_fedsm.cli import run_end
    from app_fedsm.cli.clean import drop
    from app_fedsm.runs.hints import in_words

    if args.slim:
        drop(args.out)
    print(in_words(args.out, results))
    return run_end.finished(args.out, results)


def _run_centralized(args: argparse.Namespace) -> Result:
    """Trains on all images in one place; options of a federation are refused."""
    if given := next((name for name in _FEDERATED if getattr(args, name) is not None), None):
        raise UserError(f"--method {CENTRALIZED} has no federation", remedy=f"leave out {option_name(given)}")
    from app_fedsm.cli import run_end
    from app_fedsm.runs import run_folder, simulate
    from app_fedsm.runs.centralized import centralized_settings, run_centralized
    from fedsm.data.site_folder import list_sites
    from fedsm.nets import try_networks

    out = args.out
    settings = centralized_settings({name: getattr(args, name) for name in args.job_options})
    sites = list_sites(args.data)
    try_networks(settings, len(sites))
    with simulate.lock_run(out):
        run_folder.prepare_folder(out, resume=False, force=args.force)
        try:
            with simulate.stop_signals():
                results = run_centralized(settings, args.data, sites, out, args.cache or out / "cache")
        except KeyboardInterrupt:
            remedy = f"a {CENTRALIZED} run keeps no checkpoints: start again with --force"
            print(f"\nstopped; {remedy}", file=sys.stderr)
            return run_end.stopped(out, sites, settings.rounds, remedy)
        return _finish(args, results)


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command to `fedsm`'s."""
    run = commands.add_parser(
        "run", help="run a job in FLARE's simulator", epilog=_EXAMPLE,
        description="Trains a super model on a folder of sites, in FLARE's simulator on this machine.",
    )  # fmt: skip
    run.add_argument("--data", type=Path, metavar="ROOT", help="folder with one sub-folder per site")
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="the run's folder")
    run.add_argument("--threads", type=int, metavar="T", help="sites that run at the same time (default: all)")
    run.add_argument("--cache", type=Path, metavar="DIR", help="where decoded images are kept (default: in --out)")
    run.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint in --out, as `fedsm resume` does"
    )
    run.add_argument("--from-round", type=int, metavar="N", help=FROM_ROUND)
    run.add_argument("--force", action="store_true", help="replace the run that --out holds")
    run.add_argument("--slim", action="store_true", help="at a good end drop what only a resume needs (`fedsm clean`)")
    add_tracking(run)
    add_job_options(run, centralized=True)
    add_format(run)
    run.set_defaults(do=_run)
