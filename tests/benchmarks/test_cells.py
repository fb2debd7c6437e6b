"""A table of cells goes on where it was stopped."""

import pytest

from benchmarks import cells
from benchmarks.process import Failed


@pytest.fixture(autouse=True)
def _leave_the_process_alone(monkeypatch):
    monkeypatch.setattr(cells.logging, "disable", lambda level: None)
    monkeypatch.setattr(cells.torch, "set_num_threads", lambda count: None)


def test_what_is_finished_is_not_run_again(tmp_path):
    def broken() -> dict:
        raise Failed("it gave up")

    with pytest.raises(Failed, match="^second: it gave up"):
        cells.fill(tmp_path, [("first", lambda: {"dice": 0.5}), ("second", broken)], minutes=1e6)
    found = cells.fill(tmp_path, [("first", broken), ("second", lambda: {"dice": 0.75})], minutes=1e6)
    assert {name: cell["dice"] for name, cell in found.items()} == {"first": 0.5, "second": 0.75}
    assert cells.fill(tmp_path, [("first", broken)], minutes=0) == found, "and nothing is lost that was not asked for"


def test_no_cell_is_begun_after_the_time(tmp_path):
    assert cells.fill(tmp_path, [("first", lambda: {"dice": 0.5})], minutes=0) == {}
