"""`fedsm report` on real small runs, read as text and opened in Chromium."""

import contextlib
import io
import json
import re
import shutil

import pytest

pytest.importorskip("scipy", reason="MONAI's Hausdorff distance needs scipy: pip install 'fedsm[report]'")

from app_fedsm.cli.main import main
from fedsm.evaluation import figures, study
from fedsm.evaluation.report_tables import dice_rows
from fedsm.evaluation.runs import open_runs
from tests.helpers.chromium import Page
from tests.helpers.federation import JOB
from tests.helpers.finished_run import finished_run
from tests.helpers.small_jobs import SITES

SECTIONS = [
    "How to read it", "Scores", "Training", "Gamma", "Models and sites", "Selector", "Feature map", "Loss surface",
    "Overlays", "Conduct", "Cost",
]  # fmt: skip
SMALL = [
    "--task", "retinal", "--size", "32", "--batch-size", "4", "--rounds", "2", "--set", "task.unet.channels=[4,8,16]",
    "--set", "task.unet.residual_units=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data_root):
    """FedSM, Local and Centralized."""
    root = tmp_path_factory.mktemp("runs")
    fedsm = finished_run(root / "fedsm", data_root, overrides=["tracks.personal.pull=similarity"])
    local = finished_run(root / "local", data_root, method="local")
    pooled = ["run", "--method", "centralized", *SMALL]
    assert main([*pooled, "--data", str(data_root), "--out", str(root / "pool" / "server" / JOB)]) == 0
    return [fedsm, local, root / "pool" / "server" / JOB]


@pytest.fixture(scope="module")
def report(runs, data_root, tmp_path_factory):
    """All three side by side, with everything."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "STEPS", 3)  # a third of the time
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            assert main(["report", *map(str, runs), "--data", str(data_root), "-o", str(file)]) == 0
        (file.parent / "stderr.txt").write_text(errors.getvalue())
    return file


def test_it_says_what_it_does_also_where_a_bar_cannot_be_drawn(report):
    """Redirected: no bar, but a line before each step that takes long."""
    lines = (report.parent / "stderr.txt").read_text().splitlines()
    assert lines[:5] == [
        "fedsm report: fedsm: reading the super model and the images",
        f"fedsm report: fedsm: scoring every model on the test images of {len(SITES)} sites",
        "fedsm report: fedsm: choosing images to show",
        "fedsm report: fedsm: drawing the map of the selector's features",
        "fedsm report: fedsm: measuring the loss around the models",
    ]
    assert lines[-1] == "fedsm report: drawing figures and tables" and not any("%|" in line for line in lines)


def test_the_page_says_first_that_it_shows_patients_and_only_when_it_does(report, runs, tmp_path):
    said = "This page shows images of patients"
    text = report.read_text()
    assert text.splitlines()[1].startswith("<!-- This file shows images of patients")
    assert text.index(said) < text.index("<h1>")
    assert main(["report", str(runs[0]), "--quick", "-o", str(tmp_path / "quick.html")]) == 0
    assert "images of patients" not in (tmp_path / "quick.html").read_text()


def test_the_glossary_comes_first_and_knows_the_words_of_the_page(report):
    text = report.read_text()
    words = re.findall(r"<dt>([^<]+)</dt>", text)
    assert {"gamma", "lam", "track", "SoftPull", "global", "personal", "selector", "client average"} <= set(words)
    assert text.index("<dl") < text.index("<table")


@pytest.mark.parametrize("figure", ["curves", "costs", "attendance"])
def test_ticks_of_rounds_are_whole_numbers(runs, figure):
    """Two rounds: matplotlib alone would put ticks at 1.2 and 1.4."""
    (run,) = open_runs(runs[:1], None)
    extra = ["global", dict.fromkeys(SITES, "#000000"), []] if figure == "curves" else []
    drawn = getattr(figures, figure)(run, *extra)
    drawn.canvas.draw()
    for axes in drawn.axes:
        assert all(tick == int(tick) for tick in axes.get_xticks())


def test_every_section_and_figure_is_there(report):
    text = report.read_text()
    assert re.findall(r"<h2 [^>]*>([^<]+)</h2>", text) == SECTIONS
    assert "Not shown" not in text
    names = sorted(p.name for p in report.with_name("report_figures").iterdir())
    kinds = {name.split("_")[0] for name in names}
    assert kinds == {
        "curves", "gamma", "selection", "candidates", "pull", "confusion", "reliability", "tsne", "surface",
        "patient-images", "conduct", "costs",
    }  # fmt: skip
    assert text.count("<figure>") == len(names)
    assert sum(n.startswith("surface_") for n in names) == 2 * len(SITES)
    assert sum(n.startswith("patient-images_") for n in names) == 3 * len(SITES)


def test_nothing_is_asked_of_the_network_and_no_path_is_told(report, runs):
    text = report.read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", text)
    assert not re.findall(r"url\((?!#)", text) and "@import" not in text and "case_0" not in text
    for folder in (*runs, report.parent):
        assert str(folder) not in text


def test_best_in_bold(runs):
    """By hand from results.json: the highest of each column, the centralized run left out."""
    opened = open_runs(runs, None)
    assert [run.name for run in opened] == ["fedsm", "local", "pool"]
    rows, bold = dice_rows(opened, SITES)
    assert [row[0] for row in rows] == [
        "fedsm: FedAvg (global)", "fedsm: personal, own site", "fedsm: FedSM", "local: personal, own site",
        "pool: Centralized (global)",
    ]  # fmt: skip
    for column in range(1, len(SITES) + 3):
        values = [float(row[column]) for row in rows[:4]]
        assert {i for i, j in bold if j == column} <= {i for i, v in enumerate(values) if v == max(values)}
        assert any(j == column for _, j in bold)


def test_runs_are_compared_on_the_same_images(report):
    """Three runs of one seed: three pairs, and the models of FedSM among themselves."""
    rows = re.findall(r'<th scope="row">([^<]+ - [^<]+)</th>', report.read_text())
    assert rows == [
        "fedsm: super model - global", "fedsm: super model - personal, own site", "fedsm: personal, own site - global",
        "fedsm (super model) - local (personal, own site)", "fedsm (super model) - pool (global)",
        "local (personal, own site) - pool (global)",
    ]  # fmt: skip


def test_a_quick_report_compares_what_was_stored(runs, data_root, tmp_path):
    """`fedsm evaluate RUN DATA -o RUN` leaves the scores of single images; another seed has other images."""
    names = {"one": runs[0], "two": runs[0], "bare": runs[1]}
    for name, run in names.items():
        shutil.copytree(run, tmp_path / name)
    assert main(["evaluate", str(tmp_path / "one"), str(data_root), "-o", str(tmp_path / "one")]) == 0
    file = tmp_path / "two" / "image_scores.json"
    shutil.copy(tmp_path / "one" / "image_scores.json", file)
    command = ["report", *(str(tmp_path / name) for name in names), "--quick"]
    assert main([*command, "-o", str(tmp_path / "r.html")]) == 0
    text = (tmp_path / "r.html").read_text()
    assert "one (super model) - two (super model)" in text and "bare compared with other runs: no scores" in text
    content = json.loads(file.read_text())
    content["sites"]["site-1"]["images"][0] = "0"
    file.write_text(json.dumps(content))
    assert main([*command, "-o", str(tmp_path / "s.html")]) == 0
    assert "two (super model): these runs were tested on different images" in (tmp_path / "s.html").read_text()


def test_a_site_that_does_better_alone_is_a_warning(runs, tmp_path):
    """Local is made to have 0.99 at site-2; the centralized run is no federation, and another seed has other images."""
    for name, run in zip(("fedsm", "local", "pool"), runs, strict=True):
        shutil.copytree(run, tmp_path / name)
    file = tmp_path / "local" / "results.json"
    results = json.loads(file.read_text())
    own = dict.fromkeys(SITES, 0.0) | {SITES[1]: 0.99}
    results["test"]["personal_own"]["per_site"] = own
    file.write_text(json.dumps(results))
    command = ["report", *(str(tmp_path / name) for name in ("fedsm", "local", "pool")), "--quick"]
    assert main([*command, "-o", str(tmp_path / "r.html")]) == 0
    told = re.findall(r'<p class="warning">([^<]+)</p>', (tmp_path / "r.html").read_text())
    assert len(told) == 3 and all(f"is worse than local at {SITES[1]} (" in line for line in told)
    assert told[-1].startswith("fedsm: FedSM ") and told[-1].endswith("against 0.9900): that hospital would leave.")
    file.write_text(json.dumps(results | {"seed": 7}))
    assert main([*command, "-o", str(tmp_path / "s.html")]) == 0
    assert 'class="warning"' not in (tmp_path / "s.html").read_text()


def test_quick_says_what_it_leaves_out(runs, tmp_path):
    file = tmp_path / "quick.html"
    assert main(["report", str(runs[0]), "--quick", "-o", str(file)]) == 0
    text = file.read_text()
    assert "left out by --quick" in text and not list(tmp_path.glob("quick_figures/tsne*"))
    assert list(tmp_path.glob("quick_figures/confusion*")), "the sites' counts are in results.json"


def test_a_run_whose_data_are_gone(runs, tmp_path):
    shutil.copytree(runs[1], tmp_path / "local")
    (tmp_path / "local" / "run.json").unlink()
    assert main(["report", str(tmp_path / "local"), "-o", str(tmp_path / "r.html")]) == 0
    assert "data are not on this machine" in (tmp_path / "r.html").read_text()


def test_sites_that_failed_are_named(runs, tmp_path):
    shutil.copytree(runs[1], tmp_path / "local")
    file = tmp_path / "local" / "results.json"
    results = json.loads(file.read_text())
    row = results["validation"]["history"][1]
    row["answered"].remove(SITES[2])
    row["missing"] = {SITES[2]: "training <diverged>"}
    file.write_text(json.dumps(results))
    assert main(["report", str(tmp_path / "local"), "--quick", "-o", str(tmp_path / "r.html")]) == 0
    text = (tmp_path / "r.html").read_text()
    assert f"<td>{SITES[2]}</td><td>training &lt;diverged&gt;</td>" in text
    assert list(tmp_path.glob("r_figures/attendance*")) and "Every site answered" not in text


def test_what_is_no_run(runs, tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no finished run" in capsys.readouterr().err
    assert main(["report", str(runs[0]), str(runs[0])]) == 2
    assert "given twice" in capsys.readouterr().err


def test_in_chromium(report, tmp_path):
    """No error, no request, every figure has a size, nothing is wider than the window; tables can be copied."""
    page = Page(tmp_path / "profile")
    try:
        page.open(report)
        for width, dark in ((1280, False), (390, False), (1280, True)):
            page.look(width, dark)
            assert page.run("document.documentElement.scrollWidth") <= width
            sizes = page.run(
                "[...document.querySelectorAll('figure')].map(f => f.firstElementChild.getBoundingClientRect())"
                ".map(r => Math.min(r.width, r.height))"
            )
            assert len(sizes) == report.read_text().count("<figure>") and min(sizes) > 60
            ink = page.run("getComputedStyle(document.body).color")
            assert (sum(map(int, re.findall(r"\d+", ink))) > 400) == dark
        assert page.run("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
        page.run("document.querySelector('button[data-copy]').click()")
        assert "method" in page.run("getSelection().toString()")
        page.print(tmp_path / "report.pdf")
        assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
        assert [r for r in page.requests if not r.startswith("data:")] == [report.resolve().as_uri()]
        assert page.messages == []
    finally:
        page.close()
