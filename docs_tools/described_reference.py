"""Tables of what files and answers hold, from their classes: one row per key, also of what is nested in it."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

from fedsm.core.described import Described

_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "any value"}
_ABSENT = ", may be absent"
_PLURAL = {str: "texts", int: "whole numbers", float: "numbers"}


class AnyKey(str):
    """A part of a path that stands for every key of a mapping: `SITE`."""


ITEM = AnyKey("[]")  # a part of a path that stands for every item of a list
Path = tuple[str, ...]


def rows(model: type[Described], above: Path = (), elsewhere: Collection[type] = ()) -> Iterator[tuple[Path, str, str]]:
    """The path of each key, what its value is, and its description.

    Args:
        model: the class.
        above: where it is nested.
        elsewhere: classes whose own keys are described elsewhere.
    """
    for name, field in model.model_fields.items():
        path, kind, nested = _resolve(field.annotation, (*above, field.alias or name))
        kind += "" if field.is_required() else _ABSENT
        yield path, kind, " ".join((field.description or "").split())
        if nested and nested not in elsewhere:
            yield from rows(nested, path, elsewhere)


def _resolve(kind: Any, path: Path) -> tuple[Path, str, type[Described] | None]:
    """Goes into mappings and into lists of objects: the path of the innermost value, its kind, and its class."""
    if get_origin(kind) is Annotated:
        return _resolve(get_args(kind)[0], path)
    if isinstance(kind, NewType):
        return _resolve(kind.__supertype__, path)
    inner = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        path, words, nested = _resolve(inner[0], path)  # of several kinds the description tells
        return path, f"{words} or null" if type(None) in inner else words, nested
    if get_origin(kind) is dict and inner[1] is not Any:
        key = inner[0].__name__.upper()
        return _resolve(inner[1], (*path, AnyKey(key)))
    if get_origin(kind) is dict:
        return path, "object", None
    if get_origin(kind) is list:
        path_of_item, words, nested = _resolve(inner[0], (*path, ITEM))
        if nested:
            return path_of_item, words, nested
        either = get_args(inner[0])
        words = f"{_PLURAL[either[0]]} or null" if type(None) in either else _PLURAL[inner[0]]
        return path, f"list of {words}", None
    if get_origin(kind) is Literal:
        return path, f"one of {', '.join(f'`{word}`' for word in inner)}" if inner[1:] else f"`{inner[0]}`", None
    if isinstance(kind, type) and issubclass(kind, Described):
        return path, "object", kind
    return path, _WORDS[kind], None


def dotted(path: Path) -> str:
    """A path as it is shown: `sites[].findings[].level`, `images.SITE.PART`."""
    return ".".join(path).replace(f".{ITEM}", ITEM)


def table(model: type[Described], absent: bool = False, elsewhere: Collection[type] = ()) -> str:
    """A Markdown table of a class.

    Args:
        model: the class.
        absent: whether keys with a default may be absent, instead of null; in an answer they never are.
        elsewhere: see `rows`.
    """
    lines = ["| key | value | meaning |", "|---|---|---|"]
    for path, kind, text in rows(model, elsewhere=elsewhere):
        kind = kind.replace(f" or null{_ABSENT}", _ABSENT) if absent else kind.removesuffix(_ABSENT)
        lines.append(f"| `{dotted(path)}` | {kind} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)
