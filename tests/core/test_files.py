"""Files are written whole or not at all, and for their owner alone."""

import json
import os
import subprocess
import sys

import pytest

from fedsm.core.files import replacing, replacing_folder, write_bytes, write_json, write_text


def mode(path):
    return path.stat().st_mode & 0o777


@pytest.fixture
def open_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_is_replaced_whole_with_mode_0600(tmp_path, open_umask, shared):
    path = tmp_path / "new" / "a.json"
    for content in ({"a": 1}, {"name": "gr\u00f6\u00dfe\udcff"}):
        write_json(path, content, shared)
        assert json.loads(path.read_text()) == content
    assert mode(path) == 0o600, "whatever the umask"
    assert os.listdir(path.parent) == ["a.json"]
    write_text(path, "\u00fc")
    assert path.read_bytes() == b"\xc3\xbc"
    write_bytes(path, b"\xff")
    assert path.read_bytes() == b"\xff"


@pytest.mark.parametrize("shared", [False, True])
def test_a_failure_keeps_the_old_file_and_leaves_nothing_beside_it(tmp_path, shared):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), replacing(path, shared) as partial:
        partial.write_text("half")
        assert path.read_text() == "old"
        raise KeyboardInterrupt
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


def test_what_a_killed_process_left_is_no_way_to_another_file(tmp_path, open_umask):
    """A link with the unfinished file's name would lead the content elsewhere; an open mode would stay."""
    (tmp_path / "other").write_text("other")
    (tmp_path / "a.txt.partial").symlink_to(tmp_path / "other")
    write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "other").read_text() == "other"
    assert (tmp_path / "a.txt").read_text() == "new" and mode(tmp_path / "a.txt") == 0o600


def test_a_folder_is_replaced_whole(tmp_path, open_umask):
    folder = tmp_path / "out"
    for number in range(2):
        with replacing_folder(folder) as partial:
            (partial / f"{number}.txt").write_text("x")
    assert os.listdir(folder) == ["1.txt"] and mode(folder) == 0o700
    with pytest.raises(ValueError), replacing_folder(folder) as partial:
        (partial / "2.txt").write_text("x")
        raise ValueError
    assert os.listdir(folder) == ["1.txt"] and os.listdir(tmp_path) == ["out"]


def test_several_processes_may_write_one_shared_file(tmp_path):
    """Each of four processes writes its own long text 30 times: a reader always finds one of them, whole."""
    path = tmp_path / "book.json"
    code = (
        "import sys; from pathlib import Path; from fedsm.core.files import write_json\n"
        "for _ in range(30): write_json(Path(sys.argv[1]), [sys.argv[2]] * 5000, shared=True)"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(path), str(n)]) for n in range(4)]
    while any(p.poll() is None for p in processes):
        if path.exists():
            found = json.loads(path.read_text())
            assert len(found) == 5000 and len(set(found)) == 1
    assert all(p.returncode == 0 for p in processes)
    assert os.listdir(tmp_path) == ["book.json"]
