"""A secure sum of a few sites: what the server gets, who can drop out, and what a site refuses."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch

from fedsm.client.kit_identity import KitIdentity
from fedsm.client.site_settings import FILE_NAME as SITE_FILE
from fedsm.client.site_settings import load_site_settings
from fedsm.client.sum_rules import site_sum
from fedsm.core.errors import UserError
from fedsm.core.secure_sum import fixed_point, masks
from tests.helpers.kit_certificates import new_root, write_kit
from tests.helpers.small_jobs import small_settings
from tests.helpers.sum_group import RUN, SumGroup, update_of

NAMES = ["site-a", "site-b", "site-c", "site-d"]


def updates(names=NAMES) -> dict:
    return {site: update_of(i + 1) for i, site in enumerate(names)}


def mean_of(shares: dict[str, float]) -> dict:
    every = updates()
    total = sum(shares.values())
    return {k: sum(p / total * every[s][k] for s, p in shares.items()) for k in ("w", "b")}


def assert_mean(found: dict, shares: dict[str, float]) -> None:
    for key, value in mean_of(shares).items():
        assert torch.allclose(found[key], value, atol=1e-6), key
    assert found["steps"] == 0


@pytest.mark.parametrize("bits", [32, 64])
def test_the_sum_is_the_weighted_mean(tmp_path, bits):
    shares = [0.1, 0.2, 0.3, 0.4]
    group = SumGroup(tmp_path, NAMES, shares, bits=bits)
    sent = group.mask(updates())
    assert group.server.expects_masked().keys() == sent["site-a"].keys()
    assert_mean(group.open(NAMES), dict(zip(NAMES, shares, strict=True)))


def test_the_clip_is_made_at_the_site(tmp_path):
    """Norms of the four updates are above 2: each counts as if it had been scaled to 2."""
    group = SumGroup(tmp_path, NAMES, clip=2.0)
    group.mask(updates())
    found = fixed_point.flat(group.open(NAMES))
    rows = [fixed_point.flat(u) for u in updates().values()]
    assert all(np.linalg.norm(row) > 2 for row in rows)
    assert found == pytest.approx(np.mean([2 * row / np.linalg.norm(row) for row in rows], axis=0), abs=1e-6)


@pytest.mark.parametrize("missing", NAMES)
def test_whoever_drops_out_before_masking_is_left_out(tmp_path, missing):
    rest = [site for site in NAMES if site != missing]
    group = SumGroup(tmp_path, NAMES, [0.1, 0.2, 0.3, 0.4])
    group.mask({site: u for site, u in updates().items() if site != missing})
    assert_mean(group.open(rest), {s: p for s, p in zip(NAMES, [0.1, 0.2, 0.3, 0.4], strict=True) if s != missing})


def test_three_of_four_can_open_the_sum_of_all(tmp_path):
    group = SumGroup(tmp_path, NAMES)
    group.mask(updates())
    assert_mean(group.open(["site-b", "site-c", "site-d"]), dict.fromkeys(NAMES, 0.25))


def test_two_of_four_cannot(tmp_path):
    group = SumGroup(tmp_path, NAMES)
    group.mask(updates())
    with pytest.raises(ValueError, match="the mean of masked updates has the norm"):
        group.open(["site-a", "site-b"])


def test_what_the_server_sees_of_one_update_is_noise(tmp_path):
    """200,000 numbers of one site. Uniform: chi-squared over 256 bins within four standard deviations. Not correlated
    with the true update: |r| below four standard errors (1 / sqrt(n) each). The same with all seeds of the other sites
    opened, and with the whole sum known: what is left is the mask of the pairs."""
    names, n = NAMES[:3], 200_000
    group = SumGroup(tmp_path, names, clip=1000.0)
    every = {site: update_of(i + 1, n) for i, site in enumerate(names)}
    group.server = None  # its templates are of small networks
    for site, update in every.items():
        group.sites[site].keep(1, {"global": update})
    seen = group.sites["site-a"].mask(group.meta)["masked"]["masked"].numpy().view(np.uint32)
    true = fixed_point.flat(every["site-a"])
    counts = np.bincount(seen >> 24, minlength=256)
    chi = ((counts - n / 256) ** 2 / (n / 256)).sum()
    assert abs(chi - 255) < 4 * math.sqrt(2 * 255), chi
    for view in (seen.astype(np.float64), seen.view(np.int32).astype(np.float64)):
        assert abs(np.corrcoef(view, true)[0, 1]) < 4 / math.sqrt(n)
    plain = fixed_point.encode(true, 1 / 3, 1000.0, 32).view(np.int32).astype(np.float64)
    assert np.corrcoef(plain, true)[0, 1] > 0.999, "without masks it would be seen"


def test_a_late_update_cannot_be_read(tmp_path):
    """Site D's update comes after the others have opened their masks with it: its own seed still hides it. Known to
    the server are D's answer and all keys of its pairs."""
    group = SumGroup(tmp_path, NAMES)
    group.mask({site: u for site, u in updates().items() if site != "site-d"})
    group.open(NAMES[:3])
    group.sites["site-d"].keep(1, {"global": update_of(4)})
    seen = group.sites["site-d"].mask(group.meta)["masked"]["masked"].numpy().view(np.uint32).copy()
    for site in NAMES[:3]:  # the masks of the pairs, as the server knows them now
        place = [s for s in NAMES if s in (site, "site-d")].index("site-d")
        seen += masks.key_stream(group.server._joined(site, place), len(seen), 32)
    quantum = 100.0 / 2**30
    true = np.rint(fixed_point.flat(update_of(4)) * 0.25 / quantum)
    assert np.abs(seen.view(np.int32) - true).max() > 2**28
    with pytest.raises(UserError, match="opened another sum"):
        group.ask_to_open("site-a", NAMES)


