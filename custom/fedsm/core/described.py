"""The base class of what is given to other programs: files such as results.json, and the answers of commands.

Each field has a description. The reference pages are generated from these classes, and tests hold real files and real
answers against them.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NewType

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Described(BaseModel):
    """Plain values with a fixed set of keys. A field that a name of Python forbids ends with `_` and has an alias."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    def plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return self.model_dump(mode="json", by_alias=True)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Score = Annotated[float | None, BeforeValidator(_finite)]  # JSON knows neither NaN nor infinity: they become null

# The keys of mappings. Their names are shown in the reference: `per_site.SITE`.
Site = NewType("Site", str)
Model = NewType("Model", str)
Track = NewType("Track", str)
Label = NewType("Label", str)
Metric = NewType("Metric", str)
Part = NewType("Part", str)
Row = NewType("Row", str)
Name = NewType("Name", str)
