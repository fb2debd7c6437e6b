"""`fedsm kit prepare`: what it adds to kits that FLARE alone made, and what it leaves as it is."""

import json
import shutil
from pathlib import Path

import pytest

from app_fedsm.cli.main import main
from fedsm.core.components import EXECUTOR, SERVER_CLASSES, SITE_CLASSES
from tests.helpers.kits import provision


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """Kits of plain `nvflare provision`."""
    return provision(tmp_path_factory.mktemp("plain") / "project")


@pytest.fixture
def kits(plain, tmp_path) -> Path:
    """A copy, open to everybody."""
    folder = shutil.copytree(plain, tmp_path / "kits")
    for path in folder.rglob("*"):
        path.chmod(0o777 if path.is_dir() or path.suffix == ".sh" else 0o666)
    return folder


def content(kit: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in kit.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "classes"), [("site-1", SITE_CLASSES), ("localhost", SERVER_CLASSES), ("admin@lead.org", None)]
)
def test_a_kit_gets_what_ours_have_and_a_second_call_changes_nothing(kits, capsys, name, classes):
    kit = kits / name
    assert main(["kit", "prepare", str(kit)]) == 0
    assert [path for path in [kit, *kit.rglob("*")] if path.stat().st_mode & 0o077] == []
    assert all("umask 077" in script.read_text() for script in (kit / "startup").glob("*.sh"))
    if classes:
        for file in ("resources.json", "resources.json.default"):
            resources = json.loads((kit / "local" / file).read_text())
            assert set(classes) < set(resources["class_allow_list"])
    before = content(kit)
    capsys.readouterr()
    assert main(["kit", "prepare", str(kit)]) == 0
    assert content(kit) == before
    assert ("as they were: local/authorization.json" in capsys.readouterr().out) == bool(classes)


def test_a_site_is_told_what_to_write_and_keeps_what_it_wrote(kits, capsys):
    kit = kits / "site-1"
    assert main(["kit", "prepare", str(kit)]) == 0
    assert "write `data:` to local/fedsm_site.yaml" in capsys.readouterr().out
    assert json.loads((kit / "local/resources.json").read_text())["client"]["communication_timeout"] == 3600
    (kit / "local/fedsm_site.yaml").write_text("data: /data/retina\n")
    assert main(["kit", "prepare", str(kit), "--byoc"]) == 0
    assert (kit / "local/fedsm_site.yaml").read_text() == "data: /data/retina\n"
    rights = json.loads((kit / "local/authorization.json").read_text())["permissions"]
    assert rights["lead"]["byoc"] == "none", "the first call decided that"


def test_byoc_and_storage(kits, tmp_path, capsys):
    assert main(["kit", "prepare", str(kits / "localhost"), "--byoc", "--storage", str(tmp_path / "jobs")]) == 0
    assert f"jobs and results are kept in {tmp_path / 'jobs'}" in capsys.readouterr().out
    local = kits / "localhost" / "local"
    assert json.loads((local / "authorization.json").read_text())["permissions"]["lead"]["byoc"] == "any"
    assert str(tmp_path / "jobs" / "snapshots") in (local / "resources.json").read_text()
    for command in ([str(kits / "site-1"), "--storage", "x"], [str(kits / "admin@lead.org"), "--byoc"], [str(kits)]):
        assert main(["kit", "prepare", *command]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "line"), [('{"class_allow_list": ["nvflare."]}', f"does not allow {EXECUTOR}"), ("{", "cannot be read")]
)
def test_resources_of_the_owner_stay_and_what_they_lack_is_said(kits, capsys, text, line):
    own = kits / "site-1" / "local" / "resources.json"
    own.write_text(text)
    assert main(["kit", "prepare", str(kits / "site-1")]) == 1
    assert line in (err := capsys.readouterr().err) and err.count("\n") == 1
    assert own.read_text() == text
