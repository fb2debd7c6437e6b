"""Where the server keeps networks of which there is one for each site: in its memory, or each in a file of its own.

A file is changed in place only while no other name leads to it. A checkpoint links the files instead of copying them
(`server/checkpoint.py`), so the first change after it goes to a new file, and a run that is killed in the middle of one
leaves the checkpoint as it was. What networks that did not change have in common is then one file, too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, cast

import torch
from safetensors.torch import save_file

from fedsm.core.files import PARTIAL
from fedsm.core.mapped import map_tensors, release
from fedsm.core.state import copy
from fedsm.core.tensors import Tensors

FOLDER = "models"  # beside `checkpoints/`, as long as the job runs


class FromFile(dict[str, torch.Tensor]):
    """Tensors as they were read from a file; whoever changes them makes plain ones of them.

    Attributes:
        path: the file.
    """

    def __init__(self, tensors: Tensors, path: Path):
        super().__init__(tensors)
        self.path = path


class StoredModel(Mapping[str, torch.Tensor]):
    """A network in a file, which is mapped each time it is looked at: only its path is held.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path):
        self.path = path

    def open(self, writable: bool = False) -> Tensors:
        """Its tensors, as `map_tensors` gives them."""
        return map_tensors(self.path, writable)

    def detach(self) -> None:
        """Makes a file of its own of one that has other names, before it is changed."""
        if self.path.stat().st_nlink > 1:
            with _beside(self.path) as partial:
                shutil.copyfile(self.path, partial)

    @contextlib.contextmanager
    def editing(self) -> Iterator[Tensors]:
        """Its tensors, to be changed in place."""
        self.detach()
        tensors = self.open(writable=True)
        yield tensors
        release(tensors)

    def __getitem__(self, key: str) -> torch.Tensor:
        return self.open()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.open())

    def __len__(self) -> int:
        return len(self.open())

    def __deepcopy__(self, memo: dict[int, object]) -> Tensors:
        return copy(self.open())


class ModelStore(Protocol):
    """Keeps networks by the names that they have in a checkpoint."""

    def put(self, name: str, tensors: Tensors) -> Tensors:
        """Keeps tensors that nobody else has."""
        ...

    def copies(self, names: Iterable[str], tensors: Tensors) -> dict[str, Tensors]:
        """Keeps a network for each name, all equal."""
        ...

    def adopt(self, name: str, tensors: Tensors) -> Tensors:
        """Keeps a network of a checkpoint."""
        ...


class InMemory:
    """Networks in memory."""

    def put(self, name: str, tensors: Tensors) -> Tensors:
        return tensors

    def copies(self, names: Iterable[str], tensors: Tensors) -> dict[str, Tensors]:
        return {name: copy(tensors) for name in names}

    def adopt(self, name: str, tensors: Tensors) -> Tensors:
        return tensors


class OnDisk:
    """Networks in files.

    Args:
        folder: a folder for them alone, on the disk of the checkpoints; what an earlier process left in it is removed.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self.remove()
        folder.mkdir(parents=True, mode=0o700)

    def put(self, name: str, tensors: Tensors) -> Tensors:
        model = self._model(name)
        with _beside(model.path) as partial:
            save_file({key: value.contiguous() for key, value in tensors.items()}, partial)
        release(tensors)
        return _as_tensors(model)

    def copies(self, names: Iterable[str], tensors: Tensors) -> dict[str, Tensors]:
        first, *others = names
        kept = {first: self.adopt(first, tensors)}
        return kept | {name: self.adopt(name, kept[first]) for name in others}

    def adopt(self, name: str, tensors: Tensors) -> Tensors:
        if not isinstance(tensors, (FromFile, StoredModel)):
            return self.put(name, tensors)
        model = self._model(name)
        if tensors.path != model.path:
            with _beside(model.path) as partial:
                link_or_copy(tensors.path, partial)
        return _as_tensors(model)

    def remove(self) -> None:
        """Removes the folder; what is linked elsewhere stays there."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _model(self, name: str) -> StoredModel:
        return StoredModel(self._folder / f"{name}.safetensors")


IN_MEMORY = InMemory()


def opened(tensors: Tensors) -> Tensors:
    """The tensors of a network, wherever it is kept."""
    return tensors.open() if isinstance(tensors, StoredModel) else tensors


@contextlib.contextmanager
def editing(tensors: Tensors) -> Iterator[Tensors]:
    """The tensors of a network, to be changed in place, wherever it is kept."""
    if isinstance(tensors, StoredModel):
        with tensors.editing() as own:
            yield own
    else:
        yield tensors


def stored(tensors: Tensors) -> StoredModel | None:
    """The network's file, or None where it is in memory."""
    return tensors if isinstance(tensors, StoredModel) else None


def link_or_copy(source: Path, target: Path) -> None:
    """Gives a file a second name; on a file system without links, or on another disk, it is copied."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path`. Not forced to the disk: a checkpoint does that."""
    partial = path.with_name(path.name + PARTIAL)
    yield partial
    os.replace(partial, path)


def _as_tensors(model: StoredModel) -> Tensors:
    """A network that is read when it is looked at has all that is asked of one in memory, but is no `dict`."""
    return cast("Tensors", model)
