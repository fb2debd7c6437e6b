"""`fedsm data import` and `fedsm data export`: datasets in the layouts that researchers have."""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.config.names import task_help
from fedsm.core.errors import UserError

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser
    from fedsm.core.task_settings import TaskSettings
    from fedsm.data.formats.cases import Case
    from fedsm.data.formats.rules import Rule


def _rules(args: argparse.Namespace) -> tuple[Rule, Rule | None]:
    from fedsm.data.formats.cases import check_places
    from fedsm.data.formats.rules import PATIENT, SITE, read_rule

    check_places(args.source, args.out)
    patients = getattr(args, "patient_by", None)
    return read_rule(args.site_by, SITE, args.source), patients and read_rule(patients, PATIENT, args.source)


def _import_nnunet(args: argparse.Namespace) -> int:
    from fedsm.data.formats.nnunet import read_dataset
    from fedsm.data.formats.nnunet_folds import SPLITS, TEST, Fold

    if args.splits and args.fold is None:
        raise UserError("--splits needs --fold", remedy="say which fold, for example --fold 0")
    sites, patients = _rules(args)
    fold = None if args.fold is None else Fold(args.fold, args.splits or args.source / SPLITS)
    cases, task = read_dataset(args.source, sites, patients, fold)
    _write(args, cases, task, sites)
    tests = args.source / "labelsTs"
    if fold is None and tests.is_dir():
        print(f"left out: the cases of {tests}; --fold takes them as test images")
    elif fold and not tests.is_dir():
        print(f"{sum(c.part == TEST for c in cases)} test cases were drawn from the fold's validation patients")
    return 0


def _import_bids(args: argparse.Namespace) -> int:
    from fedsm.data.formats.bids import Wanted, read_bids

    masks = [tuple(text.partition("-")[::2]) for text in args.mask]
    if wrong := next((text for text in args.mask if "-" not in text), None):
        raise UserError(f"--mask {wrong!r} is no entity", remedy="give it as in the files' names, such as label-gland")
    sites, _ = _rules(args)
    wanted = Wanted(tuple(args.image), args.derivative, tuple((key, value) for key, value in masks))
    cases, task, without = read_bids(args.source, sites, wanted)
    _write(args, cases, task, sites)
    if without:
        print(f"left out: {without} image{'s' * (without > 1)} without a mask")
    return 0


def _write(args: argparse.Namespace, cases: list[Case], task: TaskSettings, sites: Rule) -> None:
    from tqdm import tqdm

    from fedsm.data.formats.cases import TASK_FILE, by_site, check_cases, write_root

    with tqdm(total=len(cases), desc="checking", unit="case", leave=False, disable=None) as bar:
        check_cases(cases, task, args.source, bar.update)
    with _writing(args.out, len(cases)) as done:
        counts = write_root(cases, task, args.out, done)
    found = ", ".join(f"{site} {len(own)}" for site, own in by_site(cases).items())
    print(f"{len(cases)} cases in {args.out}, by {sites.source}: {found}")
    print(f"files: {', '.join(f'{counts[how]} {how}' for how in ('linked', 'copied', 'stacked'))}")
    out, file = shlex.quote(str(args.out)), shlex.quote(str(args.out / TASK_FILE))
    print(f"look at {args.out / TASK_FILE}, then:\nfedsm run --task {file} --data {out}")


