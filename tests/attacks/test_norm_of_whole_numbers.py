"""Weights sent as whole numbers had no norm: 1e15 in every weight passed every norm check and was merged."""

import pytest
import torch

from fedsm.core.state import examine
from tests.helpers.federation import Federation, results_of
from tests.helpers.hostile import HOSTILE, TRAIN, on
from tests.helpers.small_jobs import SITES, small_settings


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_whole_numbers_in_the_place_of_floats_have_a_norm(dtype):
    """Four entries of 100: the norm is 200, whatever they are stored as."""
    reason, norm = examine({"w": torch.full((4,), 100, dtype=dtype)}, {"w": torch.zeros(4)})
    assert reason is None and norm == pytest.approx(200)


def test_whole_numbers_that_are_buffers_have_none():
    update = {"w": torch.ones(4), "seen": torch.tensor(10**9)}
    assert examine(update, {"w": torch.zeros(4), "seen": torch.tensor(0)}) == (None, pytest.approx(2.0))


def test_a_site_that_sends_whole_numbers_is_refused(tmp_path, data_root):
    def whole(result) -> None:
        for part in result["DXO"]["data"].values():
            part.data = {k: torch.full(v.shape, 10**15) for k, v in part.data.items()}

    settings = small_settings(rounds=2, method="fedavg")
    federation = Federation(tmp_path, data_root, settings, SITES, fault=on(TRAIN, whole)).run()
    assert federation.panic is None
    assert {entry["site"] for entry in results_of(federation)["refused"]} == {HOSTILE}
    assert all(row["answered"] == SITES[:2] for row in results_of(federation)["validation"]["history"])
