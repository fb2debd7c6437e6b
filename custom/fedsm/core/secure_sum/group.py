"""Who sums with whom in one round: what the server says, and what every site checks before it masks anything."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, ClassVar, Self

from pydantic import Field, StringConstraints, model_validator

from fedsm.core.model import EXPECTED, Checked
from fedsm.core.names import is_site_name
from fedsm.core.secure_settings import SecureSum

FEWEST = 3  # of two sites, each would know the other's update from the sum
MOST_MEMBERS = 100  # every member makes a mask with every other one
MOST_OF_ONE = 0.7  # of the sum: the bounded weights of three sites reach 2 / 3
LEAST_COVER = 0.01  # of the largest share: a member that weighs less hides nothing of another one
_HEX = r"^[0-9a-f]*$"


class PublicKey(Checked):
    """A site's public key for one run, as it registers with it.

    Attributes:
        key: X25519, in hexadecimal digits.
        signature: of the key, the run and the site, by the site's FLARE certificate; empty where there is none.
        certificate: that certificate, as PEM.
    """

    errors_are_public: ClassVar[bool] = True

    key: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    signature: Annotated[str, StringConstraints(pattern=_HEX, max_length=2048)] = ""
    certificate: Annotated[str, StringConstraints(max_length=16384)] = ""

    @property
    def raw(self) -> bytes:
        """The key's bytes."""
        return bytes.fromhex(self.key)


class Member(PublicKey):
    """A site that takes part in a sum, and its share in it."""

    site: str
    share: Annotated[float, Field(gt=0, le=MOST_OF_ONE)]

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not is_site_name(self.site):
            raise ValueError("is no name of a site")
        return self


class Group(Checked):
    """The members of one round's sum. Their order is the same everywhere and gives the masks their signs."""

    errors_are_public: ClassVar[bool] = True

    round: Annotated[int, Field(ge=1)]
    members: Annotated[
        list[Member],
        Field(min_length=FEWEST, max_length=MOST_MEMBERS, json_schema_extra={EXPECTED: "3 to 100 members of a sum"}),
    ]

    @model_validator(mode="after")
    def _of_different_sites(self) -> Self:
        if len({member.site for member in self.members}) < len(self.members):
            raise ValueError("a site is a member twice")
        if sum(member.share for member in self.members) > 1 + 1e-9:
            raise ValueError("the shares of the members add up to more than 1")
        largest = max(self.members, key=lambda member: member.share)
        if sum(member.share >= LEAST_COVER * largest.share for member in self.members) < FEWEST:
            raise ValueError(f"next to the share of {largest.site!r} fewer than {FEWEST - 1} others weigh anything")
        return self

    @property
    def sites(self) -> list[str]:
        """The members' names, in their order."""
        return [member.site for member in self.members]

    @property
    def threshold(self) -> int:
        """How many members must agree before anything is opened: more than half, so that no two answers of the server
        to the question who dropped out can both be believed by enough of them."""
        return len(self.members) // 2 + 1

    def context(self, run_id: str, secure: SecureSum) -> bytes:
        """What all members must agree on. It goes into every key: where one was told something else, nothing opens."""
        members = [[member.site, member.key, member.share] for member in self.members]
        agreed = [run_id, self.round, secure.clip, secure.bits, members]
        return hashlib.sha256(json.dumps(agreed).encode()).digest()


def signed_content(run_id: str, site: str, key: str) -> bytes:
    """What a site signs with its certificate: so a key is good for one run and one site."""
    return f"fedsm secure sum 1|{run_id}|{site}|{key}".encode()
