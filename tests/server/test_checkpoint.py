"""Checkpoints are whole or not there."""

import json

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.server.checkpoint import Checkpoints


def save(checkpoints: Checkpoints, number: int, best: int | None = None) -> None:
    files = {"global": {"w": torch.tensor([float(number)])}}
    entry = {"global": {"round": best, "score": 1.0, "file": Checkpoints.file_name(best, "global")}} if best else {}
    checkpoints.save(number, files, {"best": entry})


def test_load_gives_the_newest_and_old_ones_are_pruned_but_not_the_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for number in range(1, 7):
        save(checkpoints, number, best=2 if number >= 2 else None)
    state = checkpoints.load()
    assert state["round"] == 6
    assert checkpoints.load_weights(state["files"]["global"])["w"].item() == 6
    assert checkpoints.load_weights(state["best"]["global"]["file"])["w"].item() == 2
    assert sorted(p.name for p in tmp_path.glob("round_*")) == ["round_000005.json", "round_000006.json"]
    assert len(list((tmp_path / "weights").iterdir())) == 3


def test_a_kill_at_any_moment_leaves_the_last_one_loadable(tmp_path, monkeypatch):
    """Every rename of a save is made to fail in turn, as a kill there would: the round before still loads."""
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    import fedsm.core.files as module

    real = module.os.replace
    for fail_at in range(2):
        calls = iter(range(10))

        def replace(source, target, fail_at=fail_at, calls=calls):
            if next(calls) == fail_at:
                raise KeyboardInterrupt
            return real(source, target)

        monkeypatch.setattr(module.os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            save(checkpoints, 2)
        monkeypatch.setattr(module.os, "replace", real)
        state = Checkpoints(tmp_path).load()
        assert state["round"] == 1
        assert checkpoints.load_weights(state["files"]["global"])["w"].item() == 1
    save(checkpoints, 2)
    assert Checkpoints(tmp_path).load()["round"] == 2


def test_adopt_outlives_the_run_it_came_from(tmp_path):
    import shutil

    old, new = Checkpoints(tmp_path / "old"), Checkpoints(tmp_path / "new")
    save(old, 3, best=3)
    new.adopt(old)
    shutil.rmtree(tmp_path / "old")
    state = new.load()
    assert state["round"] == 3
    assert new.load_weights(state["files"]["global"])["w"].item() == 3


def test_bad_checkpoints_are_one_line_errors(tmp_path):
    empty = Checkpoints(tmp_path / "empty")
    assert empty.load() is None
    with pytest.raises(UserError, match="no checkpoint"):
        Checkpoints(tmp_path / "new").adopt(empty)
    checkpoints = Checkpoints(tmp_path / "bad")
    save(checkpoints, 1)
    (tmp_path / "bad" / "weights" / Checkpoints.file_name(1, "global")).write_bytes(b"\x10truncated")
    with pytest.raises(UserError, match="cannot be read"):
        checkpoints.load_weights(Checkpoints.file_name(1, "global"))
    with pytest.raises(UserError, match="plain file name"):
        checkpoints.load_weights("../../etc/passwd")
    (tmp_path / "bad" / "round_000009.json").write_text(json.dumps({"round": 9})[:-3])
    with pytest.raises(UserError, match="cannot be read"):
        checkpoints.load()


def test_an_older_one_that_cannot_be_read_does_not_end_the_run(tmp_path):
    """Nothing is removed then: somebody may repair it."""
    checkpoints = Checkpoints(tmp_path)
    for number in (5, 6):
        save(checkpoints, number)
    (tmp_path / "round_000005.json").write_text("{")
    save(checkpoints, 7)
    assert checkpoints.load()["round"] == 7
    assert (tmp_path / "weights" / Checkpoints.file_name(5, "global")).is_file()