def test_a_server_that_tells_each_site_something_else_cannot_open_one_update(tmp_path):
    """All four have answered. The server says to A and B that D dropped out, to C and D that it did not: it gets two
    shares of D's pair keys and two of D's seed, where three are needed of each."""
    group = SumGroup(tmp_path, NAMES)
    group.mask(updates())
    without = NAMES[:3]
    for site in ("site-a", "site-b"):
        assert set(group.ask_to_open(site, without)["opened"]) == set(without)
        with pytest.raises(UserError, match="opened another sum"):
            group.ask_to_open(site)
    for site in ("site-c", "site-d"):
        assert group.ask_to_open(site)["opened"]["site-d"].numel() == 33, "a share of the seed, and nothing else"
        with pytest.raises(UserError, match="opened another sum|not in the sum"):
            group.ask_to_open(site, without)


def test_asked_again_a_site_gives_the_same_answer(tmp_path):
    """A retry must not show a second masked update of the same round."""
    group = SumGroup(tmp_path, NAMES)
    first = group.mask(updates())["site-a"]
    again = group.sites["site-a"].mask(group.meta)
    assert torch.equal(first["masked"]["masked"], again["masked"]["masked"])
    group.open(NAMES)
    assert group.ask_to_open("site-a").keys() == {"opened"}
    group.sites["site-a"].keep(1, {"global": update_of(9)})
    with pytest.raises(UserError, match="masked with this key already"):
        group.sites["site-a"].mask(group.meta)


def test_a_restarted_process_can_open_but_not_mask_again(tmp_path):
    group = SumGroup(tmp_path, NAMES)
    group.mask(updates())
    group.sites |= {site: group.process(site) for site in NAMES}
    with pytest.raises(UserError, match="restarted since it trained"):
        group.sites["site-a"].mask(group.meta)
    group.sites["site-a"].keep(1, {"global": update_of(9)})
    with pytest.raises(UserError, match="masked with this key already"):
        group.sites["site-a"].mask(group.meta)
    assert_mean(group.open(NAMES), dict.fromkeys(NAMES, 0.25))


def test_the_key_is_private_on_the_disk(tmp_path):
    SumGroup(tmp_path, NAMES)
    path = tmp_path / "site-a" / "state" / RUN / "secure_sum.json"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_site_refuses_a_group_that_would_not_hide_it(tmp_path):
    """Too few members, one that is nearly all of the sum, members twice, more than 1 in all, an old key of its own, and
    a sum of fewer than it expects."""
    group = SumGroup(tmp_path, NAMES, fewest=4)
    site = group.sites["site-a"]
    members = group.group(1).to_dict()["members"]

    def refusal(members: list) -> str:
        site.keep(1, {"global": update_of(1)})
        with pytest.raises(UserError) as caught:
            site.mask({"group": {"round": 1, "members": members}})
        return str(caught.value)

    assert "3 to 100 members" in refusal(members[:2])
    assert "this one expects 4" in refusal(members[:3])
    assert "share" in refusal([members[0] | {"share": 0.97}, *(m | {"share": 0.01} for m in members[1:])])
    assert "a member twice" in refusal([*members[:3], members[0]])
    assert "more than 1" in refusal([m | {"share": 0.3} for m in members])
    assert "present key" in refusal([members[0] | {"key": members[1]["key"]}, *members[1:]])
    assert "no name of a site" in refusal([*members[:3], members[3] | {"site": "../d"}])
    assert "gives no secret" in refusal([*members[:3], members[3] | {"key": "0" * 64}])
    group.mask(updates())
    with pytest.raises(UserError, match="a sum of 3 sites, this one expects 4"):
        group.ask_to_open("site-a", NAMES[:3])


