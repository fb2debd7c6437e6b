"""`fedsm evaluate`: a super model on the images of sites, here or in a federation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.output import Result, add_format
from app_fedsm.cli.parser import RUN_HELP
from app_fedsm.cli.submission import add_study, login_of
from app_fedsm.cli.verify import add_verify, chosen_trust
from fedsm.core.errors import UserError
from fedsm.core.text import printable

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser
    from fedsm.data.cases import SiteCases
    from fedsm.evaluation.image_scores import ImageScores
    from fedsm.super_model.artefact import SuperModelFiles

LOCAL, POC, PROD = "local", "poc", "prod"  # where the images are
FEDERATED = [POC, PROD]


def open_cases(
    model: SuperModelFiles, folder: Path, root: Path, part: str, sites: list[str] | None = None
) -> dict[str, SiteCases]:
    """The images of each site under a data root, as training split them.

    Args:
        model: the super model.
        folder: its folder. In a run's folder the split that the run stored is used, elsewhere it is drawn again.
        root: the data root, or one site's folder.
        part: train, validation, test or `all`.
        sites: only these; None: all that are there.

    Raises:
        UserError: a site took no part in training, so it has no such part; or its images have changed since.
    """
    from fedsm.data.cases import ALL, SiteCases, data_folders

    cases = {}
    found = data_folders(root)
    for site in sites or found:
        if site not in found:
            raise UserError(f"has no folder in {root}", site=site)
        if part != ALL and site not in model.manifest["sites"]:
            raise UserError(f"took no part in training and has no {part} images", site=site, remedy="use --part all")
        state = folder.parent / "site_state" / site
        cases[site] = SiteCases(found[site], site, model.settings, part, state if state.is_dir() else None)
    return cases


def check_counts(model: SuperModelFiles, scores: Mapping[str, Sized], part: str) -> None:
    """Refuses a split that is not the one of training: test images may have been trained on.

    Raises:
        UserError: naming the site.
    """
    for site, values in scores.items():
        then = model.manifest.get("images", {}).get(site, {}).get(part, len(values))
        if then != len(values):
            raise UserError(
                f"{len(values)} {part} images, but {then} in training: its files have changed since, so the split"
                " cannot be drawn again",
                site=site,
                remedy="restore them or use --part all",
            )


def score_sites(model: SuperModelFiles, cases: dict[str, SiteCases], desc: str) -> dict[str, ImageScores]:
    """Every candidate on every image, with a bar."""
    import torch
    from tqdm import tqdm

    from fedsm.evaluation.candidates import Candidates
    from fedsm.evaluation.image_scores import score_images
    from fedsm.selectors.policy import read_policy

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    models = Candidates(model.settings, model.manifest["sites"], model.networks, device)
    with tqdm(total=sum(map(len, cases.values())), desc=desc, unit="file", disable=None) as bar:
        settings, policy = model.settings, read_policy(model.manifest, "the super model's manifest")
        tolerance = settings.task.surface_tolerance
        return {
            site: score_images(models, files, policy, settings.batch_size, device, bar.update, tolerance=tolerance)
            for site, files in cases.items()
        }


def _evaluate(args: argparse.Namespace) -> Result:
    from app_fedsm.cli.run_documents import EvaluationEnd
    from app_fedsm.runs.run_folder import find_super_model
    from fedsm.core.plain_json import reading
    from fedsm.core.trust import trust_in
    from fedsm.evaluation.evaluate import FILE
    from fedsm.evaluation.metrics import check_metrics
    from fedsm.evaluation.row_scores import FILE as IMAGE_SCORES
    from fedsm.super_model.artefact import load_super_model

    _check_arguments(args)
    if (args.out / FILE).exists() and not args.force:
        raise UserError(f"{args.out / FILE} is there already", remedy="choose another folder or --force")
    check_metrics()
    folder = find_super_model(args.run)
    trust = chosen_trust(args.verify)
    model = load_super_model(folder, None if trust is False else trust_in(trust))
    evaluation = (_at_home if args.env == LOCAL else _in_federation)(args, model, folder.resolve())
    files = _write(args.out, model.manifest, evaluation)
    files |= {"image_scores": args.out / IMAGE_SCORES} if args.env == LOCAL else {}
    missing = evaluation.get("missing", {})
    for site, reason in missing.items():
        print(f"fedsm: site {printable(site)} is not in it: {printable(reason)}", file=sys.stderr)
    with reading(files["json"], "evaluate again"):
        paths = {name: str(path.resolve()) for name, path in files.items()}
        data = EvaluationEnd.model_validate({"evaluation": evaluation, "files": paths})
    return Result(int(bool(missing)), data)


def _check_arguments(args: argparse.Namespace) -> None:
    if args.env == LOCAL and args.data is None:
        raise UserError("DATA is missing", remedy="give the folder with one sub-folder per site")
    for option, places in {
        "DATA": [LOCAL],
        "--kit": [PROD],
        "--dir": [POC],
        "--byoc": FEDERATED,
        "--study": FEDERATED,
    }.items():
        if args.env not in places and getattr(args, option.strip("-").lower()):
            raise UserError(f"{option} is for --env {' or '.join(places)}, not for --env {args.env}")
    if args.env == PROD and not (args.kit and args.sites):
        raise UserError("--env prod needs --kit and --sites", remedy="see `fedsm evaluate --help`")


def _at_home(args: argparse.Namespace, model: SuperModelFiles, folder: Path) -> dict:
    from fedsm.core.files import write_json
    from fedsm.evaluation.evaluate import summarize_images
    from fedsm.evaluation.row_scores import FILE, row_scores, to_plain

    if args.part != "all" and model.settings.seed and not (folder.parent / "site_state").is_dir():
        print(
            f"fedsm: the split is drawn with the run's seed {model.settings.seed}, as in the simulator; hospitals split"
            " once, whatever the seed: for a model that was trained there use --env prod",
            file=sys.stderr,
        )
    cases = open_cases(model, folder, args.data, args.part, args.sites)
    scores = score_sites(model, cases, "evaluating")
    if args.part != "all":
        check_counts(model, scores, args.part)
    write_json(args.out / FILE, to_plain(row_scores(scores), model.manifest, args.part))
    return summarize_images(model.manifest, scores, args.part, args.seed)


def _in_federation(args: argparse.Namespace, model: SuperModelFiles, folder: Path) -> dict:
    from app_fedsm.federation import remote
    from app_fedsm.federation.evaluate_remote import evaluate_remotely
    from app_fedsm.federation.poc import Poc

    kit, sites = args.kit, args.sites
    if args.env == POC:
        poc = Poc(args.dir or Path("poc"))
        kit, sites = poc.lead, sites or poc.note["sites"]
    try:
        return evaluate_remotely(login_of(args, kit), folder, model, sites, args.part, args.seed, args.byoc, args.out)
    except remote.JobFailed as e:
        raise UserError(f"the evaluation failed: {e}") from e


def _write(out: Path, manifest: dict, evaluation: dict) -> dict[str, Path]:
    """Writes the files and shows the tables; returns the files' paths."""
    from fedsm.core.files import write_json, write_text
    from fedsm.evaluation.evaluate import FILE
    from fedsm.evaluation.markdown import (
        evaluation_csv,
        evaluation_markdown,
        paired_table,
        score_tables,
        selector_text,
    )
    from fedsm.super_model.card import CARD, render_card

    files = {"json": out / FILE, "markdown": out / "evaluation.md", "csv": out / "evaluation.csv"}
    write_text(files["markdown"], evaluation_markdown(evaluation))
    write_text(files["csv"], evaluation_csv(evaluation))
    if evaluation["part"] == "test":
        files["card"] = out / CARD
        write_text(files["card"], render_card(manifest, evaluation))
    write_json(files["json"], evaluation)
    print("\n\n".join(score_tables(evaluation)))
    if evaluation["paired"]:
        print(f"\n{paired_table(evaluation)}")
    if text := selector_text(evaluation):
        print(f"\nselector: {text}")
    print(f"\nall tables: {files['markdown']}")
    return files


