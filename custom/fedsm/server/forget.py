"""A site leaves for good: its personal model, its statistics and its entries are removed from a run.

What it added to models that others share (the global one; the personal ones, through SoftPull) stays in them: weights
cannot be unlearned. Results and history stay as they were measured.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from fedsm.core.errors import UserError
from fedsm.core.files import write_bytes
from fedsm.core.model_store import FOLDER as MODELS
from fedsm.core.names import below, check_site_name, refuse_links
from fedsm.core.plain_json import reading
from fedsm.core.private_files import close_to_others
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.selectors.inference import personal
from fedsm.server.checkpoint import FOLDER, Checkpoints
from fedsm.server.record import RunRecord
from fedsm.super_model.artefact import load_super_model, save_super_model
from fedsm.super_model.record import RECORD, SUPER_MODEL
from fedsm.tracks import check_tracks, server_tracks
from fedsm.tracks.base import Membership

_REST = ("run.json", "accepted.jsonl", "progress.jsonl", "results.json")


@dataclass
class Forgotten:
    """What will be, or was, done.

    Attributes:
        site: who leaves.
        sites: who stays, in index order.
        round: the checkpoint that was rewritten.
        selector: the kind of selector, or None.
        has_super_model: whether there is one to write again.
    """

    site: str
    sites: list[str]
    round: int
    selector: str | None
    has_super_model: bool


class Forgetting:
    """Prepares to forget a site; nothing is changed before `write`.

    Args:
        run: the run's folder, with `checkpoints/` and perhaps `super_model/`.
        site: who leaves.

    Raises:
        UserError: no such run or site, or the method cannot go on without the site.
    """

    def __init__(self, run: Path, site: str):
        self._run, self._site = run, check_site_name(site, f"forgetting in {run}")
        names = [f"{name}{end}" for name in (FOLDER, SUPER_MODEL) for end in ("", ".new", ".new.partial", ".earlier")]
        refuse_links(run, [*names, "site_state", *_REST])
        _restore(run)
        self._source = Checkpoints(run / FOLDER)
        state = self._source.load()
        if state is None:
            raise UserError(f"{run} holds no checkpoint", remedy="give the folder of a run")
        self._state = state
        with reading(f"the checkpoint in {run / FOLDER}", "copy the run again"):
            self._job = JobSettings.from_dict(self._state["settings"])
            self._record = RunRecord(**self._state["record"], best=self._state["best"])
            sites = self._record.sites
            for noted in (self._record.images, self._record.warnings):
                noted.pop(site, None)
        if site not in sites:
            raise UserError(f"site {site!r} is not part of the run in {run}", remedy=f"its sites: {', '.join(sites)}")
        rest = [s for s in sites if s != site]
        check_tracks(self._job, rest)
        self._tracks = server_tracks(self._job, sites)
        self._files = {stem: self._source.load_weights(name) for stem, name in self._state["files"].items()}
        for track in self._tracks.values():
            if isinstance(track, Membership):
                track.leave(self._files, site)
        selector = self._job.tracks.get("selector", {}).get("kind")
        self._super_model = load_super_model(run / SUPER_MODEL) if (run / SUPER_MODEL).is_dir() else None
        # A super model that an interrupted attempt has already written does not hold the site.
        holds = self._super_model is not None and site in self._super_model.manifest["sites"]
        self.plan = Forgotten(site, rest, self._state["round"], selector, holds)

    def write(self, out: Path) -> None:
        """Writes checkpoint and super model without the site to `out`: the run's folder itself, or another.

        The old ones stay beside until the new ones are complete.
        """
        state = below(out, out / "site_state" / self._site)  # a simulated site's own disk
        out.mkdir(parents=True, exist_ok=True)
        folders = [FOLDER]
        self._write_checkpoint(out / f"{FOLDER}.new")
        if self.plan.has_super_model:
            self._write_super_model(out / f"{SUPER_MODEL}.new")
            folders.insert(0, SUPER_MODEL)  # the checkpoint last: while it holds the site, this can be repeated
        for name in folders:
            if (out / name).exists():
                os.replace(out / name, out / f"{name}.earlier")
            os.replace(out / f"{name}.new", out / name)
        for name in folders:
            shutil.rmtree(out / f"{name}.earlier", ignore_errors=True)
        shutil.rmtree(out / MODELS, ignore_errors=True)  # what a killed server left (`personal_models: disk`)
        shutil.rmtree(state, ignore_errors=True)

    def _write_checkpoint(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        target = Checkpoints(folder)
        record = self._record
        gone = personal(self._site)
        record.best = {model: entry for model, entry in record.best.items() if model != gone}
        record.sites = self.plan.sites
        record.forgotten = [*record.forgotten, self._site]
        plain = record.to_dict()
        best = plain.pop("best")
        (folder / "weights").mkdir(parents=True)
        for model, entry in best.items():
            target.save_weights(entry["file"], self._without(model, self._source.load_weights(entry["file"])))
        state = {"record": plain, "best": best, "settings": self._state["settings"]}
        target.save(self._state["round"], self._files, state)

    def _write_super_model(self, folder: Path) -> None:
        old = self._super_model
        assert old is not None
        networks: dict[str, Tensors] = {}
        notes: dict[str, dict] = {}
        for model, weights in old.networks.items():
            if model == personal(self._site):
                continue
            networks[model] = self._without(model, weights)
            entry = old.manifest["networks"][model]
            notes[model] = {key: value for key, value in entry.items() if key not in ("file", "sha256")}
        manifest = {k: v for k, v in old.manifest.items() if k not in ("format", "settings", "networks")}
        manifest |= {"sites": self.plan.sites, "forgotten": [*manifest.get("forgotten", []), self._site]}
        save_super_model(folder, old.settings, manifest, networks, notes)
        if (self._run / SUPER_MODEL / RECORD).is_file():  # still shows which of the files are as they were signed
            write_bytes(folder / RECORD, (self._run / SUPER_MODEL / RECORD).read_bytes())

    def _without(self, model: str, weights: Tensors) -> Tensors:
        """A model without the site; one that is not shared is as it was."""
        track = self._tracks.get(model)
        return track.leave_model(weights, self._files, self._site) if isinstance(track, Membership) else weights


def _restore(run: Path) -> None:
    """Puts back what a run that was killed while it forgot a site had moved aside."""
    for name in (FOLDER, SUPER_MODEL):
        earlier = run / f"{name}.earlier"
        if earlier.is_dir() and not (run / name).exists():
            os.replace(earlier, run / name)


def copy_rest(run: Path, out: Path, site: str) -> None:
    """Copies what else is needed to go on with the run in another folder: its description, logs and the sites' state.

    Raises:
        UserError: `out` holds something already.
    """
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty", remedy="choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    for name in _REST:
        if (run / name).is_file():
            shutil.copyfile(run / name, out / name)
    if (run / "site_state").is_dir():
        shutil.copytree(run / "site_state", out / "site_state", ignore=shutil.ignore_patterns(site))
        close_to_others(out / "site_state")  # the copy has the modes of the original
