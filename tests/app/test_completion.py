"""TAB in a real bash: commands, options, and what they do not fit."""

import shutil
import subprocess

import pytest

from app_fedsm.cli.completion import script
from app_fedsm.cli.main import build_parser
from app_fedsm.cli.parser import FILES


def complete(*words: str) -> set[str]:
    """What bash offers after these words; the last one is begun."""
    line = " ".join(f"'{word}'" for word in ("fedsm", *words))
    ask = f'COMP_WORDS=({line}); COMP_CWORD={len(words)}; _shtab_fedsm; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script('bash', build_parser())}\n{ask}"], capture_output=True, text=True)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pre"], {"predict"}),
        (["poc", ""], {"up", "submit", "status", "down"}),
        (["poc", "up", "--po"], {"--port"}),
        (["data", "check", "--ta"], {"--task"}),
        (["run", "--min"], {"--min-sites"}),
        (["run", "--norm-check", "cl"], {"clip"}),
        (["poc", "--gam"], set()),
    ],
)
def test_words(words, offered):
    assert complete(*words) == offered


@pytest.mark.parametrize("before", [["predict"], ["predict", "run"], ["run", "--data"], ["data", "check", "--sheets"]])
def test_file_names(tmp_path, monkeypatch, before):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scan.nii").touch()
    assert complete(*before, "sc") == {"scan.nii"}


def test_shtab_knows_files_by_the_same_name():
    import shtab

    assert FILES.items() <= shtab.FILE.items()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_zsh_takes_the_script(tmp_path):
    (tmp_path / "script").write_text(f"eval \"$(cat <<'END'\n{script('zsh', build_parser())}\nEND\n)\"\n")
    assert subprocess.run(["zsh", "-f", str(tmp_path / "script")], capture_output=True).stderr == b""
