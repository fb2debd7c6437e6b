"""The `data` of `fedsm privacy audit`."""

from __future__ import annotations

from pydantic import Field

from fedsm.core.described import Described, Name
from fedsm.evaluation.audit_file import AuditFile


class AuditEnd(Described):
    """An audit and its files."""

    audit: AuditFile = Field(description="The content of [privacy_audit.json](results.md#privacy_auditjson).")
    files: dict[Name, str] = Field(description="Paths of what was written: `json` and `html`.")
