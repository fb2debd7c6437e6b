"""One thread owns the networks; requests that wait are put into one batch.

Of n requests that wait, each gets its share of every batch: a picture does not wait for a volume of 500 slices.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

import torch

from fedsm.selectors.selection import Selection, by_majority
from fedsm.super_model.model import SuperModel
from fedsm.super_model.prediction import BatchPrediction


@dataclass
class _Job:
    pixels: torch.Tensor
    options: dict
    future: Future[BatchPrediction] = field(default_factory=Future)
    votes: list[Selection] | None = None  # of a volume that gets one model: what its slices select, until all have
    selection: Selection | None = None  # then what they all get
    done: list[BatchPrediction] = field(default_factory=list)
    rows: int = 0  # that are done

    @property
    def kind(self) -> tuple[dict, bool, bool]:
        """Jobs of the same kind share batches."""
        return self.options, self.votes is None, self.selection is None


class Worker:
    """Predicts, in a thread of its own.

    Args:
        model: the super model; nobody else may use its networks.
        batch: images at once.
    """

    def __init__(self, model: SuperModel, batch: int):
        self._model, self._batch = model, batch
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(target=self._work, name="fedsm-networks", daemon=True)
        self._thread.start()

    def submit(self, pixels: torch.Tensor, options: dict) -> Future[BatchPrediction]:
        """Asks for a prediction; cancelling the future takes the rest of it out of the queue.

        Args:
            pixels: (slices, C, S, S).
            options: of `SuperModel.predict_batch`.
        """
        job = _Job(pixels, options)
        if len(pixels) > 1 and self._model.policy_for(**options).majority:
            job.votes = []
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    def close(self) -> None:
        """Ends the thread after the batch that it works on; what waits is cancelled."""
        with self._changed:
            self._open = False
            for job in self._jobs:
                job.future.cancel()
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while jobs := self._next():
            self._predict(jobs)
            del jobs  # while it waits, nothing of a patient's stays

    def _predict(self, jobs: list[tuple[_Job, int]]) -> None:
        try:
            pixels = torch.cat([job.pixels[job.rows : job.rows + count] for job, count in jobs])
            first = jobs[0][0]
            if first.votes is not None:
                self._count(jobs, self._model.select(pixels, self._model.policy_for(**first.options)))
                return
            known = [job.selection.rows(slice(job.rows, job.rows + n)) for job, n in jobs if job.selection is not None]
            selection = Selection.cat(known) if known else None
            batch = self._model.predict_batch(pixels, selection=selection, **first.options)
        except Exception as e:  # told to those who asked; the thread goes on
            for job, _ in jobs:
                self._end(job, e)
            return
        start = 0
        for job, count in jobs:
            job.done.append(batch.rows(slice(start, start + count)))
            job.rows += count
            start += count
            if job.rows == len(job.pixels):
                self._end(job, None)

    def _count(self, jobs: list[tuple[_Job, int]], votes: Selection) -> None:
        """Adds votes of slices; where all are there, the networks have their turn."""
        start = 0
        for job, count in jobs:
            assert job.votes is not None
            job.votes.append(votes.rows(slice(start, start + count)))
            job.rows += count
            start += count
            if job.rows == len(job.pixels):
                job.selection = by_majority(Selection.cat(job.votes), self._model.rule, [job.rows])
                job.votes, job.rows = None, 0

    def _next(self) -> list[tuple[_Job, int]]:
        """Jobs of the same kind, each with its number of images in the next batch; empty at the end."""
        with self._changed:
            while True:
                self._jobs = deque(job for job in self._jobs if not job.future.done())
                if not self._open or self._jobs:
                    break
                self._changed.wait()
            if not self._open:
                return []
            same = [job for job in self._jobs if job.kind == self._jobs[0].kind][: self._batch]
            room, chosen = self._batch, []
            for number, job in enumerate(sorted(same, key=lambda job: len(job.pixels) - job.rows)):
                count = min(len(job.pixels) - job.rows, max(1, room // (len(same) - number)))
                chosen.append((job, count))
                room -= count
            for job in same:  # the next batch begins with others
                self._jobs.remove(job)
                self._jobs.append(job)
            return chosen

    @staticmethod
    def _end(job: _Job, error: Exception | None) -> None:
        with contextlib.suppress(InvalidStateError):  # it was cancelled meanwhile
            if error:
                job.future.set_exception(error)
            else:
                job.future.set_result(BatchPrediction.cat(job.done))
