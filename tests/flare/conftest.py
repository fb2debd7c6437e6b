"""The aggregator of a job with a trained selector, in round 5, with all sites registered."""

import pytest

from fedsm.flare import exchange
from fedsm.flare.aggregator import SoftPullAggregator
from fedsm.flare.task import TaskSpec
from fedsm.tracks import server_tracks
from tests.helpers.shareables import IMAGES, context
from tests.helpers.small_jobs import SITES, small_settings


@pytest.fixture
def aggregator(request) -> SoftPullAggregator:
    aggregator = SoftPullAggregator()
    settings = small_settings(selector="gradient", **getattr(request, "param", {}))
    aggregator.bind(server_tracks(settings, SITES), SITES, settings)
    aggregator.begin(TaskSpec("a task", exchange.REGISTER, 0))
    for site in SITES:
        assert aggregator.accept(exchange.pack({}, {"round": 0, "images": IMAGES}), context(site))
    aggregator.begin(TaskSpec("a task", exchange.TRAIN, 5))
    return aggregator
