"""What sites weigh in averages of networks."""

import pytest

from fedsm.server.registry import Registry
from tests.helpers.small_jobs import SITES

COUNTS = (10, 30, 10**6)


def registry(*more) -> Registry:
    made = Registry(2.0, *more)
    for site, count in zip(SITES, COUNTS, strict=True):
        made.add(site, {"images": {"train": count, "validation": 5, "test": 5}})
    return made


@pytest.mark.parametrize("more", [(), ("images",)])
def test_images_within_the_limit(more):
    """At most twice the median of 30; the site that is limited is named."""
    assert registry(*more).shares() == {"site-1": 10, "site-2": 30, "site-3": 60.0}
    assert list(registry(*more).unusual_counts()) == ["site-3"]


def test_equal():
    """Each weighs 1: a third of the average, a half where two answer. Nobody's count buys anything."""
    assert registry("equal").shares() == dict.fromkeys(SITES, 1.0)
    assert registry("equal").unusual_counts() == {}
