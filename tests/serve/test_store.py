"""What is kept in memory is bounded in number, bytes and age."""

from dataclasses import dataclass

import pytest

from fedsm.serve.limits import Refused, ServeLimits
from fedsm.serve.store import Store


@dataclass
class Item:
    nbytes: int


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def store(now):
    return Store(ServeLimits(results=3, results_bytes=100, results_seconds=60), "result", lambda: now[0])


def there(store) -> list[str]:
    found = []
    for name in "abcde":
        try:
            store.get(name)
            found.append(name)
        except Refused as e:
            assert e.status == 404
    return found


def test_the_oldest_go_first(store):
    for name in "abcd":
        store.put(name, Item(10))
    assert there(store) == ["b", "c", "d"]
    store.put("e", Item(85))  # 10 + 10 + 85 > 100
    assert there(store) == ["d", "e"]


def test_age(store, now):
    store.put("a", Item(10))
    now[0] = 40
    store.put("b", Item(10))
    now[0] = 61
    assert there(store) == ["b"]


def test_one_that_is_too_large(store):
    store.put("a", Item(100))
    with pytest.raises(Refused, match="too much memory"):
        store.put("b", Item(101))
    assert there(store) == ["a"]


def test_the_same_name_again_counts_once(store):
    for _ in range(3):
        store.put("a", Item(60))
    store.put("b", Item(40))
    assert there(store) == ["a", "b"]
    store.remove("a")
    store.remove("a")
    store.put("c", Item(60))
    assert there(store) == ["b", "c"]
