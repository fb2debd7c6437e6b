"""`fedsm serve`: a super model on a web page and as a REST service."""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.parser import RUN_HELP
from app_fedsm.cli.verify import add_verify, chosen_trust
from fedsm.core.errors import UserError

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser
    from fedsm.serve.run import Listening

_EXAMPLE = """example:
  fedsm serve runs/first
  fedsm serve runs/first --host 0.0.0.0 --certificate server.pem --key server.key --token-file token.txt
"""
_DESCRIPTION = """Serves a super model: a page for the browser, a REST interface (described at /openapi.json) and MONAI
Label's protocol for 3D Slicer. Not for clinical use.

Only this machine can reach it, unless --host says otherwise; then clients need a token, which is made and printed if
--token-file does not give one. Uploads and results are in memory only, for half an hour at most, unless --keep names a
folder. Needs: pip install 'fedsm[serve]'."""


def _serve(args: argparse.Namespace) -> int:
    from fedsm.core.private_files import check_own_place
    from fedsm.serve.run import Listening, needs

    if bool(args.certificate) != bool(args.key):
        raise UserError("--certificate and --key belong together")
    for name, least in (("port", 0), ("threads", 1), ("max_upload", 1), ("timeout", 1)):
        if (value := getattr(args, name)) is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
    if args.port > 65535:
        raise UserError(f"--port must be at most 65535, got {args.port}")
    needs()
    if args.keep:
        check_own_place(args.keep)
        args.keep.mkdir(parents=True, exist_ok=True)
    listening = Listening(args.host, args.port, tuple(args.allow_host), args.certificate, args.key)
    token, made = _token(args.token_file, listening)
    with contextlib.closing(listening.bind()) as listener:
        _run(args, listening, listener, token, made)
    return 0


def _token(file: Path | None, listening: Listening) -> tuple[str | None, bool]:
    """The token, and whether it was made just now."""
    from fedsm.serve.token import new_token, read_token

    if file:
        return read_token(file), False
    return (None, False) if listening.is_local else (new_token(), True)


def _run(
    args: argparse.Namespace, listening: Listening, listener: socket.socket, token: str | None, made: bool
) -> None:
    from dataclasses import replace

    import torch

    from app_fedsm.runs.run_folder import find_super_model
    from fedsm.serve.limits import MIB, ServeLimits
    from fedsm.serve.run import run
    from fedsm.serve.service import Service
    from fedsm.super_model.model import SuperModel

    if args.threads:
        torch.set_num_threads(args.threads)
    model = SuperModel.load(find_super_model(args.run), args.device, chosen_trust(args.verify))
    limits = replace(ServeLimits(), upload=args.max_upload * MIB, seconds=args.timeout)

    service = Service(model, limits, args.keep)
    secret = f"#token={token}" if made else ""
    address = listening.address(listener.getsockname()[1])
    print(f"{address}{secret}  (Ctrl-C stops it; not for clinical use)", flush=True)
    if not listening.is_local and not listening.certificate:
        print(
            "fedsm: images and the token travel unencrypted: give --certificate and --key, or let only a proxy that"
            " encrypts reach this port", file=sys.stderr,
        )  # fmt: skip
    if args.keep:
        print(f"images of patients are kept in: {args.keep}", flush=True)
    run(service, listening, listener, token)


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command to `fedsm`'s."""
    parser = commands.add_parser(
        "serve", help="a super model on a web page and as a REST service", description=_DESCRIPTION, epilog=_EXAMPLE
    )
    parser.add_argument("run", type=Path, metavar="RUN", help=RUN_HELP)
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="where to listen (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000, metavar="P", help="port (default: 8000; 0: a free one)")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="the token that clients need, one line")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="a name by which clients call this machine, for example a proxy's (may be repeated)",
    )  # fmt: skip
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="PEM file: serve HTTPS")
    parser.add_argument("--key", type=Path, metavar="FILE", help="its key")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep uploads and masks in this folder")
    parser.add_argument("--max-upload", type=int, default=256, metavar="MB", help="largest upload (default: 256)")
    parser.add_argument("--timeout", type=float, default=120, metavar="S", help="seconds per request (default: 120)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the networks (default: one per core)")
    parser.add_argument("--device", metavar="D", help="e.g. cuda:0 (default: CUDA when present, else the CPU)")
    add_verify(parser)
    parser.set_defaults(do=_serve)
