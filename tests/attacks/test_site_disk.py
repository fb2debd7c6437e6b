"""A site's disk that is full or read-only, and files in it that a person put there.

Found: a full disk cost the round with the words `SafetensorError` and a traceback in the site's log, and left half a
file there; a copy of a state file that a person had made ended every round in a ValueError.
"""

import os
import shutil

import pytest
import torch
from safetensors import SafetensorError

from fedsm.client import local_state
from fedsm.client.local_state import LocalState
from fedsm.errors import UserError

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
