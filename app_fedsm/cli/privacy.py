"""`fedsm privacy audit`: what left each site in a run, and what it gives away."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.evaluate import FEDERATED, LOCAL, POC, PROD
from app_fedsm.cli.output import Result, add_format
from app_fedsm.cli.submission import add_study, login_of
from fedsm.core.errors import UserError
from fedsm.core.text import printable

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser
    from fedsm.evaluation.runs import Run

_EXAMPLE = """example:
  fedsm privacy audit runs/first
  fedsm privacy audit runs/poc --env poc
  fedsm privacy audit runs/real --env prod --kit lead@hospital.org --sites site-1 site-2
"""


def _audit(args: argparse.Namespace) -> Result:
    from app_fedsm.cli.privacy_document import AuditEnd
    from fedsm.core.files import write_json, write_text
    from fedsm.core.plain_json import reading
    from fedsm.evaluation.audit import FILE, PAGE, audit_content
    from fedsm.evaluation.audit_file import AuditFile
    from fedsm.evaluation.audit_page import audit_page, remembered
    from fedsm.evaluation.runs import open_runs

    _check_arguments(args)
    files = {"json": args.run / FILE, "html": args.run / PAGE}
    if not args.force and (there := [path for path in files.values() if path.exists()]):
        raise UserError(f"{there[0]} is there already", remedy="--force replaces it")
    (run,) = open_runs([args.run], args.data)
    if args.env == LOCAL:
        attacks, missing = _at_home(args, run)
    else:
        attacks, missing = _in_federation(args, run)
    with reading(args.run / "results.json", "copy the run again"):
        content = audit_content(run, attacks, missing, args.seed)
        content = AuditFile.model_validate(content).plain()
        page = audit_page(content)
    write_json(files["json"], content)
    write_text(files["html"], page)
    for site, reason in missing.items():
        print(f"fedsm: site {printable(site)} was not attacked: {printable(reason)}", file=sys.stderr)
    for site, row, attack, value in remembered(content):
        between = f"{value['low']:.2f} to {value['high']:.2f}"
        print(f"{printable(site)}, {row}, {attack} attack: AUC {value['auc']:.2f} ({between}): above chance")
    print(f"audit: {files['html']}")
    paths = {name: str(path.resolve()) for name, path in files.items()}
    return Result(int(bool(missing)), AuditEnd.model_validate({"audit": content, "files": paths}))


def _check_arguments(args: argparse.Namespace) -> None:
    for option, places in {
        "--data": [LOCAL], "--kit": [PROD], "--dir": [POC], "--byoc": FEDERATED, "--study": FEDERATED,
    }.items():  # fmt: skip
        if args.env not in places and getattr(args, option.strip("-")):
            raise UserError(f"{option} is for --env {' or '.join(places)}, not for --env {args.env}")
    if args.env == PROD and not (args.kit and args.sites):
        raise UserError("--env prod needs --kit and --sites", remedy="see `fedsm privacy audit --help`")


def _at_home(args: argparse.Namespace, run: Run) -> tuple[dict[str, dict], dict[str, str]]:
    """The attacks on this machine: site -> report, and site -> why there is none."""
    import torch
    from tqdm import tqdm

    from app_fedsm.cli.evaluate import check_counts, open_cases
    from fedsm.evaluation.candidates import Candidates
    from fedsm.evaluation.membership import audit_of, losses_of
    from fedsm.super_model.artefact import load_super_model

    sites = args.sites or run.sites
    if unknown := [site for site in sites if site not in run.sites]:
        raise UserError("took no part in training", site=unknown[0], remedy=f"known: {', '.join(run.sites)}")
    if run.data is None:
        if args.data:
            raise UserError(f"{args.data} is no folder", remedy="--data is the folder with one sub-folder per site")
        return {}, dict.fromkeys(sites, "its images are not on this machine: --data, or --env poc or prod")
    folder = run.folder / "super_model"
    model = load_super_model(folder)
    parts = {part: open_cases(model, folder, run.data, part, sites) for part in ("train", "test")}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    models = Candidates(model.settings, model.manifest["sites"], model.networks, device)
    found = {}
    total = sum(len(cases) for by_site in parts.values() for cases in by_site.values())
    with tqdm(total=total, desc="attacking", unit="file", disable=None) as bar:
        for site in sites:
            losses = {
                part: losses_of(models, model.settings, by_site[site], device, bar.update)
                for part, by_site in parts.items()
            }
            for part, values in losses.items():
                check_counts(model, {site: values}, part)
            found[site] = audit_of(site, losses["train"], losses["test"], args.seed)
    return found, {}


def _in_federation(args: argparse.Namespace, run: Run) -> tuple[dict[str, dict], dict[str, str]]:
    from app_fedsm.federation import remote
    from app_fedsm.federation.evaluate_remote import evaluate_remotely
    from app_fedsm.federation.poc import Poc
    from fedsm.core.task_names import AUDIT
    from fedsm.super_model.artefact import load_super_model

    kit, sites = args.kit, args.sites
    if args.env == POC:
        poc = Poc(args.dir or Path("poc"))
        kit, sites = poc.lead, sites or poc.note["sites"]
    folder = (run.folder / "super_model").resolve()
    model = load_super_model(folder)
    try:
        found = evaluate_remotely(
            login_of(args, kit), folder, model, sites, "test", args.seed, args.byoc, args.run, AUDIT
        )
    except remote.JobFailed as e:
        raise UserError(f"the audit failed: {e}") from e
    return found["sites"], found["missing"]


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command to `fedsm`'s."""
    group = commands.add_parser("privacy", help="what a run gives away", epilog=_EXAMPLE)
    parser = group.add_commands().add_parser(
        "audit", help="what left each site, and attacks on the models", epilog=_EXAMPLE,
        description="Writes privacy_audit.html, for a data protection officer, and privacy_audit.json into the run's"
        " folder: what left each site, epsilon where there is one, what others could learn, and whether the models tell"
        " which images they were trained on. The attacks run where the images are; only figures leave a site.",
    )  # fmt: skip
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the folder of a finished run")
    add("--data", type=Path, metavar="ROOT", help="the data root, with --env local (default: the run's own)")
    add("--sites", nargs="+", metavar="SITE", help="only these (with --env prod: needed)")
    add(
        "--env", choices=(LOCAL, POC, PROD), default=LOCAL,
        help="where the images are: on this machine, or at the sites of a POC or of a provisioned federation"
        " (default: local)",
    )  # fmt: skip
    add("--kit", type=Path, metavar="KIT", help="your startup kit, with --env prod")
    add_study(parser)
    add("--dir", type=Path, metavar="DIR", help="the POC's folder, with --env poc (default: poc)")
    add("--byoc", action="store_true", help="carry the code inside the job (sites must allow it)")
    add("--seed", type=int, default=0, metavar="S", help="of the bootstrap (default: 0)")
    add("--force", action="store_true", help="replace an earlier audit")
    add_format(parser)
    parser.set_defaults(do=_audit)
