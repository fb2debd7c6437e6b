"""Every `fedsm` command that the documentation shows is one that the parser takes."""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from app_fedsm.cli.main import build_parser
from docs_tools.commands_reference import leaves, render

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / "docs").rglob("*.md"), *(ROOT / "poc_workspace").rglob("*.md"),
    *(ROOT / name for name in ("README.md", "RESULTS.md", "SECURITY.md", "CONTRIBUTING.md")),
]  # fmt: skip
_FENCE = re.compile(r"^( *)```(?:bash|console)?\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`(fedsm [^`]+)`(?!`)")
_END = re.compile(r"\s(?:&&|\||>|;)\s")


def shown_lines(text: str) -> Iterator[str]:
    """The commands in a page's code blocks, one line each, without what follows in a pipe."""
    for fence in _FENCE.finditer(text):
        for line in re.sub(r"\\\n\s*", " ", fence[2]).splitlines():
            command = line.strip().removeprefix("$ ").removeprefix(".venv/bin/")
            if command.startswith("fedsm "):
                yield _END.split(command)[0]


def blocks() -> list:
    found = [(page.relative_to(ROOT), line) for page in PAGES for line in shown_lines(page.read_text(encoding="utf-8"))]
    return [pytest.param(line, id=f"{page}: {line}") for page, line in found]


def inline() -> list:
    texts = [(page.relative_to(ROOT), page.read_text(encoding="utf-8")) for page in PAGES]
    found = [(page, " ".join(m[1].split())) for page, text in texts for m in _INLINE.finditer(text)]
    return [pytest.param(_END.split(line)[0], id=f"{page}: {line}") for page, line in found]


@pytest.fixture(scope="module")
def parser():
    return build_parser()


@pytest.fixture(scope="module")
def commands(parser) -> dict:
    return dict(leaves(parser))


def test_commands_are_found():
    """The search itself works: without it the tests below would pass on nothing."""
    text = "\n```bash\n$ .venv/bin/fedsm run --out a \\\n    --size 64  # why\ncd x\nfedsm data check B > file\n```\n"
    assert list(shown_lines(text)) == ["fedsm run --out a  --size 64  # why", "fedsm data check B"]
    assert len(blocks()) > 50 and len(inline()) > 50


@pytest.mark.parametrize("line", blocks())
def test_a_command_in_a_code_block_parses(line, parser):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(shlex.split(line, comments=True)[1:])
    except SystemExit:
        pytest.fail(said.getvalue())


@pytest.mark.parametrize("line", inline())
def test_a_command_in_a_sentence_is_known(line, commands):
    """It may leave out arguments, but its words and options must be there."""
    words = line.split()
    names = [name for name in commands if name.split()[: len(words)] == words[: len(name.split())]]
    assert names, f"no such command: {line}"
    known = {flag for name in names for action in commands[name]._actions for flag in action.option_strings}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in known, f"{word} is no option of {names[0]}"


def test_the_reference_has_every_command_and_option(commands):
    text = render()
    for name, parser in commands.items():
        assert f"\n## {name}\n" in f"\n{text}", name
        for action in parser._actions:
            if action.dest != "help":
                shown = action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest)
                assert shown in text, (name, shown)
