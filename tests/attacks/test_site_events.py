"""Federated events of a site, a channel beside the tasks.

Found: FLARE's server fires an event under whatever name a site gives it. One message named as a fatal error ended the
job of all sites, and nobody was named. TensorBoard's receiver made a file and a thread for every sender's name that a
site thought up (200 of them: 200 threads), and wrote text of any size.
"""

import json
from unittest.mock import Mock

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.utils.class_utils import instantiate_class
from nvflare.widgets.fed_event import FedEventHeader, ServerFedEventRunner

from app_fedsm.recipes import FedSMRecipe
from fedsm.flare.controller import FedSMController
from fedsm.flare.evaluation import EvaluationController
from fedsm.flare.forget_controller import ForgetController
from tests.helpers.small_jobs import small_settings


@pytest.fixture(
    params=[
        lambda: FedSMController(small_settings().to_dict()),
        lambda: EvaluationController("test", 0),
        lambda: ForgetController("site-1", "job:1"),
    ]
)
def runner(request):
    """What receives events on the server of a job of ours; nothing is fired, so that the test sees what would be."""
    request.param()
    found = ServerFedEventRunner()
    found.poster = Mock()
    return found


def event(name, number: int = 0) -> Shareable:
    """An event as a site's own program would send it."""
    shareable = Shareable()
    shareable.set_peer_props({ReservedKey.IDENTITY_NAME: "site-3"})
    headers = {FedEventHeader.EVENT_TYPE: name, FedEventHeader.TIMESTAMP: 1.0, FedEventHeader.EVENT_ID: f"e{number}"}
    for key, value in headers.items():
        shareable.set_header(key, value)
    return shareable


@pytest.mark.parametrize(
    "name", [EventType.FATAL_SYSTEM_ERROR, EventType.END_RUN, EventType.ABORT_TASK, "analytix_log_stats", "", 7, None]
)
def test_no_event_of_the_servers_own_comes_from_a_site(runner, name):
    reply = runner._receive("fed.event", event(name), FLContext())
    assert reply.get_return_code() == ReturnCode.BAD_REQUEST_DATA and not runner.in_events


def test_those_that_wait_are_bounded(runner):
    for number in range(2000):
        runner._receive("fed.event", event("fed.something", number), FLContext())
    assert 0 < len(runner.in_events) <= 1000


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow", "wandb"])
def test_curves_are_the_servers_own(tmp_path, kind):
    FedSMRecipe("job", settings=small_settings(), track=kind).export(str(tmp_path))
    config = json.loads((tmp_path / "job/app/config/config_fed_server.json").read_text())
    (component,) = [c for c in config["components"] if c["id"] == kind]
    receiver = instantiate_class(component["path"], component["args"])
    assert receiver.events == ["analytix_log_stats"]  # and no "fed." before it
