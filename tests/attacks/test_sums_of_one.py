"""A server that makes a sum of three in which one site is all that counts, or in which it is a member itself.

Found: only the largest share was bounded (0.7), so that shares of 0.7 and twice 1e-9 gave a sum that is one site's
update. And FLARE's certificate of the server says no role, as those of sites do: the server could sign a key with it
and be one of the three.
"""

import json
from pathlib import Path

import pytest

from fedsm.client.kit_identity import KitIdentity
from fedsm.core.errors import UserError
from fedsm.core.secure_sum import masks
from fedsm.core.secure_sum.group import Group, Member
from tests.helpers.kit_certificates import new_root, write_kit
from tests.helpers.sum_group import RUN

KEY = masks.public_key(masks.new_private_key()).hex()


def group(*shares: float) -> Group:
    members = [{"site": f"site-{i}", "share": share, "key": KEY} for i, share in enumerate(shares)]
    return Group.from_dict({"round": 1, "members": members})


@pytest.mark.parametrize("shares", [(0.7, 1e-9, 1e-9), (0.5, 0.4999, 1e-9), (0.6, 0.005, 0.005, 0.005)])
def test_shares_that_hide_nothing_are_refused(shares):
    with pytest.raises(UserError, match="next to the share of 'site-0' fewer than 2 others weigh anything"):
        group(*shares)


@pytest.mark.parametrize("shares", [(0.6, 0.3, 0.1), (0.49, 0.49, 0.02), (0.4, 0.3, 0.299, 1e-6)])
def test_small_sites_stop_no_sum_in_which_others_hide_each_other(shares):
    assert len(group(*shares).members) == len(shares)


def test_the_server_is_no_member(tmp_path: Path):
    root = new_root("project")
    for name in ("site-a", "site-b", "server1"):
        write_kit(tmp_path / name / "startup", name, root)
    kit = tmp_path / "site-a" / "startup"
    (kit / "fed_client.json").write_text(json.dumps({"servers": [{"identity": "server1"}]}))
    own = KitIdentity(kit)

    def problem(name: str) -> str | None:
        signed = KitIdentity(tmp_path / name / "startup").sign(RUN, name, KEY)
        return own.problem(RUN, Member.from_dict(signed.to_dict() | {"site": name, "share": 0.3}))

    assert problem("site-b") is None
    assert problem("server1") == "it is signed by another participant"
