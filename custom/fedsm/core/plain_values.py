"""Limits on what comes in a message beside tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MOST_META_BYTES = 4 * 1024 * 1024
MOST_META_ENTRIES = 100_000
MOST_META_DEPTH = 16
MOST_PLAIN_MESSAGE = 4 * MOST_META_BYTES  # up to this size it is read, so that the refusal can name its site
# No numbers of NumPy: np.float32(4) == 4 passes a comparison, and then no checkpoint can be written as JSON. np.float64
# is a float.
_PLAIN = (type(None), bool, int, float, str, bytes)


def plain_problem(values: object) -> str | None:
    """What is wrong with the plain values of a message: too much of them, too deep, or not plain; or None."""
    size = 0
    for entries, (depth, value) in enumerate(_walk(values)):
        size += len(value) if isinstance(value, (str, bytes)) else 8
        if entries >= MOST_META_ENTRIES or size > MOST_META_BYTES:
            return f"oversized: its meta has more than {MOST_META_ENTRIES} entries or {MOST_META_BYTES} bytes"
        if depth > MOST_META_DEPTH:
            return f"its meta is nested deeper than {MOST_META_DEPTH}"
        if not isinstance(value, (*_PLAIN, dict, list, tuple)):
            return f"its meta holds a {type(value).__name__[:40]}"
    return None


def _walk(values: object) -> Iterator[tuple[int, object]]:
    """Every value and key with its depth. Without recursion, which deeply nested values would break."""
    waiting: list[tuple[int, Iterator[Any]]] = [(0, iter([values]))]
    while waiting:
        depth, items = waiting[-1]
        try:
            value = next(items)
        except StopIteration:
            waiting.pop()
            continue
        yield depth, value
        if isinstance(value, dict):
            waiting += [(depth + 1, iter(value.values())), (depth + 1, iter(value))]
        elif isinstance(value, (list, tuple)):
            waiting.append((depth + 1, iter(value)))
