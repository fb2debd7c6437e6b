"""`fedsm submit`, `fedsm fetch`, `fedsm resume`, `fedsm status`: jobs on a provisioned federation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.job_options import settings_of
from app_fedsm.cli.output import Result, add_format
from app_fedsm.cli.parser import Parser
from app_fedsm.cli.run import FROM_ROUND
from app_fedsm.cli.submission import (
    add_run_study,
    add_study,
    add_submission,
    check_study,
    follow,
    login_of,
    submit_and_follow,
)
from fedsm.core.errors import UserError

if TYPE_CHECKING:
    from app_fedsm.federation.session import Login

_SUBMIT_EXAMPLE = """example:
  fedsm submit --kit lead@hospital.org --sites site-1 site-2 --task retinal --rounds 20 --out runs/first
"""


def _submit(args: argparse.Namespace) -> Result:
    from app_fedsm.tracking import choose_tracking
    from fedsm.nets import try_networks
    from fedsm.tracks import check_tracks

    settings = settings_of(args)
    tracking = choose_tracking(args.track, args.track_uri)  # the server looks whether an MLflow server answers
    login = login_of(args, args.kit)
    sites = _connected(login, int(args.sites[0])) if _is_count(args.sites) else args.sites
    check_tracks(settings, sites)
    try_networks(settings, len(sites))
    return submit_and_follow(args, login, settings, sites, tracking)


def _is_count(sites: list[str]) -> bool:
    return len(sites) == 1 and sites[0].isdigit()


def _connected(login: Login, count: int) -> list[str]:
    """The connected sites, if there are exactly `count`."""
    from app_fedsm.federation import session

    with session.connect(login) as opened:
        here = session.registered(opened)
    if len(here) != count:
        raise UserError(
            f"--sites {count}, but {len(here)} are connected ({', '.join(here) or 'none'})",
            remedy="wait for the others, or name the sites",
        )
    return here


def _fetch(args: argparse.Namespace) -> Result:
    check_study(args.run, args.study)
    return follow(args.run)


def _resume(args: argparse.Namespace) -> Result:
    from app_fedsm.cli import run_end
    from app_fedsm.cli.main import build_parser
    from app_fedsm.federation import remote
    from app_fedsm.runs.run_folder import is_federation

    check_study(args.run, args.study)
    if not is_federation(args.run):
        if args.join:
            raise UserError("--join is for federations", remedy="in the simulator, add a folder below --data")
        given = {"--rounds": args.rounds, "--from-round": args.from_round}
        more = [word for option, n in given.items() if n is not None for word in (option, str(n))]
        in_simulator = build_parser().parse_args(["run", "--resume", "--out", str(args.run), *more])
        return in_simulator.do(in_simulator)
    if args.from_round is None and not args.join and (results := _finished_results(args.run, args.rounds)):
        return run_end.finished(args.run, results)
    job_id, away = remote.resume(args.run, args.rounds, args.join, args.from_round)
    last = "the last checkpoint" if args.from_round is None else f"the checkpoint of round {args.from_round}"
    print(f"job {job_id} goes on from {last}", file=sys.stderr)
    if away:
        print(f"not connected: {', '.join(away)}; when they are back, `fedsm resume` takes them in", file=sys.stderr)
    return follow(args.run)


def _finished_results(out: Path, rounds: int | None) -> dict | None:
    """The results of a job that has finished if no more rounds are asked for; then it prints that."""
    from app_fedsm.federation import remote
    from app_fedsm.runs.hints import finished
    from app_fedsm.runs.run_folder import RESULTS
    from fedsm.core.plain_json import read_json, reading

    if not (out / RESULTS).is_file():
        return None
    with reading(out / RESULTS, "copy the run again, or submit the job again with --force"):
        results = read_json(out / RESULTS)
        done, sites = results["rounds"], results["sites"]
    if rounds not in (None, done) or set(remote.load_job(out)["sites"]) != set(sites):
        return None
    print(finished(out, done))
    return results


def _status(args: argparse.Namespace) -> Result:
    from app_fedsm.cli import status

    if (args.run is None) == (args.kit is None):
        raise UserError(
            "give a run's folder, or --kit with the startup kit of a user", remedy="see `fedsm status --help`"
        )
    if args.run:
        check_study(args.run, args.study)
        run = status.of_run(args.run)
        print(status.describe_run(run))
        return Result(0, run)
    server = status.of_server(login_of(args, args.kit))
    print(status.describe_server(server))
    return Result(0, server)


def add_parsers(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the commands to `fedsm`'s."""
    submit = commands.add_parser(
        "submit", help="run a job on a provisioned federation", epilog=_SUBMIT_EXAMPLE,
        description="Submits a job with a user's startup kit, follows it and downloads the result.",
    )  # fmt: skip
    submit.add_argument("--kit", type=Path, required=True, metavar="KIT", help="your startup kit")
    submit.add_argument(
        "--sites", nargs="+", required=True, metavar="SITE", help="the sites that take part, or how many there must be"
    )
    add_submission(submit)
    submit.set_defaults(do=_submit)

    fetch = commands.add_parser(
        "fetch", help="wait for a submitted job and download its result",
        epilog="example:\n  fedsm fetch runs/first\n",
    )  # fmt: skip
    fetch.add_argument("run", type=Path, metavar="RUN", help="the folder that was given to --out")
    add_run_study(fetch)
    add_format(fetch)
    fetch.set_defaults(do=_fetch)

    resume = commands.add_parser(
        "resume", help="go on with a run from its last checkpoint",
        epilog="example:\n  fedsm resume runs/first\n  fedsm resume runs/first --rounds 200\n",
        description="After Ctrl-C, a killed server, too few sites, or when a site that was restarted is to take part"
        " again. Simulator and federation alike.",
    )  # fmt: skip
    resume.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    resume.add_argument("--rounds", type=int, metavar="N", help="another number of rounds in all")
    resume.add_argument("--from-round", type=int, metavar="N", help=FROM_ROUND)
    resume.add_argument("--join", nargs="+", default=[], metavar="SITE", help="sites that take part for the first time")
    add_run_study(resume)
    add_format(resume)
    resume.set_defaults(do=_resume)

    status = commands.add_parser(
        "status", help="how far a run is",
        epilog="example:\n  fedsm status runs/first\n  fedsm status --kit lead@hospital.org\n",
        description="Rounds, sites that answer, last Dice and time left, of a run's folder or of all jobs of a server.",
    )  # fmt: skip
    status.add_argument("run", type=Path, nargs="?", metavar="RUN", help="a run's folder")
    status.add_argument("--kit", type=Path, metavar="KIT", help="a user's startup kit")
    add_study(status, "the run's; with --kit FLARE's, default")
    add_format(status)
    status.set_defaults(do=_status)
