"""FedSM on NVIDIA FLARE: personalized federated segmentation of medical images.

Exit codes: 0 done, 1 a run failed or some files, sites or checks did, 2 bad input (nothing was started), 130 stopped by
Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys

import fedsm
from app_fedsm.cli import (
    clean,
    completion,
    data_commands,
    evaluate,
    experiment_command,
    export_commands,
    federation_commands,
    forget,
    job_commands,
    kit_command,
    onboard,
    poc_commands,
    predict,
    privacy,
    provision_command,
    report,
    run,
    serve,
    site_commands,
    verify,
)
from app_fedsm.cli.output import INVALID_ARGS, JSON, Output, Problem, Result, asks_for_json
from app_fedsm.cli.parser import Parser, UsageError
from app_fedsm.cli.terminal import clean_output
from fedsm.core.errors import UserError
from fedsm.core.private_files import private_files
from fedsm.core.text import printable

# The modules of commands import torch, MONAI and nvflare where the work is done: help and errors come at once.

_EXAMPLE = """example:
  fedsm data synth demo_data
  fedsm run --task retinal --data demo_data --rounds 3 --size 64 --out runs/first
  fedsm predict runs/first demo_data/site-1/images -o predictions
"""


def build_parser() -> Parser:
    """The parser of the whole command."""
    parser = Parser("fedsm", description=__doc__, epilog=_EXAMPLE)
    parser.add_argument("--version", action="version", version=f"fedsm {fedsm.__version__}")
    commands = parser.add_commands("command")
    run.add_parser(commands)
    job_commands.add_parsers(commands)
    experiment_command.add_parser(commands)
    forget.add_parser(commands)
    clean.add_parser(commands)
    data_commands.add_parsers(commands)
    poc_commands.add_parsers(commands)
    federation_commands.add_parsers(commands)
    provision_command.add_parser(commands)
    kit_command.add_parser(commands)
    site_commands.add_parser(commands)
    predict.add_parser(commands)
    serve.add_parser(commands)
    export_commands.add_parser(commands)
    evaluate.add_parser(commands)
    onboard.add_parser(commands)
    report.add_parser(commands)
    verify.add_parser(commands)
    privacy.add_parser(commands)
    completion.add_parser(commands, parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    with private_files(), clean_output():
        return _main(argv)


def _main(argv: list[str] | None) -> int:
    words = sys.argv[1:] if argv is None else argv
    try:
        args = build_parser().parse_args(words)
    except UsageError as e:
        output = Output(asks_for_json(words), e.command)
        output.end(Result(2, error=Problem(INVALID_ARGS, e.message, remedy=e.remedy)))
        raise
    output = Output(getattr(args, "format", None) == JSON, " ".join(_command(args)))
    try:
        with output.for_people():
            result = _do(args)
        return output.end(result)
    except BrokenPipeError:  # `fedsm ... | head`
        sys.stderr.close()
        return 0
    except OSError as e:  # stdout cannot take the document
        return _line(e).exit_code
    except Exception as e:
        output.end(Result(1, error=Problem.of(e)))
        raise


def _command(args: argparse.Namespace) -> list[str]:
    return ["fedsm", *(word for name in ("command", "verb") if (word := getattr(args, name, None)))]


def _do(args: argparse.Namespace) -> Result:
    """Does what was asked; of bad input, one line on stderr."""
    try:
        result = args.do(args)
        return result if isinstance(result, Result) else Result(result)
    except BrokenPipeError:
        raise
    except (UserError, OSError) as e:
        return _line(e)
    except KeyboardInterrupt as e:
        print("stopped", file=sys.stderr)
        return Result(130, error=Problem.of(e))


def _line(error: UserError | OSError) -> Result:
    if isinstance(error, UserError):
        text = printable(error)
    else:
        text = f"{printable(error.filename or '')}: {printable(error.strerror or error)}"
    print(f"fedsm: error: {text}", file=sys.stderr)
    return Result(2, error=Problem.of(error))


if __name__ == "__main__":
    sys.exit(main())