def _export_nnunet(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from app_fedsm.config.build import build_settings
    from fedsm.data.formats.cases import check_places
    from fedsm.data.formats.nnunet_export import SITES, plan_export, write_export

    check_places(args.root, args.out)
    settings = build_settings(args.task, "fedsm", seed=args.seed)
    if args.channel_names and len(args.channel_names) != settings.task.channels:
        raise UserError(f"--channel-names: the task has {settings.task.channels} channels")
    with tqdm(desc="checking", unit="case", leave=False, disable=None) as bar:
        cases = plan_export(args.root, args.out, settings, bar.update)
    with _writing(args.out, len(cases)) as done:
        write_export(cases, args.out, settings.task, args.channel_names, done)
    print(f"{len(cases)} cases in {args.out}; {args.out / SITES} says which is of which site")
    return 0


@contextlib.contextmanager
def _writing(out: Path, cases: int) -> Iterator[Callable[..., object]]:
    """A bar while cases are written; the block gets what is called after each.

    Raises:
        UserError: the folder cannot be written.
    """
    from tqdm import tqdm

    with tqdm(total=cases, desc="writing", unit="case", leave=False, disable=None) as bar:
        try:
            yield bar.update
        except OSError as e:
            reason = e.strerror or e
            raise UserError(f"{out} cannot be written: {reason}", remedy="check permissions and free space") from e


def _add_places(parser: Parser, what: str, sites: str) -> None:
    parser.add_argument("source", type=Path, metavar="SRC", help=what)
    parser.add_argument("out", type=Path, metavar="OUT", help="the data root to write: a new or empty folder")
    parser.add_argument("--site-by", required=True, metavar="RULE", help=sites)


def add_parsers(data: argparse._SubParsersAction[Parser]) -> None:
    """Adds the commands to `fedsm data`'s."""
    imports = data.add_parser(
        "import", help="make sites of a dataset in another layout",
        epilog="example:\n  fedsm data import nnunet Dataset501_Nuclei data --site-by sites.csv:site\n",
    ).add_commands("layout")  # fmt: skip
    nnunet = imports.add_parser(
        "nnunet", help="of nnU-Net v2",
        epilog="example:\n  fedsm data import nnunet Dataset501_Nuclei data --site-by sites.csv:hospital --fold 0\n"
        "  fedsm data import nnunet Dataset501_Nuclei data --site-by '(?P<site>[a-z]+)_.*'\n",
        description="From dataset.json, imagesTr and labelsTr to OUT/<site>/images and OUT/<site>/masks, by hard links,"
        " and the task that fits them. Every file is read before the first one is written.",
    )  # fmt: skip
    rule = "FILE.csv:COLUMN, or a pattern with (?P<{0}>...), which says the {0} of a case"
    _add_places(nnunet, "the dataset: the folder with dataset.json", rule.format("site"))
    nnunet.add_argument(
        "--patient-by",
        metavar="RULE",
        help=f"the same of the patient: {rule.format('patient')} (default: one per case)",
    )
    nnunet.add_argument(
        "--fold", type=int, metavar="N",
        help="take this fold of nnU-Net as training and validation images; test images are those of imagesTs, or half"
        " of the validation patients (default: a split is drawn later)",
    )  # fmt: skip
    nnunet.add_argument(
        "--splits", type=Path, metavar="FILE", help="with --fold: the file of folds (default: SRC/splits_final.json)"
    )
    nnunet.set_defaults(do=_import_nnunet)

    bids = imports.add_parser(
        "bids", help="of BIDS with masks in derivatives",
        epilog="example:\n  fedsm data import bids ds000123 data --site-by participants.tsv:site --image T2w\n",
        description="From sub-*/[ses-*]/anat/*_T2w.nii.gz and derivatives/*/sub-*/..._mask.nii.gz or _dseg.nii.gz to"
        " OUT/<site>/images and OUT/<site>/masks, by hard links, and the task that fits them. A subject is a patient.",
    )  # fmt: skip
    _add_places(bids, "the dataset's folder", "FILE.tsv:COLUMN, or a pattern with (?P<site>...), for subjects")
    bids.add_argument(
        "--image", nargs="+", default=[], metavar="SUFFIX",
        help="which images, such as T2w; several are channels (default: the only kind that there is)",
    )  # fmt: skip
    bids.add_argument(
        "--derivative", metavar="NAME", help="the folder in derivatives/ (default: the only one with masks)"
    )
    bids.add_argument(
        "--mask", nargs="+", default=[], metavar="ENTITY",
        help="which masks, by entities of their names, such as label-gland (default: each image has one)",
    )  # fmt: skip
    bids.set_defaults(do=_import_bids)

    exports = data.add_parser(
        "export", help="write sites in another layout",
        epilog="example:\n  fedsm data export nnunet data nnUNet_raw/Dataset501_Nuclei --task nuclei\n",
    ).add_commands("layout")  # fmt: skip
    to_nnunet = exports.add_parser(
        "nnunet", help="for nnU-Net v2",
        epilog="example:\n  fedsm data export nnunet data nnUNet_raw/Dataset501_Nuclei --task nuclei\n",
        description="All sites as one dataset of nnU-Net, with our split: training and validation images as a fold of"
        " splits_final.json, test images in imagesTs, and a table that says which case is of which site.",
    )  # fmt: skip
    to_nnunet.add_argument("root", type=Path, metavar="ROOT", help="folder with one sub-folder per site, or one site's")
    to_nnunet.add_argument("out", type=Path, metavar="OUT", help="the dataset to write, called Dataset501_NAME")
    to_nnunet.add_argument("--task", required=True, help=task_help())
    to_nnunet.add_argument(
        "--seed", type=int, default=0, metavar="S",
        help="of the run to compare with: splits are drawn as in the simulator (default: 0)",
    )  # fmt: skip
    to_nnunet.add_argument(
        "--channel-names", nargs="+", metavar="NAME", help="as nnU-Net should know them: `CT` is scaled in its own way"
    )
    to_nnunet.set_defaults(do=_export_nnunet)
