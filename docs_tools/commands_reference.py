"""The reference of the command line, from its own parser: `python -m docs_tools.commands_reference` prints it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

JOB_OPTIONS = "Options of a job"
_CODE = re.compile(r"(`[^`]*`)")


def leaves(
    parser: argparse.ArgumentParser, names: tuple[str, ...] = ()
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each command that does something, with its name: `fedsm data check`."""
    names = names or (parser.prog,)
    nested = next((a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
    if nested is None:
        yield " ".join(names), parser
        return
    for name, child in nested.choices.items():
        yield from leaves(child, (*names, name))


def render() -> str:
    """All commands in Markdown: description, usage, arguments, options, examples."""
    from app_fedsm.cli.main import build_parser

    parser = build_parser()
    commands = dict(leaves(parser))
    top = [action for action in parser._actions if action.option_strings and action.dest != "help"]
    blocks = [_options("Options of `fedsm` itself", top)] if top else []
    run = commands["fedsm run"]
    names = set(run.get_default("job_options") or [])
    shared = [action for action in run._actions if action.dest in names]
    if shared:
        blocks.append(f"## {JOB_OPTIONS}\n\nCommands that build a job take these.\n\n{_list(shared)}")
    blocks += [_command(name, command, names) for name, command in commands.items()]
    return "\n\n".join(blocks) + "\n"


def _command(name: str, parser: argparse.ArgumentParser, shared: set[str]) -> str:
    own = [a for a in parser._actions if a.dest != "help" and a.help is not argparse.SUPPRESS]
    of_job = [a for a in own if a.dest in shared]
    if len(of_job) > 3 and name != "fedsm run":
        own = [a for a in own if a.dest not in shared]
    else:
        of_job = of_job if name == "fedsm run" else []
        own = [a for a in own if a not in of_job]
    blocks = [f"## {name}", _text(parser.description or "")]
    positional = [a for a in own if not a.option_strings]
    usage = [name, *(_metavar(a) + (" ..." if a.nargs in ("+", "*") else "") for a in positional)]
    usage += [_flags(a) for a in own if a.option_strings and a.required]
    blocks.append(f"```text\n{' '.join([*usage, '[options]'])}\n```")
    if own:
        blocks.append(_list(own))
    if of_job:
        left_out = sorted("`--" + n.replace("_", "-") + "`" for n in shared - {a.dest for a in of_job} - {"overrides"})
        but = f", except {', '.join(left_out)}" if left_out else ""
        blocks.append(f"Also the [options of a job](#options-of-a-job){but}.")
    if parser.epilog:
        blocks.append(_examples(parser.epilog))
    return "\n\n".join(block for block in blocks if block)


def _options(title: str, actions: list[argparse.Action]) -> str:
    return f"## {title}\n\n{_list(actions)}"


def _list(actions: list[argparse.Action]) -> str:
    return "\n".join(f"- `{_flags(a)}`: {_help(a)}" for a in actions)


def _help(action: argparse.Action) -> str:
    text = _text((action.help or "").replace("%%", "%"))
    choices = [str(choice) for choice in action.choices or []] if action.option_strings else []
    if not all(choice in text for choice in choices):
        text += f" (one of {', '.join(f'`{choice}`' for choice in choices)})"
    return f"{text} **Required.**" if action.required and action.option_strings else text


def _metavar(action: argparse.Action) -> str:
    names = action.metavar or (action.dest if not action.option_strings else action.dest.upper())
    return " ".join(names) if isinstance(names, tuple) else str(names)


def _flags(action: argparse.Action) -> str:
    if not action.option_strings:
        return _metavar(action)
    takes = "" if action.nargs == 0 else " " + _metavar(action) + (" ..." if action.nargs in ("+", "*") else "")
    return ", ".join(action.option_strings) + takes


def _text(text: str) -> str:
    """Text of a parser as Markdown: `<`, `*` and `_` are no markup outside of code."""
    parts = _CODE.split(text.strip())
    return "".join(p if p.startswith("`") else re.sub(r"([*_])", r"\\\1", p.replace("<", "&lt;")) for p in parts)


def _examples(epilog: str) -> str:
    """An epilog: indented lines are a code block, others text."""
    blocks: list[str] = []
    code: list[str] = []
    for line in [*epilog.splitlines(), ""]:
        if line.startswith("  "):
            code.append(line[2:])
            continue
        if code:
            blocks.append("```bash\n" + "\n".join(code) + "\n```")
            code = []
        if line.strip() and line.strip(" :").lower() not in ("example", "examples"):
            blocks.append(_text(line))
    return "\n\n".join(_joined(blocks))


def _joined(blocks: list[str]) -> list[str]:
    """Neighbouring lines of text as one paragraph."""
    joined: list[str] = []
    for block in blocks:
        if joined and not block.startswith("```") and not joined[-1].startswith("```"):
            joined[-1] += " " + block
        else:
            joined.append(block)
    return joined


if __name__ == "__main__":
    print(render())
