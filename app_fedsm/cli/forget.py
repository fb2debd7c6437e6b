"""`fedsm forget SITE RUN`: a site leaves a run for good."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.submission import add_run_study, check_study
from fedsm.core.errors import UserError

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser

_EXAMPLE = """example:
  fedsm forget site-2 runs/first                      # in place; asks first
  fedsm forget site-2 runs/first -o runs/without --yes
  fedsm resume runs/without --rounds 40               # goes on with the others
"""
_SELECTORS = {
    "selector_statistics": "its sums are removed; the classes are computed again, exactly, from the others' sums",
    None: "there is none",
}
_TRAINED = "its output is removed: the softmax is over the others; nothing is trained again"


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command."""
    forget = commands.add_parser(
        "forget", help="remove a site from a run for good", epilog=_EXAMPLE,
        description="Removes a site's personal model, statistics and entries from a run's checkpoint and super model."
        " What it added to the weights that all sites share stays in them. gamma and results.json do not change. For a"
        " federation's run the server's checkpoint is rewritten, too, and the jobs that it stores are deleted.",
    )  # fmt: skip
    forget.add_argument("site", metavar="SITE", help="the site's name")
    forget.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    forget.add_argument("-o", "--out", type=Path, metavar="OUT", help="write to this folder and leave RUN as it is")
    forget.add_argument("--yes", action="store_true", help="do not ask")
    add_run_study(forget)
    forget.set_defaults(do=_forget)


def _forget(args: argparse.Namespace) -> int:
    from app_fedsm.federation.forget_remote import forget_remotely, leave_run
    from app_fedsm.runs.run_folder import RUN, is_federation
    from fedsm.server.forget import Forgetting, copy_rest
    from fedsm.server.run_record import is_own, sign_again

    check_study(args.run, args.study)
    forgetting = Forgetting(args.run, args.site)
    plan, out = forgetting.plan, args.out or args.run
    same = out.resolve() == args.run.resolve()
    federated = (args.run / RUN).is_file() and is_federation(args.run)
    if federated and not same:
        raise UserError("a federation forgets a site in place, here and on its server", remedy="leave out -o")
    if same and not args.yes and not sys.stdin.isatty():
        raise UserError(
            f"forgetting {plan.site!r} in {out} cannot be undone", remedy="give --yes, or -o OUT for a copy"
        )
    print(f"site {plan.site} leaves; {', '.join(plan.sites)} stay", file=sys.stderr)
    print(f"checkpoint of round {plan.round}: will be rewritten, older ones removed", file=sys.stderr)
    print(f"selector: {_SELECTORS.get(plan.selector, _TRAINED)}", file=sys.stderr)
    print(f"super model: {'will be written again' if plan.has_super_model else 'there is none'}", file=sys.stderr)
    if federated:
        print("server: its checkpoint will be rewritten, its stored jobs of this run deleted", file=sys.stderr)
    if same and not args.yes and not _confirmed(plan.site, args.run):
        print("nothing was changed", file=sys.stderr)
        return 1
    own = not federated and plan.has_super_model and is_own(args.run)
    if not same:
        copy_rest(args.run, out, plan.site)
    if federated:
        forget_remotely(args.run, plan.site)
    forgetting.write(out)
    if federated:
        leave_run(out, plan.site)
    if own:
        sign_again(out, plan.site)
    print(out)
    return 0


def _confirmed(site: str, run: Path) -> bool:
    return input(f"forget {site} in {run}? This cannot be undone [y/N] ").strip().lower() in ("y", "yes")
