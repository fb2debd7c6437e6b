"""`fedsm poc`: a federation of real processes on this machine."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from app_fedsm.cli.job_options import settings_of
from app_fedsm.cli.output import Result, add_format
from app_fedsm.cli.parser import Parser
from app_fedsm.cli.submission import SUPERVISE, add_study, add_submission, login_of, submit_and_follow
from fedsm.core.errors import UserError

_POC_DIR = Path("poc")
_SYNTHETIC_SITES = 3

_EXAMPLE = """example:
  fedsm poc up                                             # three synthetic sites; or --data ROOT
  fedsm poc submit --task retinal --rounds 3 --size 64 --out runs/poc
  fedsm poc status
  fedsm poc down
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
        raise UserError(f"--sites is for synthetic sites, and {root} is there already", remedy="leave it out")
    sites = list_sites(root)
    if len(sites) < 2:
        raise UserError(f"{root} holds {len(sites)} site", remedy="a federation needs at least 2")
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
        raise UserError(f"{poc.folder} holds no POC to stop")
    if not args.force and poc.connected():
        login = session.Login(poc.lead)
        with session.connect(login) as opened:
            running = [job["job_id"] for job in opened.list_jobs() or [] if job["status"] == "RUNNING"]
        if running:
            job = status.describe(status.of_job(login, running[0]))
            raise UserError(f"a job runs: {job}", remedy="wait for it (`fedsm fetch RUN`), or --force")
    poc.stop()
    if args.keep:
        print(f"stopped; {poc.flare} stays, and `fedsm poc up` starts it again")
        return 0
    poc.remove()
    print("stopped and removed; runs that were downloaded and data stay")
    return 0


def _submit(args: argparse.Namespace) -> Result:
    from app_fedsm.federation.poc import Poc
    from app_fedsm.runs import simulate
    from app_fedsm.tracking import choose_tracking
    from fedsm.data.findings import warnings_of

    settings = settings_of(args)
    tracking = choose_tracking(args.track, args.track_uri)
    tracking.check_answers()  # the server runs on this machine
    poc = Poc(args.dir)
    note = poc.note
    for line in warnings_of(simulate.check_data(Path(note["data"]), settings, args.task or settings.task.name)):
        print(line, file=sys.stderr)
    return submit_and_follow(args, login_of(args, poc.lead), settings, note["sites"], tracking)


def _status(args: argparse.Namespace) -> Result:
    from app_fedsm.cli import status
    from app_fedsm.federation.poc import Poc

    poc = Poc(args.dir)
    sites = poc.note["sites"]
    found = status.of_server(login_of(args, poc.lead))
    print(status.describe_server(found))
    connected = poc.connected()
    away = [site for site in sites if site not in connected]
    if away:
        print(f"not connected: {', '.join(away)}; `fedsm poc up --dir {shlex.quote(str(args.dir))}` starts them")
    return Result(int(bool(away)), found.model_copy(update={"not_connected": away}))


def add_parsers(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command to `fedsm`'s."""
    poc = commands.add_parser("poc", help="a federation of real processes on this machine", epilog=_EXAMPLE)
    verbs = poc.add_commands()
    shared = Parser(add_help=False)
    shared.add_argument("--dir", type=Path, default=_POC_DIR, metavar="DIR", help="the POC's folder (default: poc)")

    def verb(name: str, help_text: str, do: Callable[[argparse.Namespace], int | Result]) -> Parser:
        added = verbs.add_parser(name, help=help_text, epilog=_EXAMPLE, parents=[shared])
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
    add_submission(verb("submit", "run a job on it and download the result", _submit), SUPERVISE)
    shown = verb("status", "sites and jobs", _status)
    add_study(shown)
    add_format(shown)
    down = verb("down", "stop everything and clean up", _down)
    down.add_argument("--keep", action="store_true", help="stop only; kits, jobs and results stay")
    down.add_argument("--force", action="store_true", help="also while a job runs")
