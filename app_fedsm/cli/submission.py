"""What `fedsm poc submit` and `fedsm submit` share: their options, and a job from its submission to its result."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.job_options import add_job_options, add_tracking
from app_fedsm.cli.output import Result, add_format
from app_fedsm.cli.parser import Parser
from fedsm.core.errors import UserError
from fedsm.core.limits import MOST_TIMES
from fedsm.core.task_names import DEFAULT_STUDY
from fedsm.core.text import printable

if TYPE_CHECKING:
    from app_fedsm.federation.session import Login
    from app_fedsm.tracking import Tracking
    from fedsm.core.settings import JobSettings

SUPERVISE = 5  # times that a supervised job goes on by itself unless the user says otherwise
_GPUS = re.compile(r"(?:(?P<site>[^=]+)=)?(?P<count>\d+)(?::(?P<memory>\d+))?")


def submit_and_follow(
    args: argparse.Namespace, login: Login, settings: JobSettings, sites: list[str], tracking: Tracking
) -> Result:
    """Submits a job, follows it and fetches its result."""
    from app_fedsm.cli import run_end
    from app_fedsm.federation import remote
    from app_fedsm.runs.hints import ask_commands
    from app_fedsm.runs.run_folder import prepare_folder

    resources = parse_gpus(args.gpus or [], sites)
    if len(sites) < settings.min_sites:
        raise UserError(f"{len(sites)} sites, but min_sites is {settings.min_sites}: no round could be closed")
    remote.check_connected(login, sites)
    prepare_folder(args.out, resume=False, force=args.force)
    job_id = remote.submit(
        login, settings, args.out, sites, args.byoc, resources, tracking=tracking, supervise=args.supervise
    )
    print(f"job {job_id}: {len(sites)} sites, {settings.rounds} rounds", file=sys.stderr)
    if args.no_wait:
        print(ask_commands(args.out)["fetch"])
        return run_end.submitted(args.out, sites, settings.rounds)
    return follow(args.out)


def follow(out: Path) -> Result:
    """Waits for a submitted job, prints how it ended and fetches its result."""
    from app_fedsm.cli import run_end
    from app_fedsm.federation import remote
    from app_fedsm.federation.supervise import supervise
    from app_fedsm.runs.hints import ask_commands, go_on_remotely, in_words

    def asked() -> tuple[list[str], int]:
        job = remote.load_job(out)
        return job["sites"], job["settings"]["rounds"]

    try:
        results = supervise(
            out, remote.load_job(out)["supervise"], lambda line: print(printable(line), file=sys.stderr)
        )
    except KeyboardInterrupt:
        ask = ask_commands(out)
        print(f"\nthe job goes on; `{ask['fetch']}` waits for it, `{ask['status']}` asks", file=sys.stderr)
        return run_end.left_running(out, *asked())
    except remote.JobFailed as e:
        remedy = go_on_remotely(out)
        print(f"fedsm: the job failed: {printable(e)}\n{remedy}", file=sys.stderr)
        return run_end.failed(out, *asked(), e, remedy)
    print(in_words(out, results))
    return run_end.finished(out, results)


def parse_gpus(given: list[str], sites: list[str] | None = None) -> dict[str, dict]:
    """From `[SITE=]N[:GiB]` to what the job asks of the sites' resource managers; `sites`: the sites of the job.

    Raises:
        UserError: it is not of this form, or names a site that takes no part.
    """
    resources = {}
    for text in given:
        found = _GPUS.fullmatch(text)
        if not found:
            raise UserError(
                f"--gpus {text!r} is not understood", remedy="write [SITE=]N[:GiB], as in 1:8 or site-2=2:16"
            )
        if found["site"] and sites is not None and found["site"] not in sites:
            raise UserError(f"--gpus {text!r}: no site {found['site']!r}", remedy=f"known: {', '.join(sites)}")
        needed = {"num_of_gpus": int(found["count"])}
        resources[found["site"] or "@default"] = needed | (
            {"mem_per_gpu_in_GiB": int(found["memory"])} if found["memory"] else {}
        )
    return resources


def add_gpus(parser: argparse.ArgumentParser) -> None:
    """Adds the option that `parse_gpus` reads."""
    parser.add_argument(
        "--gpus", action="append", metavar="[SITE=]N[:GiB]", help="GPUs that the job needs, e.g. 1:8 (may be repeated)"
    )


def login_of(args: argparse.Namespace, kit: Path) -> Login:
    """The kit, and the study of `add_study`."""
    from app_fedsm.federation.session import Login

    return Login(kit, args.study or DEFAULT_STUDY)


def check_study(run: Path, study: str | None) -> None:
    """Refuses --study for a run of another one: a job stays in the study that it was submitted to.

    Raises:
        UserError: the run is of another study, or of the simulator.
    """
    from app_fedsm.federation import remote
    from app_fedsm.runs.run_folder import is_federation

    if study is None:
        return
    if not is_federation(run):
        raise UserError(f"{run} is a run of the simulator, which knows no studies", remedy="leave --study out")
    if study != (own := remote.load_job(run)["study"]):
        raise UserError(f"{run} is of study {own!r}, not of {study!r}", remedy="leave --study out")


def add_study(parser: argparse.ArgumentParser, default: str = "FLARE's, default") -> None:
    """Adds the option of a command that opens a session; `default`: what is taken without it, in words."""
    parser.add_argument("--study", metavar="NAME", help=f"the study of the federation (default: {default})")


def add_run_study(parser: argparse.ArgumentParser) -> None:
    """The same where a run's folder is given, which remembers its study."""
    add_study(parser, "the run's")


def _times(text: str) -> int:
    """How often a job goes on by itself."""
    if not text.isdigit() or int(text) > MOST_TIMES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {MOST_TIMES}")
    return int(text)


def add_submission(parser: Parser, supervise: int = 0) -> None:
    """Adds the options of a command that submits; `supervise`: how often a job goes on by itself by default."""
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="the run's folder, of the same shape as `fedsm run`'s")
    add("--force", action="store_true", help="replace the run that --out holds")
    add_study(parser)
    add("--byoc", action="store_true", help="carry the code inside the job (sites must allow it)")
    add_gpus(parser)
    add(
        "--supervise", type=_times, nargs="?", const=SUPERVISE, default=supervise, metavar="N",
        help="let the job go on from its last checkpoint by itself, at most N times, when a site was restarted, a"
        " site's process died or the server came back; only while this command runs"
        f" (--supervise alone: {SUPERVISE}; default: {supervise})",
    )  # fmt: skip
    add("--no-wait", action="store_true", help="only submit; `fedsm fetch` brings the result")
    add_tracking(parser)
    add_job_options(parser)
    add_format(parser)
