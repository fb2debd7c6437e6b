"""`fedsm completion`: a script for the shell, made by shtab from the parser itself; a TAB then starts no Python."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser

_EXAMPLE = """example:
  eval "$(fedsm completion bash)"                # in ~/.bashrc
  eval "$(fedsm completion zsh)"                 # in ~/.zshrc
"""
_ZSH = "autoload -U +X compinit && compinit -u\n"  # where .zshrc has not called it yet


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script that teaches a shell our commands and options."""
    import shtab

    return (_ZSH if shell == "zsh" else "") + shtab.complete(parser, shell)


def add_parser(commands: argparse._SubParsersAction[Parser], whole: Parser) -> None:
    """Adds the command to `fedsm`'s, whose parser is `whole`."""
    parser = commands.add_parser(
        "completion", help="a script for TAB in your shell", epilog=_EXAMPLE,
        description="Prints a script that completes commands, options and file names.",
    )  # fmt: skip
    parser.add_argument("shell", choices=["bash", "zsh"])
    parser.set_defaults(do=lambda args: print(script(args.shell, whole)) or 0)
