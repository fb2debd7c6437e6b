"""Checkpoints are whole or not there."""

import json

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.core.model_store import OnDisk, editing, stored
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


def test_a_network_that_did_not_change_is_one_file_in_all_rounds(tmp_path):
    """Bit by bit: NaN equals itself, and -0 is not 0."""
    checkpoints = Checkpoints(tmp_path, keep=3)
    odd = {"w": torch.tensor([float("nan"), 0.0]), "count": torch.tensor(3)}
    changed = [odd | {"w": torch.tensor([float("nan"), -0.0])}, odd | {"count": torch.tensor(3.0)}, {"w": odd["w"]}]
    for number in (1, 2, 3):
        files = {"same": odd, "sign": odd, "type": odd, "keys": odd, "moves": {"w": torch.tensor(float(number))}}
        if number == 3:
            files |= dict(zip(("sign", "type", "keys"), changed, strict=True))
        checkpoints.save(number, files, {})

    def one_file(stem: str, first: int, second: int) -> bool:
        paths = [tmp_path / "weights" / Checkpoints.file_name(number, stem) for number in (first, second)]
        return paths[0].samefile(paths[1])

    assert one_file("same", 1, 2) and one_file("same", 2, 3) and one_file("sign", 1, 2)
    assert not any(one_file(stem, 2, 3) for stem in ("sign", "type", "keys", "moves"))
    assert checkpoints.load_weights(Checkpoints.file_name(3, "moves"))["w"].item() == 3


def test_a_damaged_file_is_not_linked_again(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    same = {"net": {"w": torch.arange(5.0)}}
    checkpoints.save(1, same, {})
    (tmp_path / "weights" / Checkpoints.file_name(1, "net")).write_bytes(b"damaged")
    checkpoints.save(2, same, {})
    assert checkpoints.load_weights(Checkpoints.file_name(2, "net"))["w"].tolist() == same["net"]["w"].tolist()


def test_a_run_that_goes_on_links_what_it_took_over(tmp_path):
    old, new = Checkpoints(tmp_path / "old"), Checkpoints(tmp_path / "new")
    same = {"net": {"w": torch.arange(5.0)}}
    old.save(1, same, {})
    new.adopt(old)
    new.save(2, same, {})
    paths = [tmp_path / "new" / "weights" / Checkpoints.file_name(number, "net") for number in (1, 2)]
    assert paths[0].samefile(paths[1])
    assert not paths[0].samefile(tmp_path / "old" / "weights" / paths[0].name), "another run's files stay its own"


def test_a_network_in_a_file_is_linked_and_stays_as_it_was(tmp_path):
    """What is changed after the checkpoint does not reach it, and a second checkpoint of the round is right, too."""
    checkpoints, store = Checkpoints(tmp_path), OnDisk(tmp_path / "models")
    model = store.put("net", {"w": torch.zeros(5)})
    for number in (1, 2, 2):
        with editing(model) as own:
            own["w"] += 1
        checkpoints.save(number, {"net": model}, {})
        path = checkpoints.path_of(Checkpoints.file_name(number, "net"))
        assert path.samefile(stored(model).path)
    kept = [checkpoints.load_weights(Checkpoints.file_name(number, "net"))["w"][0].item() for number in (1, 2)]
    assert kept == [1, 3]
    assert not list(tmp_path.rglob("*.partial"))
