"""`fedsm onboard`: what a super model can do for a site that took no part in training."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.output import Result, add_format
from app_fedsm.cli.parser import RUN_HELP
from fedsm.core.errors import UserError
from fedsm.core.plain_json import reading
from fedsm.core.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from app_fedsm.cli.parser import Parser
    from fedsm.core.tensors import Tensors
    from fedsm.data.site_folder import Pair
    from fedsm.super_model.model import SuperModel

_EXAMPLE = """example:
  fedsm onboard runs/first new_hospital
  fedsm onboard runs/first new_hospital --start start.safetensors
"""


def _onboard(args: argparse.Namespace) -> Result:
    from app_fedsm.cli.onboard_document import Onboarding, onboarding
    from app_fedsm.cli.onboard_text import describe
    from app_fedsm.runs.run_folder import find_super_model
    from fedsm.data.dicom.site import images_folder
    from fedsm.data.site_folder import list_images
    from fedsm.super_model.model import SuperModel
    from fedsm.super_model.resemblance import recommended, resemblance
    from fedsm.super_model.start_model import start_model, start_shares
    from fedsm.tracks import knows_distance

    site = args.data.resolve().name
    if args.start and args.start.exists():
        raise UserError(f"{args.start} is there already", remedy="choose another file")
    model = SuperModel.load(find_super_model(args.run))
    images, pairs = list_images(images_folder(args.data, site, model.settings.task, None), site)
    if args.start and not knows_distance(model.settings):
        kind = model.manifest["selector"]
        raise UserError(
            f"--start compares the sites by statistics, and the selector is {kind!r}", remedy="leave it out"
        )
    if site in model.sites:
        print(f"fedsm: a site {printable(site)!r} took part in training; its images may be known", file=sys.stderr)
    found = resemblance(model, _pixels(model, images, site))
    shares = {} if found.mean is None else start_shares(model.files, model.selector, found.mean)
    start = start_model(model.files, shares) if args.start else None
    chosen = recommended(model, found)
    dice, patients = _labelled(model, start, args.data, pairs, chosen) if pairs else ({}, None)
    with reading(f"the super model of {args.run}", "copy it again"):  # its manifest comes from others
        told = onboarding(model, found, shares, chosen) | {
            "site": site, "labelled": len(pairs), "patients": patients, "dice": dice,
            "start": str(args.start.resolve()) if start else None,
        }  # fmt: skip
        data = Onboarding.model_validate(told | {"commands": _next(args, chosen)})
    if start:
        _save(args.start, start)
    print(describe(data))
    return Result(0, data)


def _pixels(model: SuperModel, images: list[Path], site: str) -> Iterator[torch.Tensor]:
    """The files, with a bar."""
    from tqdm import tqdm

    with tqdm(images, desc=f"looking at {printable(site)}", unit="file", leave=False, disable=None) as bar:
        for image in bar:
            yield model.read(image)[0]


def _labelled(
    model: SuperModel, start: Tensors | None, folder: Path, pairs: list[Pair], chosen: str | None
) -> tuple[dict[str, dict], int]:
    """The Dice of every model on the images that have masks, and how many patients these are of."""
    from tqdm import tqdm

    from fedsm.data.cases import ALL, SiteCases
    from fedsm.evaluation.onboarding import dice_of_models, score_labelled

    site = folder.resolve().name
    cases = SiteCases(folder, site, model.settings, ALL, pairs=pairs)
    with tqdm(total=len(pairs), desc="scoring every model", unit="file", leave=False, disable=None) as bar:
        scores = score_labelled(model.files, start, cases, model.device, bar.update)
    return dice_of_models(scores, site, chosen), len(set(scores.patients))


def _save(path: Path, tensors: Tensors) -> None:
    from safetensors.torch import save_file

    from fedsm.core.files import replacing

    with replacing(path) as partial:
        save_file({key: value.contiguous() for key, value in tensors.items()}, partial)


def _next(args: argparse.Namespace, chosen: str | None) -> dict[str, str]:
    from app_fedsm.runs.hints import paste
    from fedsm.selectors.inference import GLOBAL

    if chosen is None:
        return {}
    which = ["--global"] if chosen == GLOBAL else []
    images = args.data / "images" if (args.data / "images").is_dir() else args.data
    return {"predict": paste("fedsm", "predict", args.run, images, *which, "-o", "predictions")}


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command to `fedsm`'s."""
    onboard = commands.add_parser(
        "onboard", help="what a super model can do for a new site", epilog=_EXAMPLE,
        description="For a site that took no part in training: which sites it resembles, how foreign its images are,"
        " which model it should use, and the Dice of every model on its labelled images, if there are any. Nothing is"
        " trained, and nothing leaves this machine.",
    )  # fmt: skip
    onboard.add_argument("run", type=Path, metavar="RUN", help=RUN_HELP)
    onboard.add_argument(
        "data", type=Path, metavar="DATA", help="the new site's folder with images/ and, for some or all, masks/"
    )
    onboard.add_argument(
        "--start", type=Path, metavar="FILE",
        help="write a personal model to start from: the mean of the personal models, weighted by similarity"
        " (safetensors)",
    )  # fmt: skip
    add_format(onboard)
    onboard.set_defaults(do=_onboard)