_EXAMPLE = """example:
  fedsm evaluate runs/first demo_data -o evaluation
  fedsm evaluate runs/poc --env poc -o federated  # each site at home, only means and counts leave
  fedsm evaluate runs/first --env prod --kit lead@hospital.org --sites site-1 site-2
"""


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command to `fedsm`'s."""
    evaluate = commands.add_parser(
        "evaluate", help="score a super model on sites' images",
        epilog=_EXAMPLE,
        description="Dice, IoU and 95 % Hausdorff distance of the super model and of every model in it, for each site"
        " and label, with bootstrap intervals; of volumes also as a whole, with the surface Dice. Dice at every gamma;"
        " confusion and calibration of the selector. Writes evaluation.json, .md and .csv, and for test images a model"
        " card with intervals.",
    )  # fmt: skip
    add = evaluate.add_argument
    add("run", type=Path, metavar="RUN", help=RUN_HELP)
    add("data", type=Path, nargs="?", metavar="DATA", help="folder with one sub-folder per site, or one site's")
    add("-o", "--out", type=Path, default=Path("evaluation"), metavar="OUT", help="(default: evaluation)")
    add(
        "--part", choices=("test", "validation", "all"), default="test",
        help="the part of each site's split in training, or all images, for data from elsewhere (default: test)",
    )  # fmt: skip
    add("--seed", type=int, default=0, metavar="S", help="of the bootstrap (default: 0)")
    add("--sites", nargs="+", metavar="SITE", help="only these (with --env prod: needed)")
    add(
        "--env", choices=(LOCAL, POC, PROD), default=LOCAL,
        help="where the images are: in DATA on this machine, or at the sites of a POC or of a provisioned federation"
        " (default: local)",
    )  # fmt: skip
    add("--kit", type=Path, metavar="KIT", help="your startup kit, with --env prod")
    add_study(evaluate)
    add("--dir", type=Path, metavar="DIR", help="the POC's folder, with --env poc (default: poc)")
    add("--force", action="store_true", help="replace the evaluation that OUT holds")
    add("--byoc", action="store_true", help="carry the code inside the job (sites must allow it)")
    add_verify(evaluate)
    add_format(evaluate)
    evaluate.set_defaults(do=_evaluate)
