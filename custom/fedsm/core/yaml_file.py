"""Reads YAML 1.2 and keeps the line of each value. All YAML settings are read with it.

PyYAML reads YAML 1.1, in which `1e-3` is text, `no` is false, `010` is 8, `1:30` is 90 and `2024-01-01` is a date. Here
the core schema of YAML 1.2 holds: `1e-3` is a number, only `true` and `false` are truth values, a date is text. A key
that occurs twice is an error, and so is a tag that makes anything but plain values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from typing import Any

import yaml

from fedsm.core.errors import UserError
from fedsm.core.limits import shown

_TAG = "tag:yaml.org,2002:"
_PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")
_RESOLVERS = {  # in the order in which they are tried: tag -> pattern and first characters
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    "merge": (r"<<", ["<"]),
}


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core schema, with merge keys, and without duplicate keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    yaml_constructors = {
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.removeprefix(_TAG) in _PLAIN
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAG}merge":
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{shown(key.value)} occurs twice", key.start_mark
                    )
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node)
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


for _name, (_pattern, _first) in _RESOLVERS.items():
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", re.compile(f"(?:{_pattern})\\Z"), _first)
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)


@dataclass(frozen=True)
class YamlFile:
    """What a YAML file holds.

    Attributes:
        content: plain values.
        file: the file, as it was named.
        lines: path of keys and indices -> line, counted from 1.
    """

    content: Any
    file: str
    lines: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def line_of(self, path: Iterable[Any]) -> int | None:
        """The line of a setting, or of the nearest one around it that has a line."""
        parts = tuple(path)
        return next((self.lines[parts[:n]] for n in range(len(parts), 0, -1) if parts[:n] in self.lines), None)


def read_yaml(file: Traversable, site: str | None = None, remedy: str | None = None) -> YamlFile:
    """Reads a YAML file.

    Args:
        file: the file.
        site: named in errors.
        remedy: what to do where the file cannot be opened.

    Raises:
        UserError: it cannot be opened, or it is no YAML; naming the line.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as e:
        raise UserError(f"cannot be read: {e.strerror or e}", site=site, file=str(file), remedy=remedy) from e
    except UnicodeDecodeError as e:
        raise UserError(f"is no YAML: it is no UTF-8 text ({e.reason})", site=site, file=str(file)) from e
    try:
        content, lines = _parse(text)
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        raise UserError(f"is no YAML: {_reason(e)}", site=site, file=str(file), line=line) from e
    return YamlFile(content, str(file), lines)


def parse_value(text: str, where: str) -> Any:
    """The value of a piece of YAML, such as `[8, 16]` or `1e-3`.

    Raises:
        UserError: it is none; `where` says what it is for.
    """
    try:
        return _parse(text)[0]
    except yaml.YAMLError as e:
        raise UserError(f"{where}: {shown(text)} is no YAML value: {_reason(e)}") from e


def _parse(text: str) -> tuple[Any, dict[tuple[Any, ...], int]]:
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        content = None if root is None else loader.construct_object(root, deep=True)  # deep: refuses what holds itself
        return content, _lines(root)
    except RecursionError as e:
        raise yaml.YAMLError("nested too deeply") from e
    except (ValueError, KeyError) as e:  # a number of too many digits, or a tag in front of another kind of value
        raise yaml.YAMLError(f"an invalid value: {e}") from e
    finally:
        loader.dispose()


def _reason(error: yaml.YAMLError) -> str:
    return " ".join(str(getattr(error, "problem", None) or error).split())


def _lines(root: yaml.Node | None) -> dict[tuple[Any, ...], int]:
    """The line of each key and item. A node is visited once: an alias may lead back to what it is in."""
    lines: dict[tuple[Any, ...], int] = {}
    waiting: list[tuple[tuple[Any, ...], yaml.Node]] = [] if root is None else [((), root)]
    seen = set()
    while waiting:
        path, node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        parts: list[tuple[Any, yaml.Node, yaml.Node]] = []  # key or index, where it stands, what it holds
        if isinstance(node, yaml.MappingNode):
            parts = [(key.value, key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
        elif isinstance(node, yaml.SequenceNode):
            parts = [(index, item, item) for index, item in enumerate(node.value)]
        lines |= {(*path, name): at.start_mark.line + 1 for name, at, _ in parts}
        waiting += [((*path, name), value) for name, _, value in reversed(parts)]  # the first is taken first
    return lines
