"""What `--format json` says: the document, and which `data` each command has. The reference page is made of these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pydantic.json_schema import models_json_schema

from app_fedsm.cli.check_documents import DataCheck, SiteCheck
from app_fedsm.cli.onboard_document import Onboarding
from app_fedsm.cli.privacy_document import AuditEnd
from app_fedsm.cli.run_documents import EvaluationEnd, RunEnd, RunStatus, ServerStatus
from app_fedsm.cli.verify_document import Verification
from fedsm.core.described import Described


class Error(Described):
    """Why a command did not do what it was asked for."""

    code: Literal["BAD_INPUT", "INVALID_ARGS", "JOB_FAILED", "INTERRUPTED", "INTERNAL_ERROR"] = Field(
        description="What kind of error it is; see the table above."
    )
    message: str = Field(description="What is wrong.")
    site: str | None = Field(description="The site it is about.")
    file: str | None = Field(description="The file or folder it is about.")
    line: int | None = Field(description="The line in that file, counted from 1.")
    remedy: str | None = Field(description="What to do about it.")


class Document(Described):
    """The document."""

    schema_version: Literal["1"] = Field(description="Changes when a key goes or gets another meaning.")
    command: str = Field(description="The command, as in `fedsm data check`.")
    status: Literal["ok", "error"] = Field(
        description="`ok`: the command did its work and `data` is complete, whatever it found. `error`: it did not."
    )
    exit_code: int = Field(description="The exit code of the process.")
    data: dict[str, Any] | None = Field(description="Of each command; see below. With `error` often null.")
    error: Error | None = Field(description="Null with `ok`.")


# Command -> the kinds of its `data`.
DATA: dict[str, tuple[type[Described], ...]] = {
    "fedsm run": (RunEnd,),
    "fedsm submit": (RunEnd,),
    "fedsm poc submit": (RunEnd,),
    "fedsm resume": (RunEnd,),
    "fedsm fetch": (RunEnd,),
    "fedsm status": (RunStatus, ServerStatus),
    "fedsm poc status": (ServerStatus,),
    "fedsm evaluate": (EvaluationEnd,),
    "fedsm onboard": (Onboarding,),
    "fedsm data check": (DataCheck,),
    "fedsm site check": (SiteCheck,),
    "fedsm verify": (Verification,),
    "fedsm privacy audit": (AuditEnd,),
}


def json_schema() -> dict[str, Any]:
    """JSON Schema of all documents. It allows keys that it does not know: those of a later version."""
    models: dict[type[Described], None] = {Document: None}  # a set in order
    models |= {model: None for kinds in DATA.values() for model in kinds}
    references, definitions = models_json_schema([(model, "serialization") for model in models])
    rules = []
    for command, kinds in DATA.items():
        data = {"anyOf": [*(references[kind, "serialization"] for kind in kinds), {"type": "null"}]}
        rules.append({"if": {"properties": {"command": {"const": command}}}, "then": {"properties": {"data": data}}})
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "fedsm --format json"}
    return _open(whole | references[Document, "serialization"] | {"allOf": rules} | definitions)


def _open(schema: Any) -> Any:
    """The schema without `additionalProperties: false`."""
    if isinstance(schema, dict):
        return {k: _open(v) for k, v in schema.items() if (k, v) != ("additionalProperties", False)}
    return [_open(item) for item in schema] if isinstance(schema, list) else schema
