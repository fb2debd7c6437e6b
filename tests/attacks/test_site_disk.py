"""A site's disk that is full or read-only, and files in it that a person put there.

Found: a full disk cost the round with the words `SafetensorError` and a traceback in the site's log, and left half a
file there; a copy of a state file that a person had made ended every round in a ValueError. A read-only folder cost a
traceback. Images that did not fit into the cache were decoded to memory however many gigabytes a job's size made of
them. A line of progress.jsonl that a full disk had cut short ended the watching for good.
"""

import errno
import os
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError

from fedsm.client import local_state
from fedsm.client.failures import explain
from fedsm.client.local_state import LocalState
from fedsm.core.errors import UserError
from fedsm.data import dataset
from fedsm.data.cache import SiteCache
from fedsm.server.record import Progress
from tests.helpers.small_jobs import small_settings

RUN = "0123456789ab"
STATE = {"global": {"w": torch.ones(3)}}


@pytest.mark.parametrize(
    "error", [SafetensorError("I/O error: No space left on device (os error 28)"), OSError(30, "Read-only file system")]
)
def test_a_disk_that_takes_nothing_is_one_line(tmp_path, monkeypatch, error):
    local = LocalState(tmp_path, RUN)
    local.save(1, STATE)

    def full(tensors, path):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(local_state, "save_file", full)
    with pytest.raises(UserError, match="make room, or set another state_dir") as caught:
        local.save(2, STATE)
    assert "\n" not in str(caught.value) and str(tmp_path) not in caught.value.public
    assert "full or read-only" in caught.value.public
    assert os.listdir(tmp_path / RUN) == ["round_000001.safetensors"], "nothing half is left"
    assert local.load(before=3)[0] == 1


def test_copies_that_a_person_made_are_left_alone(tmp_path):
    local = LocalState(tmp_path, RUN)
    local.save(1, STATE)
    copy = tmp_path / RUN / "round_000001 (copy).safetensors"
    shutil.copyfile(tmp_path / RUN / "round_000001.safetensors", copy)
    for number in range(2, 9):
        local.save(number, STATE)
    assert copy.is_file() and local.load(before=9)[0] == 8


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_what_a_disk_refuses_is_one_line(code):
    """Wherever it is: a split, the list of released sums, the cache."""
    failure = explain(OSError(code, os.strerror(code), "/data/secret/splits.json"))
    assert "\n" not in str(failure) and "secret" in str(failure) and "secret" not in failure.public


def test_images_that_fit_nowhere_are_not_decoded(tmp_path, data_root, monkeypatch):
    monkeypatch.setattr(dataset.psutil, "virtual_memory", lambda: SimpleNamespace(available=10**5))
    cache = SiteCache(tmp_path / "cache", budget=1000)
    with pytest.raises(UserError, match="neither into its cache nor into its memory") as caught:
        dataset.load_site(data_root / "site-1", "site-1", small_settings(), cache=cache)
    assert str(tmp_path) not in caught.value.public


def test_half_a_line_does_not_end_the_watching(tmp_path):
    progress = Progress(tmp_path / "progress.jsonl")
    progress.tell("started", rounds=3)
    with (tmp_path / "progress.jsonl").open("a") as file:
        file.write('{"event": "rou')
    assert [event["event"] for event in progress.events()] == ["started"]
    progress.tell("round", round=1)  # which is lost with the half line
    progress.tell("round", round=2)
    assert [event["event"] for event in progress.events()] == ["started", "round"]
