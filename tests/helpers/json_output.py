"""Commands with `--format json`: what they write to stdout is one document of the documented schema."""

from __future__ import annotations

import functools
import json
import operator
from typing import Any

import jsonschema
from pydantic import TypeAdapter

from app_fedsm.cli.documents import DATA, Document, json_schema
from app_fedsm.cli.main import main


@functools.cache
def _validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def _no_constant(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def document(stdout: str, code: int) -> dict[str, Any]:
    """The one document of a command's stdout, after all that must be true of every document was checked."""
    assert stdout.count("\n") == 1 and stdout.endswith("\n"), stdout
    found = json.loads(stdout, parse_constant=_no_constant)
    _validator().validate(found)
    assert Document.model_validate(found).plain() == found, "every key is there, and none that is not described"
    if found["data"] is not None:
        kinds = TypeAdapter(functools.reduce(operator.or_, DATA[found["command"]]))
        assert kinds.validate_python(found["data"]).plain() == found["data"]
    assert found["exit_code"] == code
    assert (found["error"] is None) == (found["status"] == "ok")
    return found


def ask(capsys, *words: object) -> tuple[dict[str, Any], str]:
    """Runs `fedsm WORDS --format json`; returns its document and what it wrote to stderr."""
    capsys.readouterr()
    try:
        code = main([*map(str, words), "--format", "json"])
    except SystemExit as e:  # wrong options
        code = e.code
    told = capsys.readouterr()
    return document(told.out, code), told.err
