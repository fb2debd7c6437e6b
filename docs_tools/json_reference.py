"""The reference of `--format json`, from its classes: `python -m docs_tools.json_reference` prints it."""

from __future__ import annotations

import json

from app_fedsm.cli.documents import DATA, Document, json_schema
from app_fedsm.cli.run_documents import JobStatus
from docs_tools.described_reference import table
from fedsm.evaluation.audit_file import AuditFile
from fedsm.evaluation.evaluation_file import EvaluationFile

SCHEMA = "reference/json.schema.json"  # its page in the site
_ELSEWHERE = (JobStatus, EvaluationFile, AuditFile)


def render() -> str:
    """The document, then the `data` of each command; commands with the same data share a section."""
    blocks = ["## The document", table(Document)]
    commands: dict[tuple, list[str]] = {}
    for command, models in DATA.items():
        commands.setdefault(models, []).append(f"`{command}`")
    for models, names in commands.items():
        blocks.append(f"## {', '.join(names)}")
        for model in models:
            blocks += [(model.__doc__ or "").strip(), table(model, elsewhere=_ELSEWHERE)]
    return "\n\n".join(blocks) + "\n"


def render_schema() -> str:
    """JSON Schema of the same."""
    return json.dumps(json_schema(), indent=1) + "\n"


if __name__ == "__main__":
    print(render(), end="")
