"""`fedsm poc`, `fedsm submit`, `fedsm fetch`, `fedsm status`: jobs on a federation of real processes."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.job_options import add_job_options, settings_of
from app_fedsm.cli.parser import Parser
from app_fedsm.cli.run import FROM_ROUND
from fedsm.core.errors import UserError
from fedsm.core.text import printable

if TYPE_CHECKING:
    from fedsm.core.settings import JobSettings

_POC_DIR = Path("poc")
_SYNTHETIC_SITES = 3
_GPUS = re.compile(r"(?:(?P<site>[^=]+)=)?(?P<count>\d+)(?::(?P<memory>\d+))?")

_POC_EXAMPLE = """example:
  fedsm poc up                                             # three synthetic sites; or --data ROOT
  fedsm poc submit --task retinal --rounds 3 --size 64 --out runs/poc
  fedsm poc status
  fedsm poc down
"""
_SUBMIT_EXAMPLE = """example:
  fedsm submit --kit lead@hospital.org --sites site-1 site-2 --task retinal --rounds 20 --out runs/first
"""


def _up(args: argparse.Namespace) -> int:
    from app_fedsm.federation.poc import Poc
    from fedsm.data.site_folder import list_sites
    from fedsm.data.synthetic import write_sites

    poc = Poc(args.dir)
    root = args.data or poc.folder / "data"
    if args.data is None and not root.exists():
        write_sites(root, args.sites or _SYNTHETIC_SITES, seed=0)
    elif args.sites is not None:
        raise UserError(f"--sites is for synthetic sites, and {root} is there already; leave it out")
    sites = list_sites(root)
    if len(sites) < 2:
        raise UserError(f"{root} holds {len(sites)} site; a federation needs at least 2")
    poc.prepare(root, sites, args.port, args.device)
    poc.start(args.gpu)
    print(f"{len(sites)} sites connected: {', '.join(sites)}\nkits: {poc.kits}\nnext: fedsm poc submit --help")
    return 0


def _down(args: argparse.Namespace) -> int:
    from app_fedsm.cli import status
    from app_fedsm.federation import session
    from app_fedsm.federation.poc import Poc

    poc = Poc(args.dir)
    if not poc.flare.exists():
        raise UserError(f"{poc.folder} holds no POC; nothing to stop")
    if not args.force and poc.connected():
        with session.connect(poc.lead) as opened:
            running = [job["job_id"] for job in opened.list_jobs() or [] if job["status"] == "RUNNING"]
        if running:
            job = status.of_job(poc.lead, running[0])
            raise UserError(f"a job runs: {job}; wait for it (`fedsm fetch RUN`), or --force")
    poc.stop()
    if args.keep:
        print(f"stopped; {poc.flare} stays, and `fedsm poc up` starts it again")
        return 0
    poc.remove()
    print("stopped and removed; runs that were downloaded and data stay")
    return 0


def _poc_submit(args: argparse.Namespace) -> int:
    from app_fedsm.federation.poc import Poc
    from app_fedsm.runs import simulate
    from fedsm.data.findings import warnings_of

    settings = settings_of(args)
    poc = Poc(args.dir)
    note = poc.note
    for line in warnings_of(simulate.check_data(Path(note["data"]), settings, args.task or settings.task.name)):
        print(line, file=sys.stderr)
    return _run(args, poc.lead, settings, note["sites"])


def _submit(args: argparse.Namespace) -> int:
    from fedsm.nets import try_networks
    from fedsm.tracks import check_tracks

    settings = settings_of(args)
    sites = _connected(args.kit, int(args.sites[0])) if _is_count(args.sites) else args.sites
    check_tracks(settings, sites)
    try_networks(settings, len(sites))
    return _run(args, args.kit, settings, sites)


def _is_count(sites: list[str]) -> bool:
    return len(sites) == 1 and sites[0].isdigit()


def _connected(kit: Path, count: int) -> list[str]:
    """The connected sites, if there are exactly `count`."""
    from app_fedsm.federation import session

    with session.connect(kit) as opened:
        here = session.registered(opened)
    if len(here) != count:
        raise UserError(
            f"--sites {count}, but {len(here)} are connected ({', '.join(here) or 'none'});"
            " wait for the others, or name the sites"
        )
    return here


def _run(args: argparse.Namespace, kit: Path, settings: JobSettings, sites: list[str]) -> int:
    """Submits, follows and fetches."""
    from app_fedsm.federation import remote
    from app_fedsm.runs.run_folder import prepare_folder

    resources = parse_gpus(args.gpus or [], sites)
    if len(sites) < settings.min_sites:
        raise UserError(f"{len(sites)} sites, but min_sites is {settings.min_sites}: no round could be closed")
    remote.check_connected(kit, sites)
    prepare_folder(args.out, resume=False, force=args.force)
    job_id = remote.submit(kit, settings, args.out, sites, args.byoc, resources)
    print(f"job {job_id}: {len(sites)} sites, {settings.rounds} rounds", file=sys.stderr)
    if args.no_wait:
        print(f"fedsm fetch {shlex.quote(str(args.out))}")
        return 0
    return _follow(args.out)


def _follow(out: Path) -> int:
    from app_fedsm.federation import remote
    from app_fedsm.runs.hints import go_on_remotely, in_words

    try:
        results = remote.finish(out)
    except KeyboardInterrupt:
        run = shlex.quote(str(out))
        print(f"\nthe job goes on; `fedsm fetch {run}` waits for it, `fedsm status {run}` asks", file=sys.stderr)
        return 130
    except remote.JobFailed as e:
        print(f"fedsm: the job failed: {printable(e)}\n{go_on_remotely(out)}", file=sys.stderr)
        return 1
    print(in_words(out, results))
    return 0


def _fetch(args: argparse.Namespace) -> int:
    return _follow(args.run)


def _resume(args: argparse.Namespace) -> int:
    from app_fedsm.cli.main import main
    from app_fedsm.federation import remote
    from app_fedsm.runs.run_folder import is_federation

    if not is_federation(args.run):
        if args.join:
            raise UserError("--join is for federations; in the simulator a new folder below --data joins")
        given = {"--rounds": args.rounds, "--from-round": args.from_round}
        more = [word for option, n in given.items() if n is not None for word in (option, str(n))]
        return main(["run", "--resume", "--out", str(args.run), *more])
    if args.from_round is None and not args.join and _has_finished(args.run, args.rounds):
        return 0
    job_id, away = remote.resume(args.run, args.rounds, args.join, args.from_round)
    last = "the last checkpoint" if args.from_round is None else f"the checkpoint of round {args.from_round}"
    print(f"job {job_id} goes on from {last}", file=sys.stderr)
    if away:
        print(f"not connected: {', '.join(away)}; when they are back, `fedsm resume` takes them in", file=sys.stderr)
    return _follow(args.run)


def _has_finished(out: Path, rounds: int | None) -> bool:
    """Whether a job has finished and no more rounds are asked for; then it prints that."""
    from app_fedsm.federation import remote
    from app_fedsm.runs.hints import finished
    from app_fedsm.runs.run_folder import RESULTS
    from fedsm.core.plain_json import read_json, reading

    if not (out / RESULTS).is_file():
        return False
    with reading(out / RESULTS, "copy the run again, or submit the job again with --force"):
        results = read_json(out / RESULTS)
        done, sites = results["rounds"], results["sites"]
    if rounds not in (None, done) or set(remote.load_job(out)["sites"]) != set(sites):
        return False
    print(finished(out, done))
    return True


def _status(args: argparse.Namespace) -> int:
    from app_fedsm.cli import status

    if (args.run is None) == (args.kit is None):
        raise UserError("give a run's folder, or --kit with the startup kit of a user; see `fedsm status --help`")
    print(status.of_run(args.run) if args.run else status.of_server(args.kit))
    return 0


def _poc_status(args: argparse.Namespace) -> int:
    from app_fedsm.cli import status
    from app_fedsm.federation.poc import Poc

    poc = Poc(args.dir)
    sites = poc.note["sites"]
    print(status.of_server(poc.lead))
    connected = poc.connected()
    away = [site for site in sites if site not in connected]
    if away:
        print(f"not connected: {', '.join(away)}; `fedsm poc up --dir {shlex.quote(str(args.dir))}` starts them")
    return int(bool(away))


def parse_gpus(given: list[str], sites: list[str] | None = None) -> dict[str, dict]:
    """From `[SITE=]N[:GiB]` to what the job asks of the sites' resource managers; `sites`: the sites of the job.

    Raises:
        UserError: it is not of this form, or names a site that takes no part.
    """
    resources = {}
    for text in given:
        found = _GPUS.fullmatch(text)
        if not found:
            raise UserError(f"--gpus {text!r}: write [SITE=]N[:GiB], as in 1:8 or site-2=2:16")
        if found["site"] and sites is not None and found["site"] not in sites:
            raise UserError(f"--gpus {text!r}: no site {found['site']!r}; there are {', '.join(sites)}")
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


def _add_submission(parser: Parser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="the run's folder, of the same shape as `fedsm run`'s")
    add("--force", action="store_true", help="replace the run that --out holds")
    add("--byoc", action="store_true", help="carry the code inside the job (sites must allow it)")
    add_gpus(parser)
    add("--no-wait", action="store_true", help="only submit; `fedsm fetch` brings the result")
    add_job_options(parser)


def add_parsers(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the commands to `fedsm`'s."""
    poc = commands.add_parser("poc", help="a federation of real processes on this machine", epilog=_POC_EXAMPLE)
    verbs = poc.add_commands()
    shared = Parser(add_help=False)
    shared.add_argument("--dir", type=Path, default=_POC_DIR, metavar="DIR", help="the POC's folder (default: poc)")

    def verb(name: str, help_text: str, do: Callable[[argparse.Namespace], int]) -> Parser:
        added = verbs.add_parser(name, help=help_text, epilog=_POC_EXAMPLE, parents=[shared])
        added.set_defaults(do=do)
        return added

    up = verb("up", "make the kits, start server and sites, wait until all are connected", _up)
    up.add_argument(
        "--data", type=Path, metavar="ROOT", help="folder with one sub-folder per site (default: synthetic)"
    )
    up.add_argument("--sites", type=int, metavar="N", help=f"synthetic sites (default: {_SYNTHETIC_SITES})")
    up.add_argument("--port", type=int, default=8002, help="the server's port (default: 8002)")
    up.add_argument("--device", metavar="D", help="device of all sites: cpu, cuda, cuda:N (default: CUDA where it is)")
    up.add_argument("--gpu", type=int, nargs="+", metavar="ID", help="GPUs to share among the sites' processes")
    _add_submission(verb("submit", "run a job on it and download the result", _poc_submit))
    verb("status", "sites and jobs", _poc_status)
    down = verb("down", "stop everything and clean up", _down)
    down.add_argument("--keep", action="store_true", help="stop only; kits, jobs and results stay")
    down.add_argument("--force", action="store_true", help="also while a job runs")

    submit = commands.add_parser(
        "submit", help="run a job on a provisioned federation", epilog=_SUBMIT_EXAMPLE,
        description="Submits a job with a user's startup kit, follows it and downloads the result.",
    )  # fmt: skip
    submit.add_argument("--kit", type=Path, required=True, metavar="KIT", help="your startup kit")
    submit.add_argument(
        "--sites", nargs="+", required=True, metavar="SITE", help="the sites that take part, or how many there must be"
    )
    _add_submission(submit)
    submit.set_defaults(do=_submit)

    fetch = commands.add_parser(
        "fetch", help="wait for a submitted job and download its result",
        epilog="example:\n  fedsm fetch runs/first\n",
    )  # fmt: skip
    fetch.add_argument("run", type=Path, metavar="RUN", help="the folder that was given to --out")
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
    resume.set_defaults(do=_resume)

    status = commands.add_parser(
        "status", help="how far a run is",
        epilog="example:\n  fedsm status runs/first\n  fedsm status --kit lead@hospital.org\n",
        description="Rounds, sites that answer, last Dice and time left, of a run's folder or of all jobs of a server.",
    )  # fmt: skip
    status.add_argument("run", type=Path, nargs="?", metavar="RUN", help="a run's folder")
    status.add_argument("--kit", type=Path, metavar="KIT", help="a user's startup kit")
    status.set_defaults(do=_status)
