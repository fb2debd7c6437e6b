"""A site's images for training: tensors of one size, in batches whose order is fixed by a seed."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import PIL
import psutil
import torch
from torch.nn import functional
from tqdm import tqdm

from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.task_settings import TaskSettings
from fedsm.core.tensors import Batch
from fedsm.core.text import printable
from fedsm.data import intensity, readers, site_folder
from fedsm.data.cache import CacheFull, Entry, SiteCache, open_entry
from fedsm.data.dicom.place import ImportPlace
from fedsm.data.dicom.site import images_folder
from fedsm.data.intensity import IntensityError, scale_intensity
from fedsm.data.patients import patients_of
from fedsm.data.readers import VOLUMES, slice_count, suffix
from fedsm.data.site_folder import Pair, list_pairs, read_pair
from fedsm.data.site_rules import RESEARCH, SiteRules
from fedsm.data.split import PARTS, derive_seed, split_site
from fedsm.data.staging import staged

# The code is part of the cache's keys: a change in how files become numbers makes new entries.
_CODE = (__file__, intensity.__file__, readers.__file__, site_folder.__file__)

log = logging.getLogger(__name__)


class MappedRows:
    """Some rows of a mapped array; indexing with a slice or a tensor of indices reads those rows into a new tensor."""

    def __init__(self, entry: Entry, array: np.ndarray, rows: torch.Tensor):
        self._entry = entry  # the entry counts as used while this object lives
        self._array = array
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: slice | torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._array.take(self._rows[index].numpy(), axis=0))


@dataclass
class Part:
    """Images (N, C, S, S) float32 in 0..1 and labels (N, L, S, S) uint8 of one part of a site.

    `files` are their image files, each with its patient; empty: unknown. `counts` says how many images each file
    has; empty: one.
    """

    images: torch.Tensor | MappedRows
    labels: torch.Tensor | MappedRows
    files: list[tuple[Path, str]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def rows_by_patient(self) -> list[torch.Tensor]:
        """The rows of each patient's images; where patients are unknown, each image is one of its own."""
        if not self.files:
            return list(torch.arange(len(self)).split(1))
        counts = torch.tensor(self.counts or [1] * len(self.files))
        owners = torch.arange(len(counts)).repeat_interleave(counts)
        numbers: dict[str, int] = {}
        patients = torch.tensor([numbers.setdefault(patient, len(numbers)) for _, patient in self.files])
        return [torch.nonzero(patients[owners] == number).flatten() for number in numbers.values()]

    @property
    def patients(self) -> int:
        """The number of different patients; 0: unknown."""
        return len({patient for _, patient in self.files})

    @property
    def slices(self) -> list[int]:
        """The slices of each file; empty: unknown."""
        return [slice_count(file) for file, _ in self.files]

    def __len__(self) -> int:
        return len(self.images)

    def order(self, batch_size: int, seed: int | None = None) -> tuple[torch.Tensor, ...]:
        """The rows of all batches: each image once, the last batch may be smaller.

        Args:
            batch_size: images per batch.
            seed: fixes a random order; None keeps the files' order.
        """
        if seed is None:
            return torch.arange(len(self)).split(batch_size)
        return torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).split(batch_size)

    def load(self, rows: torch.Tensor) -> Batch:
        """Images and labels of these rows, as they are held: labels as bytes."""
        return self.images[rows], self.labels[rows]

    def batches(
        self, batch_size: int, device: torch.device, pin: bool = False, seed: int | None = None
    ) -> Iterator[Batch]:
        """Walks all images once, on a device, in the order of `order`; `pin` goes through pinned memory (CUDA)."""
        loads = (partial(self.load, rows) for rows in self.order(batch_size, seed))
        for images, labels in staged(loads, device, pin):
            yield images, labels.float()


def to_pixels(image: np.ndarray, task: TaskSettings, size: int) -> torch.Tensor:
    """An image (slices, H, W, C) as the networks see it: (slices, C, size, size) float32 in 0..1."""
    pixels = torch.from_numpy(np.ascontiguousarray(scale_intensity(image, task.intensity))).permute(0, 3, 1, 2)
    return functional.interpolate(pixels, (size, size), mode="bilinear", antialias=True).clamp(0, 1).contiguous()


