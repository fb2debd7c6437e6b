"""`fedsm export`: the super model for others' tools."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.parser import RUN_HELP
from fedsm.core.errors import UserError

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser
    from fedsm.super_model.model import SuperModel


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
    _say_what_it_cannot(model)
    return 0


def _onnx(args: argparse.Namespace) -> int:
    from app_fedsm.runs.run_folder import find_super_model
    from fedsm.super_model.model import SuperModel
    from fedsm.super_model.onnx_file import export_onnx

    if args.out.exists():
        raise UserError(f"{args.out} exists", remedy="choose another file")
    model = SuperModel.load(find_super_model(args.run), "cpu")
    worst = export_onnx(model, args.out)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB, differs from the super model by at most {worst:.1g}")
    _say_what_it_cannot(model)
    return 0


def _say_what_it_cannot(model: SuperModel) -> None:
    from fedsm.super_model.scripted import SLICE_BY_SLICE

    if model.policy.majority:
        print(SLICE_BY_SLICE)


def _hub(args: argparse.Namespace) -> int:
    from app_fedsm.runs.run_folder import find_super_model
    from fedsm.super_model.hub import export_hub
    from fedsm.super_model.model import SuperModel

    if args.out.exists():
        raise UserError(f"{args.out} exists", remedy="choose another folder")
    source = find_super_model(args.run)
    model = SuperModel.load(source, "cpu")
    evaluation = _evaluation(args.evaluation, model.manifest.get("run_id")) if args.evaluation else None
    export_hub(model, source, args.out, evaluation)
    print(
        f"{args.out}: look at README.md and LICENSE, name the licence that the sites agreed on, then upload the folder"
    )
    return 0


def _evaluation(file: Path, run_id: str | None) -> dict:
    """An evaluation of this super model on the sites' test images."""
    from fedsm.core.plain_json import read_json
    from fedsm.evaluation.evaluation_file import EvaluationFile

    try:
        content = EvaluationFile.model_validate(read_json(file)).plain()
    except ValueError as e:
        raise UserError("is no evaluation.json", file=file, remedy="give one that `fedsm evaluate` wrote") from e
    if content["part"] != "test" or content["super_model"]["run_id"] != run_id:
        raise UserError("is not of this super model's test images", file=file, remedy="evaluate it on the test images")
    return content


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command to `fedsm`'s."""
    verbs = commands.add_parser(
        "export", help="a super model as MONAI bundle, ONNX or folder for a hub",
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
    hub = verbs.add_parser(
        "hub", help="write a folder for the Hugging Face hub",
        epilog="example:\n  fedsm export hub runs/first -o fedsm_hub\n",
        description="Writes a folder that can be uploaded as it is: README.md with front matter and model card (scores"
        " and counts by site, intended use, which images count as foreign, changes), config.json, the super model's"
        " own files, LICENSE. Nothing is uploaded. The names of the sites are in it.",
    )  # fmt: skip
    for parser, metavar, do in ((bundle, "DIR", _bundle), (onnx, "FILE", _onnx), (hub, "DIR", _hub)):
        parser.add_argument("run", type=Path, metavar="RUN", help=RUN_HELP)
        parser.add_argument("-o", "--out", type=Path, required=True, metavar=metavar, help="what is written")
        parser.set_defaults(do=do)
    bundle.add_argument(
        "--format", "--inputs", choices=("pictures", "volumes"),
        help="what it reads (default: what the super model was trained on)",
    )  # fmt: skip
    hub.add_argument(
        "--evaluation", type=Path, metavar="FILE",
        help="evaluation.json of the sites' test images, for intervals in the model card",
    )  # fmt: skip
