"""Row 20: the name of a file, a site or a label is shown; it is never a formula or a command to a terminal."""

import csv
import io
import json
import os
import shutil

import pytest
from PIL import Image
from tqdm import tqdm

from app_fedsm.cli.main import main
from app_fedsm.experiments.grid_format import Line, as_csv, as_markdown
from app_fedsm.runs.progress import show
from fedsm.core.errors import UserError
from fedsm.core.tables import markdown_table
from tests.helpers.small_jobs import write_site
from tests.helpers.small_model import write_super_model

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[1A\rall is well\x9b31m\u202e"
FORMULAS = ["=cmd|'calc'!A1", "+1+1", "-1+1|x", "@SUM(A1)", "\t=1+1", "\rx", " =1+1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_super_model(tmp_path_factory.mktemp("model"))


def unsafe(text: str) -> list[str]:
    """Characters that a terminal obeys, beyond line breaks and what a bar needs."""
    return [c for c in text.replace("\x1b[A", "") if not c.isprintable() and c not in "\n\r"]


def test_file_names_in_the_table_of_predictions(model, tmp_path, capsys):
    folder, out = tmp_path / "images", tmp_path / "out"
    folder.mkdir()
    names = [f"{name.replace('/', '')}.png" for name in FORMULAS] + [f"{ESCAPES}.png", "plain.png"]
    for name in names:
        Image.new("RGB", (40, 40), (90, 60, 30)).save(folder / name)
    (folder / os.fsdecode(b"no text \xff.png")).write_bytes((folder / "plain.png").read_bytes())
    (folder / f"broken {ESCAPES}.png").write_bytes(b"no picture")
    assert main(["predict", str(model), str(folder), "-o", str(out)]) == 1
    told = capsys.readouterr()
    assert "cannot be read" in told.err and not unsafe(told.out + told.err) and "\rall is well" not in told.err
    raw = (out / "predictions.csv").read_bytes().decode()
    assert not unsafe(raw)
    rows = list(csv.DictReader(io.StringIO(raw)))
    assert len(rows) == len(names) + 1
    assert not [row["file"] for row in rows if row["file"].lstrip().startswith(("=", "+", "-", "@"))]
    assert {"'=cmd|'calc'!A1.png", "'+1+1.png", "' =1+1.png", "plain.png"} <= {row["file"] for row in rows}
    assert all(float(row["seconds"]) >= 0 and int(row["disc_pixels"]) >= 0 for row in rows), "numbers stay numbers"


def test_rows_of_an_experiment_and_labels_of_an_evaluation():
    line = Line(FORMULAS[0], {"=1+1": [0.5], "b": [-0.25]})
    head, row = list(csv.reader(io.StringIO(as_csv([line]))))
    assert head[2] == "'=1+1" and row[0] == f"'{FORMULAS[0]}" and float(row[4]) == -0.25
    tables = as_markdown([Line(ESCAPES, {"a|b": [0.5]})]), markdown_table(["a|b", ESCAPES], [["1", "2"]])
    assert all("a\\|b" in text and not unsafe(text) and "\r" not in text for text in tables)


def test_errors_and_checks(tmp_path, capsys):
    """An error is printed at one place, whatever its text holds; `data check` names files and sites."""
    assert main(["predict", str(tmp_path / f"no {ESCAPES}\nfedsm: all is well"), "x", "-o", str(tmp_path / "o")]) == 2
    told = capsys.readouterr().err
    assert not unsafe(told) and len(told.splitlines()) == 1 and "\r" not in told
    for site in (f"site{ESCAPES}", "site-2"):
        write_site(tmp_path / "data" / site, 6, 0)
    shutil.copy(tmp_path / "data/site-2/images/case_00.png", tmp_path / f"data/site-2/images/{ESCAPES}.png")
    assert main(["data", "check", str(tmp_path / "data"), "--task", "retinal", "--sheets", str(tmp_path / "s")]) == 1
    told = capsys.readouterr()
    assert "without mask" in told.out and not unsafe(told.out + told.err) and "\r" not in told.out


def test_what_a_command_prints_without_a_thought(monkeypatch, capsys):
    """The streams themselves are clean, so that a new message cannot be forgotten."""

    def command(args) -> int:
        print(ESCAPES)
        raise UserError(ESCAPES)

    monkeypatch.setattr("app_fedsm.cli.main.build_parser", lambda: _Parser(command))
    assert main([]) == 2
    told = capsys.readouterr()
    assert not unsafe(told.out + told.err) and "\r" not in told.out + told.err


def test_the_bar_of_a_run():
    """What sites say reaches the bar by the server's events."""
    file = io.StringIO()
    with tqdm(total=2, file=file, ascii=True) as bar:
        event = {"event": "refused", "round": 1, "site": ESCAPES, "reason": ESCAPES}
        lines = io.StringIO()
        bar.write = lambda line, _: lines.write(line)
        assert show(bar, event) is None
        show(bar, {"event": "round", "round": 1, "score": {}, "missing": {ESCAPES: "away"}})
        assert not unsafe(show(bar, {"event": "failed", "reason": ESCAPES}))
    assert not unsafe(lines.getvalue() + file.getvalue()) and "\rall is well" not in lines.getvalue() + file.getvalue()


def test_text_of_a_report_is_escaped(data_root, tmp_path):
    """HTML: a run's name is text there, not a tag. A site of such a name is refused in one line."""
    pytest.importorskip("matplotlib")
    from tests.helpers.finished_run import finished_run

    run = finished_run(tmp_path, data_root, rounds=2)
    named = shutil.copytree(run, tmp_path / "<img src=x onerror=alert(1)>\x1b")
    results = json.dumps(json.loads((run / "results.json").read_text()))
    (run / "results.json").write_text(results.replace("site-2", "<img src=x onerror=alert(1)>\\u001b\\ud800"))
    assert main(["report", str(run), "--quick", "-o", str(tmp_path / "no.html")]) == 2
    assert main(["report", str(named), "--quick", "-o", str(tmp_path / "r.html")]) == 0
    text = (tmp_path / "r.html").read_text()
    assert "<img src=x" not in text and "&lt;img src=x" in text and "\x1b" not in text


class _Parser:
    def __init__(self, command):
        self.do = command

    def parse_args(self, argv):
        return self
