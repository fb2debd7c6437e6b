"""From labels to the values of a mask and back: what is written is what our reader reads."""

from __future__ import annotations

import numpy as np

from fedsm.core.task_settings import TaskSettings


def mask_table(task: TaskSettings) -> np.ndarray:
    """The mask value of each combination of labels.

    Label i is bit i of the index. A combination gets the first value that belongs to exactly these labels. One without
    such a value (a cup outside the disc, where the only cup value means both) gets the value that differs in the fewest
    labels; of equals the one with most labels, so that a label is added rather than dropped.

    Returns:
        (2 ** labels,) values, in the smallest dtype that holds them all.
    """
    names = list(task.labels)
    values = [task.background[0], *(v for listed in task.labels.values() for v in listed)]
    held = {v: sum(1 << i for i, name in enumerate(names) if v in task.labels[name]) for v in values}
    low, high = min(values), max(values)
    kinds = (np.uint8, np.uint16, np.int16, np.int32)
    dtype = next(kind for kind in kinds if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    table = np.zeros(2 ** len(names), dtype)
    for combination in range(len(table)):
        table[combination] = min(
            held, key=lambda v: ((held[v] ^ combination).bit_count(), -held[v].bit_count(), values.index(v))
        )
    return table


def compose(labels: np.ndarray, table: np.ndarray) -> np.ndarray:
    """(L, H, W) bool to a (H, W) mask of the table's values."""
    index = np.zeros(labels.shape[1:], np.min_scalar_type(len(table) - 1))
    for i, label in enumerate(labels):
        index |= label.astype(index.dtype) << index.dtype.type(i)
    return table[index]


def decompose(mask: np.ndarray, task: TaskSettings) -> np.ndarray:
    """(..., H, W) mask values to (L, ..., H, W) bool."""
    return np.stack([np.isin(mask, values) for values in task.labels.values()])


def flat_numbers(labels: np.ndarray, task: TaskSettings) -> np.ndarray:
    """(L, ...) bool to one number for each pixel, uint8: 0 for none, i + 1 for label i.

    Where labels overlap, the one with the fewest mask values wins: a cup lies on its disc.
    """
    numbers = np.zeros(labels.shape[1:], np.uint8)
    for i in sorted(range(len(labels)), key=lambda i: -len(list(task.labels.values())[i])):
        numbers[labels[i]] = i + 1
    return numbers
