"""The base class of all settings: jobs, tasks, a site's file, experiments.

A settings class lists its fields with type, limits, default and description. pydantic checks them, without guessing
(strict: `"3"` is not a number). An error becomes one line that names the key, its line in the file if there is one, the
values that are allowed, and a similar known word if there is one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from fedsm.core.errors import UserError
from fedsm.core.limits import shown
from fedsm.core.yaml_file import YamlFile

EXPECTED = "expected"  # in a field's `json_schema_extra`: what the value must be, where the types do not say it well
_SWITCH = {"yes": True, "on": True, "no": False, "off": False}
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_UNKNOWN = ("extra_forbidden", "invalid_key")  # the second: no text
_NOUNS = {"integer": "whole number", "number": "number"}


def as_switch(value: Any) -> Any:
    """True or false for yes, no, on and off, which YAML 1.2 reads as text; other values are returned as they are."""
    return _SWITCH.get(value, value) if isinstance(value, str) else value


Switch = Annotated[bool, BeforeValidator(as_switch)]  # a truth value


class Checked(BaseModel):
    """Values that are checked when they are made, and never change: settings, and what comes in messages."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    # Whether the text of an error may leave a site: only where all values came from outside.
    errors_are_public: ClassVar[bool] = False

    @classmethod
    def from_dict(cls, values: Any, *, source: YamlFile | None = None, site: str | None = None) -> Self:
        """Builds them from plain values.

        Args:
            values: a mapping of setting to value.
            source: the file they come from, for errors.
            site: whose file it is, for errors.

        Raises:
            UserError: an unknown or missing setting, or a value that it cannot have; one line.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as e:
            raise user_error(cls, e, source, site) from e

    def to_dict(self) -> dict[str, Any]:
        """The plain dict of which `from_dict` makes the same settings again."""
        return self.model_dump()

    def replace(self, **changes: Any) -> Self:
        """The same settings with some changed, and checked again.

        Raises:
            UserError: as `from_dict`.
        """
        return self.from_dict(self.to_dict() | changes)


class Settings(Checked):
    """What a person sets. Every field has a description, for the reference."""


def user_error(
    model: type[Checked], error: ValidationError, source: YamlFile | None = None, site: str | None = None
) -> UserError:
    """What pydantic found, as one line. Of several problems only the first is shown, unknown keys before others."""
    problems = error.errors(include_url=False)
    problem = next((p for p in problems if p["type"] in _UNKNOWN), problems[0])
    path, schema, around = _locate(model.model_json_schema(), problem["loc"])
    message, remedy = _describe(problem, path, schema, around)
    public = {"public": f"{message}; {remedy}" if remedy else message} if model.errors_are_public else {}
    line = source.line_of(path) if source else None
    return UserError(message, site=site, file=source.file if source else None, line=line, remedy=remedy, **public)


def expected(schema: dict[str, Any], definitions: dict[str, Any] | None = None, plural: bool = False) -> str:
    """What a value must be, in words, from its JSON schema: `a whole number from 1 to 10`, `off or warn`."""
    definitions = definitions or schema.get("$defs", {})
    if EXPECTED in schema:
        return str(schema[EXPECTED])
    schema = _resolve(schema, definitions)
    if EXPECTED in schema:
        return str(schema[EXPECTED])
    kind = schema.get("type")
    if "enum" in schema:
        words = [str(word) for word in schema["enum"]]
        return " or ".join(words) if len(words) < 3 else f"one of {', '.join(words)}"
    if kind in _NOUNS:
        return _number(schema, f"{_NOUNS[kind]}s" if plural else f"a {_NOUNS[kind]}")
    if kind == "array":
        items = expected(schema.get("items", {}), definitions, plural=True)
        return f"{'lists' if plural else 'a list'} of {_range(schema, 'minItems', 'maxItems')}{items}"
    if kind == "object":
        keys = schema.get("properties")
        return f"settings ({', '.join(keys)})" if keys else "a mapping of names to values"
    return {"string": "text", "boolean": "true or false"}.get(kind or "", "values" if plural else "a value")


def suggestion(word: object, known: Iterable[object]) -> str:
    """`did you mean 'rounds'?`, or nothing where no known word is close."""
    close = difflib.get_close_matches(str(word)[:64], [str(k) for k in known], 1)
    return f"did you mean {close[0]!r}?" if close else ""


def known_words(word: object, known: Iterable[object]) -> str:
    """The remedy for a word that is not known: the closest one, and all."""
    words = [str(one) for one in known]
    return f"{suggestion(word, words)} known: {', '.join(words)}".strip()


def dotted(path: Iterable[object]) -> str:
    """The name of a setting as `--set` takes it; parts that are no plain words are quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += "." * bool(text) + (part if isinstance(part, str) and _PLAIN.fullmatch(part) else shown(part))
    return text


def _describe(
    problem: Any, path: tuple[Any, ...], schema: dict[str, Any], around: dict[str, Any]
) -> tuple[str, str | None]:
    """Message and remedy."""
    kind, key, value = problem["type"], dotted(path), problem["input"]
    if kind in _UNKNOWN:
        return f"unknown setting '{key}'", known_words(problem["loc"][-1], around.get("properties", {}))
    if problem["loc"][-1:] == ("[key]",):
        return f"{dotted(path[:-1])}: the key {shown(value)} must be text", "put it in quotes"
    if kind == "missing":
        return f"setting '{key}' is missing", None
    message = str(problem.get("ctx", {}).get("error", "")) if kind == "value_error" else ""
    if message:
        return (f"{key}: {message}" if key else message), None
    hint = suggestion(value, schema.get("enum", ())) if isinstance(value, str) else ""
    if not path:
        return f"must hold `key: value` lines, got {shown(value)}", None
    return f"{key} must be {expected(schema)}, got {shown(value)}", hint or None


def _locate(root: dict[str, Any], loc: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """The path of keys in an error's location, which also names members of unions; the schema there and around it."""
    definitions = root.get("$defs", {})
    path: list[Any] = []
    schema = around = root
    for part in loc:
        inner = _resolve(schema, definitions)
        if isinstance(part, int) and "items" in inner:
            found = inner["items"]
        elif part in inner.get("properties", {}):
            found = inner["properties"][part]
        elif isinstance(inner.get("additionalProperties"), dict):
            found = inner["additionalProperties"]
        elif inner.get("additionalProperties") is False:  # a key that is not known
            return (*path, part), {}, inner
        else:
            break
        path.append(part)
        schema, around = found, inner
    return tuple(path), {**schema, "$defs": definitions}, around


def _resolve(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A schema without a reference, and without null where that is one of two."""
    if "$ref" in schema:
        return dict(definitions[schema["$ref"].rpartition("/")[2]])
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    return _resolve(options[0], definitions) if len(options) == 1 else schema


def _number(schema: dict[str, Any], noun: str) -> str:
    least, above, most = (schema.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
    below = schema.get("exclusiveMaximum")
    if least is not None and most is not None:
        return f"{noun} from {_digits(least)} to {_digits(most)}"
    limits = [(f"of at least {_digits(least)}", least), (f"above {_digits(above)}", above)]
    limits += [(f"at most {_digits(most)}", most), (f"below {_digits(below)}", below)]
    return " ".join([noun, " and ".join(text for text, limit in limits if limit is not None)]).strip()


def _range(schema: dict[str, Any], least: str, most: str) -> str:
    low, high = schema.get(least), schema.get(most)
    if high is None:
        return f"at least {low} " if low else ""
    return f"{low} to {high} " if low else f"at most {high} "


def _digits(value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if value == int(value) else f"{value:g}"
