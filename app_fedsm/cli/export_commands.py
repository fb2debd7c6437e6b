"""`fedsm export`: the super model for others' tools."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.parser import RUN_HELP
from fedsm.core.errors import UserError

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser


def _bundle(args: argparse.Namespace) -> int:
    from app_fedsm.runs.run_folder import find_super_model
    from fedsm.super_model.bundle import bundle_format, export_bundle
    from fedsm.super_model.model import SuperModel

    if args.out.exists():
        raise UserError(f"{args.out} exists", remedy="choose another folder")
    model = SuperModel.load(find_super_model(args.run), "cpu")
    kind, why = bundle_format(model, args.format)
    export_bundle(model, args.out, kind == "volumes")
    print(f"{args.out}: a bundle for {kind} ({why}); docs/README.md says how it is run")
    return 0


def _onnx(args: argparse.Namespace) -> int:
    from app_fedsm.runs.run_folder import find_super_model
    from fedsm.super_model.model import SuperModel
    from fedsm.super_model.onnx_file import export_onnx

    if args.out.exists():
        raise UserError(f"{args.out} exists", remedy="choose another file")
    worst = export_onnx(SuperModel.load(find_super_model(args.run), "cpu"), args.out)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB, differs from the super model by at most {worst:.1g}")
    return 0


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command to `fedsm`'s."""
    verbs = commands.add_parser(
        "export", help="a super model as MONAI bundle or ONNX",
        epilog="example:\n  fedsm export onnx runs/first -o super_model.onnx\n",
    ).add_commands()  # fmt: skip
    bundle = verbs.add_parser(
        "bundle", help="write a MONAI bundle",
        epilog="example:\n  fedsm export bundle runs/first -o fedsm_bundle\n"
        "  cd fedsm_bundle && python -m monai.bundle run --config_file configs/inference.json --bundle_root . \\\n"
        "    --dataset_dir ../demo_data/site-1/images --output_dir ../masks\n",
        description="Writes a MONAI bundle that runs with MONAI and torch alone (and fire and pytorch-ignite, which"
        " `monai.bundle run` needs).",
    )  # fmt: skip
    onnx = verbs.add_parser(
        "onnx", help="write one ONNX file",
        epilog="example:\n  fedsm export onnx runs/first -o super_model.onnx\n",
        description="Writes selection and segmentation to one ONNX file, checked with onnxruntime. Input: images"
        " (batch, channels, size, size) in 0..1, any batch; outputs: probabilities, choice, yhat, distance. An image"
        " costs the selector and one U-Net. Needs: pip install 'fedsm[export]'.",
    )  # fmt: skip
    for parser, metavar, do in ((bundle, "DIR", _bundle), (onnx, "FILE", _onnx)):
        parser.add_argument("run", type=Path, metavar="RUN", help=RUN_HELP)
        parser.add_argument("-o", "--out", type=Path, required=True, metavar=metavar, help="what is written")
        parser.set_defaults(do=do)
    bundle.add_argument(
        "--format", "--inputs", choices=("pictures", "volumes"),
        help="what it reads (default: what the super model was trained on)",
    )  # fmt: skip
