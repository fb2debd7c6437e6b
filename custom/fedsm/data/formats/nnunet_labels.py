"""A task's labels as nnU-Net has them: classes numbered from 1, and regions where labels overlap.

A class is the set of labels that a mask value belongs to. Where each class is one label, the labels are the classes.
Otherwise they are regions, for example disc [1, 2] and cup [2]. nnU-Net turns the regions that it predicts into a mask
by writing one after the other, each with its entry of `regions_class_order`; so the large ones come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsm.core.errors import UserError
from fedsm.core.task_settings import TaskSettings


@dataclass(frozen=True)
class Classes:
    """The classes of a task.

    Attributes:
        labels: `labels` of dataset.json.
        order: `regions_class_order`; empty: there are no regions.
        of_value: mask value -> class; other values are background.
    """

    labels: dict[str, Any]
    order: list[int]
    of_value: dict[int, int]

    def convert(self, mask: np.ndarray) -> np.ndarray:
        """A mask of the task's values as one of classes."""
        found = np.zeros(mask.shape, np.uint8 if len(set(self.of_value.values())) < 256 else np.uint16)
        for value, number in self.of_value.items():
            found[mask == value] = number
        return found


def classes_of(task: TaskSettings) -> Classes:
    """The classes of a task's labels.

    Raises:
        UserError: they overlap so that nnU-Net could not write its prediction as a mask.
    """
    values = sorted({value for own in task.labels.values() for value in own})
    members = {value: tuple(label for label, own in task.labels.items() if value in own) for value in values}
    number = {labels: n for n, labels in enumerate(dict.fromkeys(members.values()), 1)}
    of_value = {value: number[labels] for value, labels in members.items()}
    regions = {label: [n for labels, n in number.items() if label in labels] for label in task.labels}
    if all(len(labels) == 1 for labels in number):
        return Classes({"background": 0} | {label: own[0] for label, own in regions.items()}, [], of_value)
    large_first = sorted(regions, key=lambda label: -len(regions[label]))
    written_last = {max(labels, key=large_first.index): n for labels, n in number.items()}
    if len(written_last) < len(number):
        raise UserError(
            f"the labels of task {task.name!r} overlap so that nnU-Net cannot write them as one mask",
            remedy="export with a task whose labels lie one in another, or apart",
        )
    plain = {label: own if len(own) > 1 else own[0] for label, own in regions.items()}
    order = [written_last.get(label, regions[label][0]) for label in large_first]
    return Classes({"background": 0} | {label: plain[label] for label in large_first}, order, of_value)
