"""The job's setting `secure_sum`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from fedsm.core.limits import MONTH
from fedsm.core.model import Settings, as_switch


class SecureSum(Settings):
    """How updates are summed so that the server sees no single one: see the page on secure sums."""

    clip: float = Field(
        default=100.0, gt=0, le=1e6,
        description="Norm to which every site scales a longer update of a network down before it is masked. It also"
        " fixes how fine the numbers are: 32 bits round the sum of n sites by at most n clip / 2^31.",
    )  # fmt: skip
    bits: Literal[32, 64] = Field(
        default=32,
        description="Bits of a masked number. 32 costs the bytes of the plain update, 64 twice as many; it is for a"
        " `clip` above about 1000.",
    )
    wait: int = Field(
        default=300, ge=1, le=MONTH,
        description="Seconds for each of the two short tasks after training, in which the masked updates are sent and"
        " their sum is opened.",
    )  # fmt: skip


def as_secure_sum(value: Any) -> Any:
    """The settings' defaults for true, none for false; other values are returned as they are."""
    switch = as_switch(value)
    return ({} if switch else None) if isinstance(switch, bool) else value
