"""`fedsm report`: runs in one HTML file, with the paper's figures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedsm.core.errors import UserError
from fedsm.core.files import write_text
from fedsm.core.plain_json import reading
from fedsm.core.text import printable

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser
    from fedsm.evaluation.runs import Run
    from fedsm.evaluation.study import Study
    from fedsm.super_model.artefact import SuperModelFiles

FILE = "report.html"


def _study(run: Run, quick: bool) -> Study:
    """What the weights and images of a run show, or why they cannot be used."""
    from fedsm.evaluation.study import Study
    from fedsm.super_model.artefact import load_super_model

    study = Study(evaluation=run.stored_evaluation(), rows=run.stored_rows())
    if quick:
        study.absent = "left out by --quick"
    elif run.data is None:
        study.absent = "the run's data are not on this machine; name them with --data"
    elif not (run.folder / "super_model").is_dir():
        study.absent = "the run's folder holds no super model"
    else:
        try:
            _say(f"{run.name}: reading the super model and the images")
            return _look(run, load_super_model(run.folder / "super_model"))
        except UserError as e:
            remedy = f"{e.remedy}, or" if e.remedy else ""
            raise UserError(f"{run.name}: {e.what}", remedy=f"{remedy} leave images out with --quick".strip()) from e
    return study


def _look(run: Run, model: SuperModelFiles) -> Study:
    """Scores, t-SNE, loss surfaces and overlays of a run whose weights and images are here."""
    from tqdm import tqdm

    from app_fedsm.cli.evaluate import check_counts, open_cases, score_sites
    from fedsm.evaluation import study as looking
    from fedsm.evaluation.candidates import Candidates
    from fedsm.evaluation.evaluate import summarize_images
    from fedsm.evaluation.row_scores import row_scores
    from fedsm.selectors.policy import read_policy

    assert run.data is not None
    folder = run.folder / "super_model"
    parts = {part: open_cases(model, folder, run.data, part, run.sites) for part in ("train", "validation", "test")}
    _say(f"{run.name}: scoring every model on the test images of {len(run.sites)} sites")
    scores = score_sites(model, parts["test"], f"{run.name}: scoring")
    check_counts(model, scores, "test")
    models = Candidates(model.settings, run.sites, model.networks, looking.CPU)
    policy = read_policy(model.manifest, str(folder))
    rows = row_scores(scores)
    study = looking.Study(summarize_images(model.manifest, scores, "test"), rows, steps=looking.surface_steps(model))
    _say(f"{run.name}: choosing images to show")
    for site, cases in parts["test"].items():
        study.overlays[site] = looking.pick_overlays(models, site, cases, scores[site], policy)
    if models.selector:
        files = {site: [cases[site] for cases in parts.values()] for site in run.sites}
        total = looking.MAP_IMAGES * len(files)
        _say(f"{run.name}: drawing the map of the selector's features")
        with tqdm(total=total, desc=f"{printable(run.name)}: t-SNE", unit="image", leave=False, disable=None) as bar:
            study.points, study.tested = looking.feature_map(models, files, bar.update)
    _say(f"{run.name}: measuring the loss around the models")
    total = 2 * sum(looking.surface_count(model, site) for site in run.sites)
    with tqdm(total=total, desc=f"{printable(run.name)}: loss surface", unit="loss", leave=False, disable=None) as bar:
        directions = looking.surface_directions(model)
        for site in run.sites:
            held = {part: parts[part][site] for part in ("train", "test")}
            surfaces = looking.site_surface(model, site, held, study.steps, directions, bar.update)
            study.surfaces |= {(site, part): found for part, found in surfaces.items()}
    return study


def _say(text: str) -> None:
    """A line on stderr before each step: a bar is not seen in a log."""
    print(f"fedsm report: {printable(text)}", file=sys.stderr)


def _report(args: argparse.Namespace) -> int:
    from fedsm.evaluation.figure_style import Plates, load_matplotlib
    from fedsm.evaluation.metrics import check_metrics
    from fedsm.evaluation.report import Report
    from fedsm.evaluation.runs import open_runs
    from fedsm.evaluation.tsne import load_tsne

    out = args.out or (args.runs[0] if len(args.runs) == 1 else Path()) / FILE
    if out.exists() and not args.force:
        raise UserError(f"{out} is there already", remedy="choose another file or --force")
    load_matplotlib()
    runs = open_runs(args.runs, args.data)
    if not args.quick:
        check_metrics()
        load_tsne()
    pictures = out.with_name(f"{out.stem}_figures")
    studies = {run.name: _study(run, args.quick) for run in runs}
    plates = Plates(pictures)
    if not args.quick:
        _say("drawing figures and tables")
    files = ", ".join(str(run.folder / "results.json") for run in runs)
    with reading(f"{files} or evaluation.json beside it", "copy the run again, or leave it out"):
        page = Report(runs, studies, plates).html()
    write_text(out, page)
    if any(study.overlays for study in studies.values()):
        print("the report and its figures show images of patients: share them only as you would share such images")
    print(f"report: {out}\nfigures: {pictures} ({len(plates.names)} PNG files)")
    return 0


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command to `fedsm`'s."""
    report = commands.add_parser(
        "report", help="runs in one HTML file, with figures",
        epilog="example:\n  fedsm report runs/first\n"
        "  fedsm report runs/fedsm runs/local runs/centralized --data demo_data -o compared.html\n",
        description="Writes one HTML file that needs no network, and its figures as PNG in a folder beside it."
        " Intervals, reliability, t-SNE, loss surfaces and overlays need the images, which are looked for where the"
        " run had them or in --data. The file then shows images of patients.",
    )  # fmt: skip
    report.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a finished run")
    report.add_argument(
        "-o", "--out", type=Path, metavar="FILE",
        help=f"(default: {FILE} in the run's folder; of several runs, in the current one)",
    )  # fmt: skip
    report.add_argument("--data", type=Path, metavar="ROOT", help="the data root (default: each run's own)")
    report.add_argument("--force", action="store_true", help="replace FILE and its figures")
    report.add_argument("--quick", action="store_true", help="only what the runs wrote down: no images, no weights")
    report.set_defaults(do=_report)
