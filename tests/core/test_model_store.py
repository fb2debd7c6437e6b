"""Networks in files: mapped, shared by name with a checkpoint, and never changed there."""

import copy
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedsm.core.mapped import is_mapped, map_tensors, release
from fedsm.core.model_store import FromFile, InMemory, OnDisk, editing, opened, stored

NETWORK = {
    "weight": torch.arange(20_000.0).reshape(100, 200),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "none": torch.zeros(0),
}


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


@pytest.fixture
def store(tmp_path):
    return OnDisk(tmp_path / "models")


def resident(tensors: dict) -> int:
    """KiB of the largest tensor's mapping that are in the process's memory."""
    address, inside = max(tensors.values(), key=lambda value: value.nbytes).data_ptr(), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(end, 16) for end in first.split("-"))
            inside = low <= address < high
        elif inside and first == "Rss:":
            return int(line.split()[1])
    raise AssertionError("it is not mapped")


def test_mapped_tensors_are_those_of_the_file_and_give_their_memory_back(tmp_path):
    save_file(NETWORK, tmp_path / "a")
    mapped = map_tensors(tmp_path / "a")
    assert same(mapped, NETWORK) and same(mapped, load_file(tmp_path / "a")) and is_mapped(mapped)
    assert resident(mapped) >= 80
    release(mapped)
    assert resident(mapped) <= 4
    assert same(mapped, NETWORK), "what was given back is read again"


def test_only_what_is_mapped_for_writing_gets_into_the_file(tmp_path):
    save_file(NETWORK, tmp_path / "a")
    map_tensors(tmp_path / "a")["weight"].zero_()
    assert same(load_file(tmp_path / "a"), NETWORK)
    map_tensors(tmp_path / "a", writable=True)["weight"].zero_()
    assert not load_file(tmp_path / "a")["weight"].any()


@pytest.mark.parametrize("content", [b"", b"\x10truncated", (2**60).to_bytes(8, "little") + b"{}"])
def test_a_file_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises((SafetensorError, OSError)):
        map_tensors(tmp_path / "a")


def test_a_network_of_nothing_is_one(tmp_path, store):
    assert dict(opened(store.put("a", {}))) == {}


def test_in_memory_nothing_is_copied_but_copies():
    kept = InMemory()
    assert kept.put("a", NETWORK) is NETWORK and kept.adopt("a", NETWORK) is NETWORK and opened(NETWORK) is NETWORK
    one, two = kept.copies(["one", "two"], NETWORK).values()
    assert same(one, NETWORK) and one["weight"].data_ptr() != two["weight"].data_ptr()
    with editing(one) as own:
        assert own is one


def test_copies_share_a_file_until_one_of_them_changes(store):
    kept = store.copies(["one", "two", "three"], NETWORK)
    files = [stored(model).path for model in kept.values()]
    assert len({path.stat().st_ino for path in files}) == 1
    before = opened(kept["one"])
    with editing(kept["one"]) as own:
        own["weight"] += 1
    assert torch.equal(opened(kept["one"])["weight"], NETWORK["weight"] + 1)
    assert same(opened(kept["two"]), NETWORK) and same(opened(kept["three"]), NETWORK)
    assert same(before, NETWORK), "whoever still reads the model of before has it"


def test_a_file_with_no_other_name_is_changed_in_place(store):
    kept = store.put("one", NETWORK)
    inode = stored(kept).path.stat().st_ino
    with editing(kept) as own:
        own["weight"] += 1
    assert stored(kept).path.stat().st_ino == inode


def test_a_network_of_a_checkpoint_is_linked_and_the_checkpoint_never_changed(tmp_path, store):
    save_file(NETWORK, tmp_path / "checkpoint")
    kept = store.adopt("one", FromFile(load_file(tmp_path / "checkpoint"), tmp_path / "checkpoint"))
    assert os.path.samefile(stored(kept).path, tmp_path / "checkpoint")
    with editing(kept) as own:
        own["weight"] += 1
    assert same(load_file(tmp_path / "checkpoint"), NETWORK)
    assert same(opened(store.adopt("two", dict(NETWORK))), NETWORK), "tensors of no file are written"


def test_where_there_are_no_links_files_are_copied(store, monkeypatch):
    def link(source, target):
        raise OSError("no links here")

    monkeypatch.setattr("fedsm.core.model_store.os.link", link)
    kept = store.copies(["one", "two"], NETWORK)
    with editing(kept["one"]) as own:
        own["weight"] += 1
    assert same(opened(kept["two"]), NETWORK)


def test_what_an_earlier_process_left_is_removed(tmp_path, store):
    store.put("one", NETWORK)
    OnDisk(tmp_path / "models")
    assert not list((tmp_path / "models").iterdir())
    store.remove()
    assert not (tmp_path / "models").exists()


def test_a_network_in_a_file_reads_as_one_in_memory(store):
    kept = store.put("one", NETWORK)
    assert len(kept) == 4 and "weight" in kept and same(dict(kept), NETWORK) and same(copy.deepcopy(kept), NETWORK)
