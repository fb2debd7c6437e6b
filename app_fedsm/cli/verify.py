"""`fedsm verify`: whether a run or a super model is as its federation's server signed it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.output import Result, add_format
from app_fedsm.cli.parser import RUN_HELP, complete_files
from fedsm.core.errors import UserError
from fedsm.core.text import printable

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser
    from fedsm.core.trust import Trust
    from fedsm.super_model.record import SignedRecord

_EXAMPLE = """example:
  fedsm verify runs/first --kit hospital-1
  fedsm predict runs/first images -o predictions --verify hospital-1
"""
_DESCRIPTION = """Compares a run, or a super model alone, with the record that was signed when it ended: super model,
results.json, accepted.jsonl and checkpoints. Needs no network and changes nothing. With --kit it also checks that the
server of that kit's federation signed it. One line for each problem, naming the file.

Exit codes: 0 as it was signed, 1 it is not, or there is no record, 2 bad input."""
VERIFY_HELP = (
    "use it only if it is signed: by the server of this startup kit's federation, by this public key, or (`any`) by"
    " anybody, so that it has not changed since; see `fedsm verify`"
)
ANY = "any"


def _verify(args: argparse.Namespace) -> Result:
    from app_fedsm.cli.verify_document import Verification
    from fedsm.core.trust import Trust, trust_in
    from fedsm.super_model.verify import verify

    if args.kit and args.key:
        raise UserError("--kit and --key are two ways to say who signed", remedy="give one")
    given = args.kit or args.key
    if args.kit and not args.kit.is_dir():
        raise UserError(f"{args.kit} is no folder", remedy="--kit is the folder above startup/")
    trust = trust_in(given) if given else Trust()
    verdict = verify(args.run, trust)
    if verdict.record:
        print("\n".join(_about(verdict.record, trust)))
    for folder in verdict.removed:
        print(f"removed since: {printable(folder)}, as `fedsm clean` and --slim do")
    for note in verdict.notes:
        print(f"note: {printable(note)}")
    for file, what in verdict.problems:
        print(f"fedsm: {printable(file)}: {printable(what)}", file=sys.stderr)
    print(f"{verdict.intact} files are as they were signed, {len(verdict.problems)} problems")
    return Result(int(bool(verdict.problems)), Verification.of(args.run, verdict, trust))


def _about(signed: SignedRecord, trust: Trust) -> list[str]:
    """What the record says, and whose it is."""
    from fedsm.core.signing import encode

    record = signed.record
    by = f", submitted by {record.submitter.name} ({record.submitter.org})" if record.submitter else ""
    job = f", job {record.job_id} in study {record.study}" if record.job_id else ""
    versions = ", ".join(f"{name} {number}" for name, number in record.versions.items())
    lines = [
        f"{record.method} for {record.task}: {record.rounds} rounds, {len(record.sites)} sites"
        f" ({', '.join(record.sites)})",
        f"run {record.run_id or '-'}{job}{by}; signed on {record.made}",
        f"made with {versions}",
    ]
    if record.forgotten:
        lines.append(f"without {', '.join(record.forgotten)}, which had left")
    return [printable(line) for line in (*lines, f"key {encode(signed.public)}: {_whose(signed, trust)}")]


def _whose(signed: SignedRecord, trust: Trust) -> str:
    if trust.problem(signed.public, signed.voucher, signed.made):
        return "not to be trusted"
    if trust.root:
        return f"checked against the root of {trust.what}"
    if trust.public:
        return "the one that was given"
    if signed.record.made_by == "simulator":
        return "of whoever ran the simulator: it shows that nothing has changed since, and nothing more"
    return "not checked: give --kit with your startup kit, which knows the federation's root"


def chosen_trust(text: str | None) -> str | bool:
    """What `--verify` was given, as `SuperModel.load` takes it."""
    return False if text is None else True if text == ANY else text


def add_verify(parser: Parser) -> None:
    """Adds `--verify` to a command that uses a super model."""
    complete_files(parser.add_argument("--verify", metavar="KIT", help=VERIFY_HELP))


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command to `fedsm`'s."""
    parser = commands.add_parser(
        "verify", help="whether a run or super model is as it was signed", description=_DESCRIPTION, epilog=_EXAMPLE
    )
    parser.add_argument("run", type=Path, metavar="RUN", help=RUN_HELP)
    parser.add_argument("--kit", type=Path, metavar="KIT", help="your startup kit: the server of its federation signed")
    complete_files(
        parser.add_argument("--key", metavar="KEY", help="the owner of this public key signed: a PEM file, or its text")
    )
    add_format(parser)
    parser.set_defaults(do=_verify)
