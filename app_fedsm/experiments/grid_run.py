"""One run of an experiment, in a process of its own: `python -m app_fedsm.experiments.grid_run FOLDER`.

The folder's `experiment.json` says what to run. Finished parts are not done again: results stay, an interrupted
training goes on from its last checkpoint, and only a missing test on the unseen site is added.

Written by hand: runners such as Ray Tune or Hydra bring a service or settings files of their own. Here a run is one
process and one folder, and the folder holds all that is needed to go on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from app_fedsm.config.names import CENTRALIZED
from app_fedsm.experiments.grid import Run
from app_fedsm.experiments.grid_scores import score_run, site_cache
from fedsm.core.errors import UserError
from fedsm.core.files import write_json
from fedsm.core.private_files import keep_private
from fedsm.core.settings import JobSettings
from fedsm.core.text import one_line
from fedsm.evaluation.row_scores import FILE as IMAGE_SCORES

SPEC = "experiment.json"
LOG = "experiment.log"
UNSEEN = "unseen.json"
_LINKS = "sites"


def spec_of(run: Run, data: Path, sites: list[str], threads: int | None, cache: Path) -> dict:
    """The settings of a run's process, as plain values."""
    taking_part = [site for site in sites if site != run.unseen]
    return {
        "settings": run.settings.to_dict(), "data": str(data.resolve()), "sites": taking_part, "unseen": run.unseen,
        "threads": min(threads or len(taking_part), len(taking_part)), "cache": str(cache.resolve()),
    }  # fmt: skip


def state_of(folder: Path, spec: dict) -> str:
    """How far a run is: `done`, `resume` (interrupted), or `start`.

    Raises:
        UserError: the folder holds another run.
    """
    from app_fedsm.runs.run_folder import rounds_done

    try:
        held = json.loads((folder / SPEC).read_text())
        finished = json.loads((folder / "results.json").read_text()) if (folder / "results.json").exists() else None
        settings = [JobSettings.from_dict(s).to_dict() for s in (held["settings"], (finished or held)["settings"])]
        for key in ("data", "sites", "unseen"):
            if held[key] != spec[key]:
                raise UserError(
                    f"{folder} holds a run with other {key}", remedy="choose another --out, or delete the folder"
                )
    except FileNotFoundError:
        # Only `write_json`'s unfinished file is there: the process was killed before it started anything.
        if folder.is_dir() and any(path.name != f"{SPEC}.partial" for path in folder.iterdir()):
            raise UserError(
                f"{folder} holds something else", remedy="choose another --out, or delete the folder"
            ) from None
        return "start"
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UserError(f"{folder} holds a damaged run ({e})", remedy="delete the folder") from e
    for key, value in json.loads(json.dumps(spec["settings"])).items():
        if any(s[key] != value for s in settings):
            raise UserError(
                f"{folder} holds a run with another {key!r}", remedy="choose another --out, or delete the folder"
            )
    if finished:
        needed = [IMAGE_SCORES, *([UNSEEN] if spec["unseen"] else [])]
        return "done" if all((folder / name).is_file() for name in needed) else "resume"
    return "resume" if rounds_done(folder) else "start"


def complete(folder: Path, spec: dict) -> None:
    """Does what is left of a run.

    Raises:
        UserError, SimulationFailed: it cannot be done.
    """
    settings = JobSettings.from_dict(spec["settings"])
    data, cache = Path(spec["data"]), Path(spec["cache"])
    if not (folder / "results.json").is_file():
        root = _link_sites(folder / _LINKS, data, spec["sites"]) if spec["unseen"] else data
        train = {CENTRALIZED: _run_centralized}.get(settings.method, _run_federated)
        train(settings, root, spec["sites"], folder, spec["threads"], cache)
    if spec["unseen"] and not (folder / UNSEEN).is_file():
        write_json(folder / UNSEEN, test_on(folder, settings, data, spec["unseen"], cache))
    if not (folder / IMAGE_SCORES).is_file():
        sites = [spec["unseen"]] if spec["unseen"] else spec["sites"]
        write_json(folder / IMAGE_SCORES, score_run(folder, settings, data, sites, cache))


def _link_sites(root: Path, data: Path, sites: list[str]) -> Path:
    """A data root that holds some of another's sites."""
    root.mkdir(parents=True, exist_ok=True)
    for site in sites:
        if not (root / site).is_symlink():
            (root / site).symlink_to((data / site).resolve(), target_is_directory=True)
    return root


def _run_federated(
    settings: JobSettings, root: Path, sites: list[str], out: Path, threads: int, cache: Path
) -> None:  # fmt: skip
    from app_fedsm.runs import run_folder, simulate

    resume = run_folder.rounds_done(out) > 0
    run_folder.prepare_folder(out, resume, force=True)
    simulate.simulate(settings, root, sites, out, threads, resume, cache)


def _run_centralized(
    settings: JobSettings, root: Path, sites: list[str], out: Path, threads: int, cache: Path
) -> None:  # fmt: skip
    from app_fedsm.runs.centralized import run_centralized

    run_centralized(settings, root, sites, out, cache)


def test_on(folder: Path, settings: JobSettings, data: Path, site: str, cache: Path) -> dict:
    """Tests a finished run's candidates on the test images of a site that took no part in it.

    Returns:
        site, the policy that was chosen without it, and what `evaluate_candidates` says.
    """
    import torch

    from fedsm.data.dataset import load_site
    from fedsm.evaluation.candidates import evaluate_candidates
    from fedsm.selectors.policy import read_policy
    from fedsm.super_model.artefact import load_super_model

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_super_model(folder / "super_model")
    part = load_site(data / site, site, settings, cache=site_cache(cache, site))["test"]
    policy, sites = read_policy(model.manifest, str(folder)), model.manifest["sites"]
    evaluation = evaluate_candidates(
        settings, sites, model.networks, lambda: part.batches(settings.batch_size, device), device, policy, part.slices
    )
    return {
        "site": site,
        "policy": policy.to_dict(),
        "hard_gamma": model.manifest["hard_gamma"],
        "evaluation": evaluation,
    }


def _end_with_parent() -> None:
    """A killed `fedsm experiment` must not leave runs behind that its next call would start a second time."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main(argv: list[str]) -> int:
    """Entry point of the run's process; the last line of its log says why it failed."""
    from app_fedsm.runs import simulate

    folder = Path(argv[0])
    try:
        # With patience: a run whose grid was killed takes some seconds to stop.
        with simulate.stop_signals(), simulate.lock_run(folder, patience=60):
            _end_with_parent()
            complete(folder, json.loads((folder / SPEC).read_text()))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except (UserError, simulate.SimulationFailed) as e:
        print(one_line(e, 2000), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    keep_private()
    sys.exit(main(sys.argv[1:]))
