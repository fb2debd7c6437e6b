"""The `data` of `fedsm verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from fedsm.core.described import Described
from fedsm.super_model.record import Record

if TYPE_CHECKING:
    from fedsm.core.trust import Trust
    from fedsm.super_model.verify import Verdict


class FileProblem(Described):
    """A file that is not as it was signed."""

    file: str = Field(description="Its path in the folder.")
    what: str = Field(description="What is wrong with it.")


class Verification(Described):
    """A run or super model held against its signed record."""

    folder: str = Field(description="The folder.")
    verified: bool = Field(description="Whether it is as it was signed, by who must have; then `problems` is empty.")
    checked: Literal["kit", "key", "nobody"] = Field(
        description="Who must have signed: the server of the kit's federation, the owner of the key, or anybody."
    )
    public_key: str | None = Field(description="The key that signed, base64; null without a record.")
    record: Record | None = Field(description="What was signed; null if there is no record, or none that can be read.")
    intact: int = Field(description="Files that are as they were signed.")
    problems: list[FileProblem] = Field(description="What is not.")
    removed: list[str] = Field(description="Folders that `fedsm clean` removes, and that are gone.")
    notes: list[str] = Field(description="What else a reader should know.")

    @classmethod
    def of(cls, folder: Path, verdict: Verdict, trust: Trust) -> Verification:
        """The document of a verdict."""
        from fedsm.core.signing import encode

        signed = verdict.record
        return cls.model_validate(
            {
                "folder": str(folder.resolve()),
                "verified": not verdict.problems,
                "checked": "kit" if trust.root else "key" if trust.public else "nobody",
                "public_key": encode(signed.public) if signed else None,
                "record": signed.record.plain() if signed else None,
                "intact": verdict.intact,
                "problems": [{"file": file, "what": what} for file, what in verdict.problems],
                "removed": verdict.removed,
                "notes": verdict.notes,
            }
        )
