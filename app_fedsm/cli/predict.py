"""`fedsm predict`: masks, overlays and a table for files."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.parser import RUN_HELP, complete_files
from app_fedsm.cli.verify import add_verify, chosen_trust
from fedsm.core.errors import UserError
from fedsm.core.text import printable

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser

_EXAMPLE = """example:
  fedsm predict runs/first demo_data/site-1/images -o predictions
  fedsm predict runs/first 'scans/**/*.nii.gz' --site site-2 -o volumes
  fedsm predict runs/first pacs_export -o segmented --secondary-capture
"""
_DESCRIPTION = """Segments files with a super model: for each image the selector chooses the network (Algorithm 2).

INPUT is a file, a folder (with all below it) or a pattern. OUT gets masks/ (size, format, affine and header of the
input; JPEG would change values, so its masks are PNG), overlays/ and predictions.csv: model used, confidence, distance
to the nearest site (1 is usual there), whether the image is foreign, seconds, area of each label. Sub-folders are
mirrored. A DICOM series is one image, and its mask is a DICOM-SEG; predictions.csv names each slice by its UIDs.

Exit codes: 0 done, 1 some file could not be predicted (a line each on stderr), 2 bad input (nothing was started)."""


def _policy(args: argparse.Namespace) -> dict[str, float | bool | None]:
    """What is asked for instead of the super model's own policy; None: as it is."""
    if args.hard:
        args.share, args.tta = 0.0, bool(args.tta)
    majority = None if args.volume_selection is None else args.volume_selection == "majority"
    return {
        "gamma": args.gamma, "delta": args.delta, "share": args.share, "flip": args.tta, "majority": majority,
    }  # fmt: skip


def _predict(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from app_fedsm.runs.run_folder import find_super_model
    from fedsm.super_model.files import TABLE, Output, predict_files
    from fedsm.super_model.inputs import check_output, list_inputs, output_paths
    from fedsm.super_model.model import SuperModel

    if args.batch_size < 1:
        raise UserError(f"--batch-size must be at least 1, got {args.batch_size}")
    inputs = list_inputs(args.input)
    check_output(args.out, args.input, args.force)
    if args.secondary_capture and not any(source.has_record for source in inputs.sources):
        raise UserError("--secondary-capture is for DICOM images, and there is none", remedy="leave it out")
    model = SuperModel.load(find_super_model(args.run), args.device, chosen_trust(args.verify))
    options = {"site": args.site, "use_global": args.use_global, "blend": args.blend, **_policy(args)}
    model.check(**options)
    names = {source: below.as_posix() for source, below in inputs.sources.items()}
    paths = output_paths(inputs.sources, model.mask_dtype)
    output = Output(args.out, paths, names, not args.no_overlays, args.secondary_capture)

    def report(line: str) -> None:
        tqdm.write(f"fedsm: {printable(line)}", file=sys.stderr)

    for problem in inputs.problems:
        report(str(problem))
    images, failed = predict_files(model, output, args.batch_size, options, report)
    failed, files = failed + len(inputs.problems), len(inputs.sources) + len(inputs.problems)
    if not images:
        (args.out / TABLE).unlink()
        with contextlib.suppress(OSError):  # what was there before stays
            args.out.rmdir()
        print(f"fedsm: none of {files} files could be predicted", file=sys.stderr)
        return 1
    bad = f", {failed} of {files} files could not be predicted" if failed else ""
    count = "1 image or slice" if images == 1 else f"{images} images or slices"
    print(f"{count}{bad}: {args.out / TABLE}")
    if not args.no_overlays:
        print(f"images of patients are in: {args.out / 'overlays'}")
    return int(failed > 0)


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command to `fedsm`'s."""
    parser = commands.add_parser(
        "predict", help="segment files with a super model", description=_DESCRIPTION, epilog=_EXAMPLE,
    )  # fmt: skip
    parser.add_argument("run", type=Path, metavar="RUN", help=RUN_HELP)
    complete_files(parser.add_argument("input", nargs="+", metavar="INPUT", help="files, folders or patterns"))
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="OUT", help="where results go")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--site", metavar="NAME", help="use this site's personal model for every image")
    which.add_argument("--global", action="store_true", dest="use_global", help="use the global model for every image")
    which.add_argument("--blend", action="store_true", help="soft selection: two models share an image")
    parser.add_argument("--gamma", type=float, metavar="G", help="how sure the selector must be (default: its own)")
    parser.add_argument("--delta", type=float, metavar="D", help="distance beyond which an image is foreign")
    mixed = parser.add_mutually_exclusive_group()
    mixed.add_argument("--share", type=float, metavar="S", help="the global model's share beside a personal one")
    mixed.add_argument("--hard", action="store_true", help="one network per image: no share, no mirror image")
    parser.add_argument(
        "--tta", action=argparse.BooleanOptionalAction, help="predict the mirror image as well and take the mean"
    )
    parser.add_argument(
        "--volume-selection", choices=("slice", "majority"),
        help="of a volume: each slice the model that it selects, or all the one that most select (default: as chosen on"
        " the validation images)",
    )  # fmt: skip
    parser.add_argument("--no-overlays", action="store_true", help="write no overlays")
    parser.add_argument(
        "--secondary-capture", action="store_true", help="of DICOM images write the overlay as DICOM too, to captures/"
    )
    parser.add_argument("--batch-size", type=int, default=16, metavar="B", help="images at once (default: 16)")
    parser.add_argument("--device", metavar="D", help="e.g. cuda:0 (default: CUDA when present, else the CPU)")
    add_verify(parser)
    parser.add_argument("--force", action="store_true", help="write into a folder that holds something, which stays")
    parser.set_defaults(do=_predict)
