"""`fedsm evaluate`: a super model on the images of sites that are on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedsm.errors import UserError

if TYPE_CHECKING:
    from fedsm.data.cases import SiteCases
    from fedsm.evaluation.image_scores import ImageScores
    from fedsm.super_model.artefact import SuperModelFiles

JSON = "evaluation.json"


def open_cases(
    model: SuperModelFiles, folder: Path, root: Path, part: str, sites: list[str] | None = None
) -> dict[str, SiteCases]:
    """The images of each site under a data root, as training split them.

    Args:
        model: the super model.
        folder: where it lies. In a run's folder the split that the run wrote down is used, elsewhere it is drawn again.
        root: the data root, or one site's folder.
        part: train, validation, test or `all`.
        sites: only these; None: all that are there.

    Raises:
        UserError: a site that took no part in training cannot have its part; or one has other images than then.
    """
    from fedsm.data.cases import ALL, SiteCases, data_folders

    cases = {}
    found = data_folders(root)
    for site in sites or found:
        if site not in found:
            raise UserError(f"site {site!r} has no folder in {root}")
        if part != ALL and site not in model.manifest["sites"]:
            raise UserError(f"site {site!r} took no part in training and has no {part} images: use --part all")
        state = folder.parent / "site_state" / site
        cases[site] = SiteCases(found[site], site, model.settings, part, state if state.is_dir() else None)
    return cases


def check_counts(model: SuperModelFiles, scores: dict[str, ImageScores], part: str) -> None:
    """Refuses a split that is not the one of training: test images may have been trained on.

    Raises:
        UserError: naming the site.
    """
    for site, values in scores.items():
        then = model.manifest.get("images", {}).get(site, {}).get(part, len(values))
        if then != len(values):
            raise UserError(
                f"site {site!r}: {len(values)} {part} images, but {then} in training: its files have changed since,"
                " so the split cannot be drawn again; restore them or use --part all"
            )


def score_sites(model: SuperModelFiles, cases: dict[str, SiteCases], desc: str) -> dict[str, ImageScores]:
    """Every candidate on every image, with a bar."""
    import torch
    from tqdm import tqdm

    from fedsm.evaluation.candidates import Candidates
    from fedsm.evaluation.image_scores import score_images

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    models = Candidates(model.settings, model.manifest["sites"], model.networks, device)
    with tqdm(total=sum(map(len, cases.values())), desc=desc, unit="file", disable=None) as bar:
        batch = model.settings.batch_size
        return {site: score_images(models, files, batch, device, bar.update) for site, files in cases.items()}


def _evaluate(args: argparse.Namespace) -> int:
    from fedsm.evaluation.evaluate import summarize_images
    from fedsm.evaluation.markdown import evaluation_csv, evaluation_markdown, score_table
    from fedsm.evaluation.metrics import METRICS, check_metrics
    from fedsm.server.checkpoint import write_json
    from fedsm.super_model.artefact import load_super_model
    from fedsm.super_model.card import CARD, render_card

    check_metrics()
    model = load_super_model(args.super_model)
    cases = open_cases(model, args.super_model.resolve(), args.data, args.part)
    scores = score_sites(model, cases, "evaluating")
    if args.part != "all":
        check_counts(model, scores, args.part)
    evaluation = summarize_images(model.manifest, scores, args.part, args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "evaluation.md").write_text(evaluation_markdown(evaluation), encoding="utf-8")
    (args.out / "evaluation.csv").write_text(evaluation_csv(evaluation), encoding="utf-8")
    if args.part == "test":
        (args.out / CARD).write_text(render_card(model.manifest, evaluation), encoding="utf-8")
    write_json(args.out / JSON, evaluation)
    print("\n\n".join(score_table(evaluation, metric) for metric in METRICS))
    if found := evaluation["reliability"]:
        print(f"\nselector: accuracy {found['accuracy']:.3f}, calibration error (ECE) {found['ece']:.3f}")
    print(f"\nall tables: {args.out / 'evaluation.md'}")
    return 0


def add_parser(commands) -> None:
    """Adds the command to `fedsm`'s."""
    evaluate = commands.add_parser(
        "evaluate", help="score a super model on sites' images", formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  fedsm evaluate runs/first/super_model demo_data -o evaluation\n",
        description="Dice, IoU and 95 % Hausdorff distance of the super model and of every model in it, for each site"
        " and label, with bootstrap intervals; Dice at every gamma; confusion and calibration of the selector."
        " Writes evaluation.json, .md and .csv, and for test images a model card with intervals.",
    )  # fmt: skip
    evaluate.add_argument("super_model", type=Path, metavar="SUPER_MODEL", help="the super model's folder")
    evaluate.add_argument("data", type=Path, metavar="DATA", help="folder with one sub-folder a site, or one site's")
    evaluate.add_argument(
        "-o", "--out", type=Path, default=Path("evaluation"), metavar="OUT", help="(default: evaluation)"
    )
    evaluate.add_argument(
        "--part", choices=("test", "validation", "all"), default="test",
        help="the part of each site's split in training, or all images, for data from elsewhere (default: test)",
    )  # fmt: skip
    evaluate.add_argument("--seed", type=int, default=0, metavar="S", help="of the bootstrap (default: 0)")
    evaluate.set_defaults(do=_evaluate)
