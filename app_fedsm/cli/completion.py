"""`fedsm completion`: a script for the shell, made from the parser itself; a TAB then starts no Python."""

from __future__ import annotations

import argparse
import shlex

_EXAMPLE = """example:
  source <(fedsm completion bash)                # in ~/.bashrc
  source <(fedsm completion zsh)                 # in ~/.zshrc
"""
_SCRIPT = """_fedsm() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" path="fedsm" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case " ${{_fedsm_verbs["$path"]}} " in *" ${{COMP_WORDS[i]}} "*) path="$path ${{COMP_WORDS[i]}}" ;; esac
  done
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "${{_fedsm_options["$path"]}}" -- "$word"))
  elif [[ -n ${{_fedsm_verbs["$path"]}} ]]; then
    COMPREPLY=($(compgen -W "${{_fedsm_verbs["$path"]}}" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
declare -gA _fedsm_verbs=({verbs})
declare -gA _fedsm_options=({options})
complete -o filenames -F _fedsm fedsm
"""
_ZSH = "autoload -U +X compinit && compinit -u\nautoload -U +X bashcompinit && bashcompinit\n"


def words_of(parser: argparse.ArgumentParser, path: str = "fedsm") -> dict[str, tuple[list[str], list[str]]]:
    """The words that may follow each command, by its path (`fedsm data check`): verbs, and options."""
    options = [option for action in parser._actions for option in action.option_strings]
    verbs: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            verbs |= action.choices
    found = {path: (list(verbs), options)}
    for name, verb in verbs.items():
        found |= words_of(verb, f"{path} {name}")
    return found


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script that teaches a shell our commands and options."""
    words = words_of(parser)

    def table(index: int) -> str:
        return " ".join(f"[{shlex.quote(path)}]={shlex.quote(' '.join(w[index]))}" for path, w in words.items())

    return (_ZSH if shell == "zsh" else "") + _SCRIPT.format(verbs=table(0), options=table(1))


def add_parser(commands: argparse._SubParsersAction, whole: argparse.ArgumentParser) -> None:
    """Adds the command to `fedsm`'s, whose parser is `whole`."""
    parser = commands.add_parser(
        "completion", help="a script for TAB in your shell", epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Prints a script that completes commands, options and file names.",
    )  # fmt: skip
    parser.add_argument("shell", choices=["bash", "zsh"])
    parser.set_defaults(do=lambda args: print(script(args.shell, whole)) or 0)
