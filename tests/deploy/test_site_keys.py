"""Keys that never leave the hospital: request, signing, packaging, our command, and a job on what came of it."""

import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from app_fedsm.cli.main import main
from tests.helpers.assertions import assert_equals_plain_loop
from tests.helpers.processes import Running, free_port
from tests.helpers.site_keys import Party, ProjectAdmin, assert_keys_are_closed
from tests.helpers.small_jobs import SITES, SMALL

pytestmark = pytest.mark.slow

LEAD = "lead@university.example.org"


@pytest.fixture(scope="module")
def parties(tmp_path_factory) -> tuple[ProjectAdmin, dict[str, Party]]:
    """Everybody with the kit that FLARE makes, under an umask of 0."""
    folder = tmp_path_factory.mktemp("keys")
    admin = ProjectAdmin(folder, free_port())
    entries = {"localhost": {"type": "server", "org": "consortium", "host_names": ["localhost", "127.0.0.1"]}}
    entries |= {site: {"type": "client", "org": site.replace("-", "_")} for site in SITES}
    entries |= {LEAD: {"type": "admin", "org": "university", "role": "lead"}}
    parties = {name: Party(folder, name, entry) for name, entry in entries.items()}
    for party in parties.values():
        party.package(admin.approve(party.request()), admin.fingerprint)
    return admin, parties


def prepare(party: Party) -> int:
    before = os.umask(0)
    try:
        return main(["kit", "prepare", str(party.kit)])
    finally:
        os.umask(before)


def test_a_job_on_kits_with_keys_of_their_own(parties, data_root, tmp_path):
    """The same seed gives the weights of the plain loop; no site's key was ever with the project admin."""
    admin, by_name = parties
    for party in by_name.values():
        assert prepare(party) == 0
        files = {path: path.read_bytes() for path in party.kit.rglob("*") if path.is_file()}
        assert prepare(party) == 0, "again: nothing changes"
        assert {path: path.read_bytes() for path in party.kit.rglob("*") if path.is_file()} == files
        assert_keys_are_closed(party.folder)
    assert_keys_are_closed(admin.folder)
    admin.check()

    kits = SimpleNamespace(
        server=by_name["localhost"].kit,
        sites={site: by_name[site].kit for site in SITES},
        users={LEAD: by_name[LEAD].kit},
        relays={},
    )
    running, out = Running(kits, kits.users[LEAD]), tmp_path / "run"
    running.tell_data(data_root)
    for site in SITES:
        assert prepare(by_name[site]) == 0
        assert (kits.sites[site] / "local" / "fedsm_site.yaml").read_text().startswith("data: "), "what it wrote stays"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "10"}
    try:
        for kit in [kits.server, *kits.sites.values()]:
            running.start(kit, env)
        running.wait_for(SITES)
        job = [*SMALL, "--rounds", "2", "--selector", "gradient", "--sites", *SITES, "--out", str(out)]
        assert main(["submit", "--kit", str(kits.users[LEAD]), *job]) == 0
    finally:
        running.stop_all()
    assert_equals_plain_loop(out, data_root, rounds=2)
    for kit in [kits.server, *kits.sites.values()]:
        written = [path for path in kit.rglob("*") if path.stat().st_mode & 0o077 and path.name != "console.log"]
        assert written == [], "whatever FLARE wrote, too"


def test_a_signed_zip_is_of_no_use_without_the_key(parties, tmp_path):
    """Who intercepts what the admin sends back has a certificate, and no kit."""
    admin, by_name = parties
    thief = Party(tmp_path, "thief")
    shutil.copytree(by_name["site-1"].folder / "request", thief.folder / "request")
    (thief.folder / "request" / "site-1.key").unlink()
    with pytest.raises(AssertionError, match="key"):
        thief.package(admin.folder / "site-1.signed.zip", admin.fingerprint)
    assert not thief.kit.parent.exists()
