"""One site's work, without FLARE: register, train a round, validate, evaluate the candidates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch

from fedsm.client.compiler import prepare_compiler
from fedsm.client.device_group import check_distributed
from fedsm.client.device_link import DeviceLink
from fedsm.client.device_plan import plan_of
from fedsm.client.gpu_failures import gpu_failure
from fedsm.client.local_state import LocalState
from fedsm.client.personal_mix import try_shares
from fedsm.client.private_training import PrivateTraining
from fedsm.client.site_settings import SiteSettings
from fedsm.client.sum_rules import site_sum
from fedsm.client.sums_guard import check_sums_private, release_of
from fedsm.client.track_streams import streams_of
from fedsm.client.training_pass import Step, steps_of, train_on
from fedsm.client.work import Aborted, Answer
from fedsm.core.errors import UserError
from fedsm.core.limits import shown
from fedsm.core.settings import JobSettings
from fedsm.core.task_names import EVALUATE, MIX, OPEN, REGISTER, SUM, TRAIN, VALIDATE
from fedsm.core.tensors import Batch, Tensors
from fedsm.core.wire import wire_of
from fedsm.data.augment import draw_transforms
from fedsm.data.cache import SiteCache
from fedsm.data.dataset import load_site, seeded_order
from fedsm.data.readers import file_kind
from fedsm.evaluation.candidates import evaluate_candidates, validate_candidates
from fedsm.nets.first_weights import seed_generator
from fedsm.selectors.policy import read_policy
from fedsm.selectors.private_sums import PrivateSums
from fedsm.tracks import client_tracks, kind_of, rate_factor_in
from fedsm.tracks.base import ClientTrack, Phase, SiteContext
from fedsm.tracks.precision import autocast_dtype
from fedsm.tracks.shared_gradients import check_shareable

_LEFT = ".left"  # what is added to a track's name for what rounding left out of its updates

log = logging.getLogger(__name__)


class SiteTrainer:
    """Holds a site's data and the client halves of all tracks.

    Args:
        settings: the job's settings, as the server sent them.
        site: the site's own settings.
        name: the site's name.
        index: its index among the sites, 0-based.
        sites: the names of all sites.
        run_id: names the run; local state is found again by it.
    """

    def __init__(self, settings: JobSettings, site: SiteSettings, name: str, index: int, sites: list[str], run_id: str):
        torch.set_num_threads(site.threads)
        self.settings = settings
        self.name = name
        self.sites = sites
        self.device = site.device
        if len(site.devices) > 1:
            check_distributed(site.device)
            check_shareable(settings, {track: kind_of(track, spec).client for track, spec in settings.tracks.items()})
        if site.compile:
            prepare_compiler(site.device, site.state_dir, name)
        cache = SiteCache(site.cache_dir, site.cache_budget, site.workers)
        self.parts = load_site(site.data, name, settings, site.state_dir, site.rules, cache, site.imports)
        self._release = release_of(settings, site, name, self.parts["train"].files)
        autocast = _autocast(settings, site)
        self._context = SiteContext(
            index, len(sites), site.device, self._release, autocast=autocast, compiled=site.compile
        )
        self.tracks = client_tracks(settings, self._context)
        self._streams = streams_of(site.streams, self.tracks, site.device, name)
        self.others: DeviceLink | None = None  # the processes of the site's other devices
        if len(site.devices) > 1:
            plan = plan_of(site, settings, name, index, sites, run_id, autocast, self.parts["train"])
            self.others = DeviceLink(plan, site.devices, self.tracks)
        self._private: PrivateTraining | None = None
        if site.dp:
            check_sums_private(settings, self._release, name)
            self._private = PrivateTraining(site.dp, settings, self.parts["train"], site.state_dir, run_id, name)
            self._private.protect(self.tracks)
        self._local = LocalState(site.state_dir, run_id)
        self._sum = site_sum(settings, site, name, run_id)
        self._left: dict[str, Tensors] = {}  # track -> what rounding left out of its updates so far
        self._state_round: int | None = None  # the round whose moments are in memory

    def do(self, task: str, meta: dict, payload: dict[str, Tensors], aborted: Callable[[], bool]) -> Answer:
        """Does one task.

        Args:
            task: its name.
            meta: the task's plain values: `round`, and in `tracks` the tracks that take part.
            payload: the server's models by track; they are removed from it.
            aborted: whether the job was stopped; called before every batch of training.

        Raises:
            Aborted: `aborted()` became true.
            UserError: the task cannot be done.
        """
        try:
            return self._do(task, meta, payload, aborted)
        except Exception as e:
            failure = gpu_failure(e, self.device, self.settings.batch_size, self.settings.size)
            if failure is None:
                raise
            failure.site = self.name
            raise failure from e

    def _do(self, task: str, meta: dict, payload: dict[str, Tensors], aborted: Callable[[], bool]) -> Answer:
        number = meta["round"]
        payload = wire_of(self.settings, task).receive(payload)
        plain = {"round": number, "images": self.counts()}
        if task == REGISTER:
            sent = self.register()
            private = self._release if any(sent.values()) and isinstance(self._release, PrivateSums) else None
            plain |= {"sum_key": self._sum.register()} if self._sum else {}
            return self._answer(sent, plain | ({"privacy": private.report()} if private else {}))
        if task == TRAIN:
            updates, reports, losses = self.train(number, payload, aborted, meta["tracks"])
            if self._sum:
                self._sum.keep(number, updates)
                updates = {}
            private_loss = {"dp": self._private.report()} if self._private else {}
            return self._answer(updates, plain | {"reports": reports, "losses": losses} | private_loss)
        if task in (SUM, OPEN) and self._sum:
            hidden = self._sum.mask(meta) if task == SUM else self._sum.open(meta, payload)
            return Answer(hidden, plain, list(hidden))
        if task == VALIDATE:
            delivered, reports = self.deliver(number, payload, meta["tracks"])
            return self._answer(delivered, plain | {"reports": reports})
        if task == MIX:
            batches = partial(self.batches, "validation")
            dice = try_shares(self.settings, payload, meta.get("models"), batches, self.device, aborted)
            return self._answer({}, plain | {"mix": dice})
        if task == EVALUATE:
            return self._answer({}, plain | {"evaluation": self.evaluate(meta, payload)})
        raise UserError(f"unknown task {task!r}: server and site run different versions of fedsm")

    def _answer(self, sent: dict[str, Tensors], meta: dict) -> Answer:
        """The answer with these tensors; tracks that send nothing are left out."""
        sent = {name: tensors for name, tensors in sent.items() if tensors}
        return Answer(sent, meta, [name for name, track in self.tracks.items() if name in sent and track.sums])

    def batches(self, part: str, seed: int | None = None) -> Iterator[Batch]:
        """The batches of one part of the site's images."""
        s = self.settings
        return self.parts[part].batches(s.batch_size, self.device, s.pin_memory, seed)

    def counts(self) -> dict[str, int]:
        """Images of each part."""
        return {part: len(data) for part, data in self.parts.items()}

    def register(self) -> dict[str, Tensors]:
        """What the tracks send once, before round 1."""
        return {name: track.send(Phase.REGISTER, self.batches("train")) for name, track in self.tracks.items()}

    def validate(self, phase: Phase, payload: dict[str, Tensors], tracks: dict[str, ClientTrack]) -> dict[str, dict]:
        """Scores the received models on the validation part: track -> report. Removes the models from `payload`."""
        for name, track in tracks.items():
            track.receive(phase, payload.pop(name, {}))  # what a track does not keep is freed here
        reports = {name: track.validate(phase, self.batches("validation")) for name, track in tracks.items()}
        return {name: report for name, report in reports.items() if report}

    def train(
        self,
        number: int,
        payload: dict[str, Tensors],
        aborted: Callable[[], bool] = lambda: False,
        names: list[str] | None = None,
    ) -> tuple[dict[str, Tensors], dict[str, dict], dict[str, float]]:
        """Round `number`: validates the received models, then trains every track on every batch.

        Args:
            number: the round.
            payload: the server's models by track; they are removed from it.
            aborted: called before every batch.
            names: the tracks that take part in this round; None: all.

        Returns:
            updates by track as they travel, validation reports by track, mean training loss by track. With `dp` there
            are no losses: they are about the training images, and have no noise.

        Raises:
            Aborted: `aborted()` became true.
            UserError: training diverged, or the site's privacy budget is spent.
        """
        tracks = self._playing(names)
        if self._private:
            self._private.reserve(tracks)
        self._restore(before=number)
        header = {"number": number, "state_of": self._state_round, "names": names}
        models = {name: dict(tensors) for name, tensors in payload.items()} if self.others else {}
        if self.others:
            self.others.start()
        self._state_round = None  # until this round is done: a failed round leaves the moments half updated
        self._context.rate_factor = rate_factor_in(self.settings, number)
        reports = self.validate(Phase.TRAIN, payload, tracks)
        n_images = self.settings.local_epochs * len(self.parts["train"])
        for track in tracks.values():
            track.begin(n_images, self.batches("train"))

        # Dropout draws from torch's generator: seeded by site and round, it is the same in any process. With `dp` each
        # batch seeds it anew (`_before_step`).
        seed_generator(seeded_order(self.settings, self.name, number, -1))
        steps, before = self._steps(number), partial(self._before_step, aborted)

        def walk(steps: Iterable[Step], before: Callable[[Step], None]) -> Tensors:
            pin = self.settings.pin_memory
            return train_on(steps, self.parts["train"], tracks, self.device, pin, before, streams=self._streams)

        totals = self.others.train(header, models, tracks, steps, before, walk) if self.others else walk(steps, before)

        updates = {name: track.send(Phase.TRAIN) for name, track in tracks.items()}
        state = {name: track.state() for name, track in self.tracks.items()}
        losses = {} if self._private else {name: total.item() / n_images for name, total in totals.items()}
        made = [t for group in (updates, state) for tensors in group.values() for t in tensors.values()]
        if not all(torch.isfinite(t).all() for t in made if t.is_floating_point()):
            # Not saved: the next round goes on from the last good moments.
            message = f"training diverged in round {number}: NaN or infinite weights; a lower learning rate may help"
            raise UserError(message, site=self.name, public=message)
        updates, left = wire_of(self.settings, TRAIN).send_update(updates, self._left)
        self._left |= left
        self._local.save(number, state | {name + _LEFT: tensors for name, tensors in self._left.items()})
        self._state_round = number
        return updates, reports, losses

    def _steps(self, number: int) -> Iterator[Step]:
        """The batches of a round."""
        if not self._private:
            yield from steps_of(self.settings, self.parts["train"], self.name, number)
            return
        for rows, empty in self._private.batches():
            augment_rng = torch.Generator().manual_seed(self._private.seed())
            yield Step(rows, draw_transforms(len(rows), self.settings.task.augment, augment_rng), empty)

    def _before_step(self, aborted: Callable[[], bool], step: Step) -> None:
        if aborted():
            raise Aborted
        if self._private:
            self._private.noise.empty = step.empty
            seed_generator(self._private.seed())  # dropout: nobody can draw the same again

    def deliver(
        self, number: int, payload: dict[str, Tensors], names: list[str] | None = None
    ) -> tuple[dict[str, Tensors], dict[str, dict]]:
        """After round `number`, the last one of these tracks: what they hand over, and the final models' scores."""
        self._restore(before=number + 1)
        tracks = self._playing(names)
        reports = self.validate(Phase.DELIVER, payload, tracks)
        return {name: t.send(Phase.DELIVER, self.batches("train")) for name, t in tracks.items()}, reports

    def _playing(self, names: list[str] | None) -> dict[str, ClientTrack]:
        return {name: track for name, track in self.tracks.items() if names is None or name in names}

    def _restore(self, before: int) -> None:
        """Puts the moments of the round before into the tracks, from disk unless they are in memory already."""
        if self._state_round == before - 1:
            return
        number, state = self._local.load(before)
        if number == 0 and before > 1 and self.settings.fraction == 1:  # otherwise it may not have been asked yet
            log.warning("site %r has no local state from before round %d: Adam starts afresh", self.name, before)
        for name, track in self.tracks.items():
            track.load_state(state.get(name, {}))
        self._left = {name: state[name + _LEFT] for name in self.tracks if name + _LEFT in state}
        self._state_round = number

    def evaluate(self, meta: dict, candidates: dict[str, Tensors]) -> dict:
        """Scores every candidate, and what the selector makes of them, on the part of the images that `meta` names:
        numbers, and for the test part in `files` one word that says what the site's images are.

        Raises:
            UserError: the server asks for another part, or for a policy that is out of range.
        """
        part = meta.get("part")
        if part == "validation":
            batches, slices = partial(self.batches, part), self.parts[part].slices
            return validate_candidates(self.settings, self.sites, self.name, candidates, batches, self.device, slices)
        if part != "test":
            raise UserError(f"the server's task: no part {shown(part)}", public="refused: no such part")
        policy = read_policy(meta.get("policy", {}), "the server's task")
        files = [file for held in self.parts.values() for file, _ in held.files]
        batches, slices = partial(self.batches, part), self.parts[part].slices
        scores = evaluate_candidates(self.settings, self.sites, candidates, batches, self.device, policy, slices)
        return scores | {"files": file_kind(files)}


def _autocast(settings: JobSettings, site: SiteSettings) -> torch.dtype | None:
    """What the site trains in. With `dp` losses are not scaled, because gradients are clipped: no float16."""
    dtypes = {autocast_dtype(device, settings.amp, site.precision) for device in site.devices or (site.device,)}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float16  # GPUs of which one has no bfloat16
    return None if site.dp and dtype == torch.float16 else dtype