def test_members_that_were_told_different_things_open_nothing(tmp_path):
    """The server tells site A another share of B: their masks do not cancel, and their sealed shares do not open."""
    group = SumGroup(tmp_path, NAMES)
    other = SumGroup.group(group, 1).to_dict()
    other["members"][1]["share"] = 0.2
    group.mask({site: u for site, u in updates().items() if site != "site-a"})
    group.sites["site-a"].keep(1, {"global": update_of(1)})
    group.server.add("site-a", group.sites["site-a"].mask({"group": other}))
    with pytest.raises(UserError, match="shares of site 'site-a' cannot be read"):
        group.ask_to_open("site-b")


def test_keys_are_signed_where_sites_have_certificates(tmp_path):
    """A key that the server made itself, one that another site signed, one of a person or of another project's site,
    and one of another run are refused."""
    root, strange = new_root("project"), new_root("project")
    for site in NAMES[:3]:
        write_kit(tmp_path / site / "startup", site, root)
    group = SumGroup(tmp_path, NAMES[:3])
    group.mask(updates(NAMES[:3]))
    assert_mean(group.open(NAMES[:3]), dict.fromkeys(NAMES[:3], 1.0))

    write_kit(tmp_path / "person" / "startup", "site-b", root, "lead")
    write_kit(tmp_path / "strange" / "startup", "site-b", strange)
    own = masks.public_key(masks.new_private_key()).hex()
    signers = {place: KitIdentity(tmp_path / place / "startup") for place in ("person", "strange", "site-b", "site-c")}
    forged = {
        "not signed": {"key": own, "signature": "", "certificate": ""},
        "another participant": signers["site-c"].sign(RUN, "site-b", own).to_dict(),
        "by another participant": signers["person"].sign(RUN, "site-b", own).to_dict(),
        "by a certificate of this project": signers["strange"].sign(RUN, "site-b", own).to_dict(),
        "is not signed": signers["site-b"].sign("ba9876543210", "site-b", own).to_dict(),
    }
    for words, key in forged.items():
        group.keys["site-b"] = key
        with pytest.raises(UserError, match="the key of site 'site-b': it is") as caught:
            group.sites["site-a"].mask({"group": group.group(2).to_dict()})
        assert words.split()[-1] in str(caught.value)


def test_a_kit_that_cannot_sign_stops_the_site(tmp_path):
    (tmp_path / "site-a" / "startup").mkdir(parents=True)
    (tmp_path / "site-a" / "startup" / "client.key").write_text("no key")
    with pytest.raises(UserError, match="cannot be used to sign"):
        SumGroup(tmp_path, NAMES)


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        (None, False),
        ({"scopes": [{"name": "a", "task_result_filters": []}]}, False),
        ({"scopes": [{"name": "a"}, {"name": "b", "task_result_filters": [{"path": "x"}]}]}, True),
        ([1], True),
    ],
)
def test_a_site_that_filters_its_results_refuses(tmp_path, policy, refused):
    """Under masks a filter would do nothing, and nobody would notice."""
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / SITE_FILE).write_text(f"data: {tmp_path}")
    if policy is not None:
        (tmp_path / "local" / "privacy.json").write_text(json.dumps(policy))
    site = load_site_settings(tmp_path / "local", tmp_path, "site-a", 1)
    job = small_settings(overrides=["secure_sum=true", "norm_check=off", "min_sites=3"])
    if refused:
        with pytest.raises(UserError, match="cannot change an update under masks"):
            site_sum(job, site, "site-a", RUN)
    else:
        assert site_sum(job, site, "site-a", RUN) is not None


def test_signs_of_masks_cancel_for_every_order_of_drop_outs(tmp_path):
    """Two of five missing, in every combination: what is left is the sum of the others."""
    names = [*NAMES, "site-e"]
    for k, gone in enumerate(itertools.combinations(names, 2)):
        group = SumGroup(tmp_path / str(k), names)
        rest = {s: update_of(1) for s in names if s not in gone}
        group.mask(rest)
        assert torch.allclose(group.open(list(rest))["w"], update_of(1)["w"], atol=1e-6), gone
