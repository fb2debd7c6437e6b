"""What a site remembers survives its process; a resumed server finds the state of its own round."""

import torch

from fedsm.client.local_state import LocalState

RUN, OTHER = "0123456789ab", "ba9876543210"


def state(value: float) -> dict:
    return {"global": {"0.exp_avg": torch.tensor([value])}, "selector": {}}


def value_of(loaded: dict) -> float:
    return loaded["global"]["0.exp_avg"].item()


def test_loads_the_newest_before_a_round_and_keeps_two(tmp_path):
    local = LocalState(tmp_path, RUN)
    assert local.load(before=1) == (0, {})
    for number in (1, 2, 3):
        local.save(number, state(number))
    again = LocalState(tmp_path, RUN)
    number, loaded = again.load(before=4)
    assert (number, value_of(loaded)) == (3, 3.0)
    number, loaded = again.load(before=3)
    assert (number, value_of(loaded)) == (2, 2.0), "the server went on from round 2: round 3 is trained again"
    assert len(list((tmp_path / RUN).iterdir())) == 2
    assert LocalState(tmp_path, OTHER).load(before=9) == (0, {})


def test_a_site_that_missed_a_round_keeps_what_a_resumed_server_needs(tmp_path):
    """Rounds 1, 2 and 4; the server goes on after round 3: the moments of round 2 are the ones."""
    local = LocalState(tmp_path, RUN)
    for number in (1, 2, 4):
        local.save(number, state(number))
    assert local.load(before=4)[0] == 2


def test_a_lost_future_is_dropped(tmp_path):
    local = LocalState(tmp_path, RUN)
    for number in (4, 5, 4):
        local.save(number, state(number * 10))
    assert local.load(before=99)[0] == 4


def test_a_damaged_file_falls_back_to_the_round_before(tmp_path):
    local = LocalState(tmp_path, RUN)
    local.save(1, state(1))
    local.save(2, state(2))
    (tmp_path / RUN / "round_000002.safetensors").write_bytes(b"half")
    number, loaded = local.load(before=3)
    assert (number, value_of(loaded)) == (1, 1.0)


def test_tracks_without_state_are_fine(tmp_path):
    local = LocalState(tmp_path, RUN)
    local.save(1, {"selector": {}})
    assert local.load(before=2)[0] == 1