def to_tensors(image: np.ndarray, mask: np.ndarray, task: TaskSettings, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One pair to (slices, C, size, size) float32 in 0..1 and (slices, L, size, size) uint8."""
    pixels = to_pixels(image, task, size)
    values = torch.from_numpy(np.ascontiguousarray(mask).astype(np.int32))[:, None].float()
    values = functional.interpolate(values, (size, size), mode="nearest-exact")[:, 0]
    labels = [torch.isin(values, torch.tensor(v, dtype=values.dtype)) for v in task.labels.values()]
    return pixels, torch.stack(labels, dim=1).to(torch.uint8)


def seeded_order(settings: JobSettings, site: str, round_number: int, epoch: int) -> int:
    """The seed of a site's order of batches in one epoch: the same in every process."""
    return derive_seed(settings.seed, site, round_number, epoch)


def load_site(
    folder: Path,
    site: str,
    settings: JobSettings,
    state: Path | None = None,
    rules: SiteRules = RESEARCH,
    cache: SiteCache | None = None,
    imports: ImportPlace | None = None,
) -> dict[str, Part]:
    """Loads the three parts of a site's folder.

    Args:
        folder: the site's folder.
        site: its name.
        settings: the job's settings.
        state: where the split is stored; None: it is drawn anew.
        rules: what the site decides about its files, whatever the job says.
        cache: where decoded images are kept; None: they are decoded to memory.
        imports: where the copy of DICOM files is kept; see `images_folder`.

    Raises:
        UserError: whatever is wrong with the folder, naming the site, the file and the remedy.
    """
    folder = images_folder(folder, site, settings.task, imports)
    pairs = list_pairs(folder, site)
    stems = [p.stem for p in pairs]
    patients = patients_of(folder, stems, rules.pattern(folder, settings.task, site), site)
    split = split_site(stems, patients, rules.split_seed(settings), site, folder, state)
    entry = _open_entry(pairs, site, settings, cache) if cache else None
    parts = {}
    for part in PARTS:
        files = [(pairs[i].image, patients[i]) for i in split[part]]
        if entry:
            rows = entry.rows(split[part])
            counts = [entry.counts[i] for i in split[part]]
            parts[part] = Part(
                MappedRows(entry, entry.images, rows), MappedRows(entry, entry.labels, rows), files, counts
            )
        else:
            decoded = list(_decode([pairs[i] for i in split[part]], site, settings, cache.workers if cache else 1))
            images, labels = (torch.cat(tensors) for tensors in zip(*decoded, strict=True))
            parts[part] = Part(images, labels, files, [len(held) for held, _ in decoded])
    return parts


def _open_entry(pairs: list[Pair], site: str, settings: JobSettings, cache: SiteCache) -> Entry | None:
    """The site's cache entry; None if the folder cannot be used or is too small: then images are held in memory."""
    task = settings.task
    shaping = {
        "size": settings.size,
        "channels": task.channels,
        "labels": list(task.labels.items()),  # their order is that of the channels
        "background": sorted(task.background),  # other values in a mask are refused
        "intensity": task.intensity,
        "libraries": [np.__version__, torch.__version__, version("nibabel"), PIL.__version__],
        "code": [hashlib.sha256(Path(f).read_bytes()).hexdigest() for f in _CODE],
    }
    slices = sum(slice_count(pair.image) for pair in pairs)
    need = slices * settings.size**2 * (4 * task.channels + len(task.labels))  # float32 and bytes
    try:
        return open_entry(cache, site, pairs, shaping, lambda: _decode(pairs, site, settings, cache.workers), need)
    except CacheFull as e:
        log.warning(
            "site %r: decoded images take %.3g GB, and cache_budget (%.3g GB) has no room for them, so they are decoded"
            " to memory at every start; raise it in fedsm_site.yaml", site, e.need / 1e9, cache.budget / 1e9,
        )  # fmt: skip
        _check_memory(need, site)
        return None
    except OSError as e:
        log.warning(
            "site %r: the cache %s cannot be used (%s), so all images are decoded to memory at every start;"
            " make room there or set another cache_dir in fedsm_site.yaml", site, cache.folder, e.strerror or e,
        )  # fmt: skip
        _check_memory(need, site)
        return None


def _check_memory(need: int, site: str) -> None:
    """Refuses to decode more to memory than the machine has left: the job decides the size, and others work here too.

    Raises:
        UserError: with the remedy.
    """
    free = psutil.virtual_memory().available
    if need > free:
        message = "the site's images at the job's size fit neither into its cache nor into its memory"
        raise UserError(
            f"{message} ({need / 1e9:.3g} GB of {free / 1e9:.3g})",
            site=site,
            remedy="raise cache_budget in fedsm_site.yaml, or ask for a smaller size",
            public=f"{message}: a smaller size may help",
        )


def _decode(pairs: list[Pair], site: str, settings: JobSettings, workers: int) -> Iterator[tuple]:
    """The tensors of the pairs, in their order; at most two per worker are in memory."""
    unit = "volume" if suffix(pairs[0].image) in VOLUMES else "image"
    desc = f"decoding {printable(site)}"
    bar = tqdm(total=len(pairs), desc=desc, unit=unit, leave=False, disable=None)  # None: not in a log
    with bar, ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[tuple]] = deque()
        try:
            for pair in pairs:
                waiting.append(pool.submit(load_pair, pair, site, settings))
                if len(waiting) == 2 * workers:
                    yield waiting.popleft().result()
                    bar.update()
            while waiting:
                yield waiting.popleft().result()
                bar.update()
        finally:
            for future in waiting:
                future.cancel()


def load_pair(pair: Pair, site: str, settings: JobSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensors of one pair of a site's files; see `to_tensors`.

    Raises:
        UserError: naming the site and the file.
    """
    return pair_tensors(*read_pair(pair, site, settings.task), pair, site, settings)


def pair_tensors(
    image: np.ndarray, mask: np.ndarray, pair: Pair, site: str, settings: JobSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of a pair that was read.

    Raises:
        UserError: its intensities do not fit the task.
    """
    try:
        return to_tensors(image, mask, settings.task, settings.size)
    except IntensityError as e:
        raise UserError(e.message, site=site, file=pair.image, remedy=e.remedy) from e
