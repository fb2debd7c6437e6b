"""Files are read ahead in their order, and no more of them than memory allows."""

import threading

import pytest

from fedsm.super_model import read_ahead as module
from fedsm.super_model.read_ahead import read_ahead

LONG = 600  # seconds for what takes milliseconds


class Files:
    """Counts what was begun; a test waits until so many were."""

    def __init__(self):
        self.begun: list[int] = []
        self._changed = threading.Condition()

    def read(self, number: int) -> int:
        with self._changed:
            self.begun.append(number)
            self._changed.notify_all()
        return number

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, LONG)


def test_in_their_order():
    assert list(read_ahead(range(100), lambda i: i * i, lambda found: 1, 7)) == [i * i for i in range(100)]
    assert list(read_ahead([], str, len, 7)) == []


def test_a_batch_is_read_while_nobody_asks():
    files = Files()
    found = read_ahead(range(100), files.read, lambda found: 1, 8)
    assert next(found) == 0
    files.wait(9)  # the one that was asked for, and 8 that wait or are read
    assert max(files.begun) <= 8 + module._READERS
    found.close()
    assert len(files.begun) < 20, "the rest is not read any more"


def test_large_files_are_not_piled_up(monkeypatch):
    monkeypatch.setattr(module, "_MEMORY", 100)
    files = Files()
    found = read_ahead(range(100), files.read, lambda found: 100, 50)
    assert next(found) == 0
    files.wait(3)
    assert max(files.begun) <= 1 + 2 * module._READERS, "those that are next, whatever they take"
    assert list(found) == list(range(1, 100))


def test_what_goes_wrong_is_raised_where_it_is_asked_for():
    def read(number: int) -> int:
        if number == 3:
            raise MemoryError
        return number

    found = read_ahead(range(10), read, lambda found: 1, 4)
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(MemoryError):
        next(found)
