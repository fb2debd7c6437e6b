"""argparse's parser, which names the nearest option or command where a word is unknown. Errors are one line."""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from fedsm.core.text import printable

RUN_HELP = "the folder of a finished run, or a super model's own"
FILES = {"bash": "_shtab_compgen_files", "zsh": "_files"}  # shtab.FILE, without the import
_OPTION = re.compile(r"--[a-z][a-z-]*")
_CHOICE = re.compile(r"argument (?P<what>.+): invalid choice: '(?P<given>.*)' \(choose from (?P<known>.*)\)", re.DOTALL)


def did_you_mean(given: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown word: the most similar known word, if there is one."""
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def complete_files(action: argparse.Action) -> argparse.Action:
    """Makes TAB complete file names for an option or argument."""
    action.complete = FILES  # type: ignore[attr-defined]  # where shtab looks
    return action


class UsageError(SystemExit):
    """A command line that cannot be parsed: exit code 2, after its line was printed."""

    def __init__(self, command: str, message: str, remedy: str):
        self.command = command
        self.message = message
        self.remedy = remedy
        super().__init__(2)


class Parser(argparse.ArgumentParser):
    """Parses `fedsm` or one of its commands. A group of commands without one prints its help."""

    def __init__(self, *args: Any, **kwargs: Any):
        self._has_commands = False
        self._options: set[str] = set()  # those of groups and parents are in the usage, which has one name of each
        super().__init__(*args, **{"formatter_class": argparse.RawDescriptionHelpFormatter} | kwargs)

    def add_argument(self, *args: Any, **kwargs: Any) -> argparse.Action:
        """argparse's own; a path is completed with the names of files."""
        action = super().add_argument(*args, **kwargs)
        self._options |= set(action.option_strings)
        return complete_files(action) if action.type is Path else action

    def add_commands(self, dest: str = "verb") -> argparse._SubParsersAction[Parser]:
        """The group of this parser's commands, to which they are added."""
        self._has_commands = True
        self.set_defaults(do=self._print_help)
        return self.add_subparsers(dest=dest, metavar="COMMAND", title="commands")

    def _print_help(self, args: argparse.Namespace) -> int:
        self.print_help()
        return 0

    def parse_known_args(  # type: ignore[override]  # argparse declares every way to call it
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """argparse's own, after a look for unknown options: argparse would first ask for the missing ones."""
        words = list(sys.argv[1:] if args is None else args)
        own = itertools.takewhile(lambda word: word.startswith("-") or not self._has_commands, words)
        known = sorted(self._options | set(_OPTION.findall(self.format_usage())))
        for word in itertools.takewhile(lambda word: word != "--", own):
            name = word.partition("=")[0]
            if name.startswith("--") and " " not in name and not any(option.startswith(name) for option in known):
                self.error(f"there is no option {name}{did_you_mean(name, known)}")
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Ends with exit code 2 and one line."""
        if found := _CHOICE.fullmatch(message):
            known = re.findall(r"[\w-]+", found["known"])
            what = "command" if self._has_commands else found["what"]
            message = f"there is no {what} {found['given']!r}"
            message += did_you_mean(found["given"], known) or f"; there are {', '.join(known)}"
        see = f"see `{self.prog} --help`"
        after = f" {see.capitalize()}" if message.endswith("?") else f"; {see}"
        self._print_message(f"{self.prog}: error: {printable(message)}{after}\n", sys.stderr)
        raise UsageError(self.prog, message, see)
