"""Workaround: `fedsm.flare.compat.site_events`.

Symptom: one message of one site, an event named as FLARE's own for a fatal error, ends the job of all; and events that
wait on the server are kept without a limit. FLARE 2.9.0. With the workaround: `tests/attacks/test_site_events.py`.
"""

from unittest.mock import Mock

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FedEventHeader, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.widgets import fed_event

from tests.helpers.pristine import pristine


def test_flares_own_runner_takes_any_event_and_any_number_of_them():
    runner = pristine(fed_event).ServerFedEventRunner()
    runner.poster = Mock()  # nothing is fired, so that the test sees what would be
    for number in range(2000):
        event = Shareable()
        event.set_peer_props({ReservedKey.IDENTITY_NAME: "site-3"})
        event.set_header(FedEventHeader.EVENT_TYPE, EventType.FATAL_SYSTEM_ERROR)
        event.set_header(FedEventHeader.TIMESTAMP, 1.0)
        event.set_header(FedEventHeader.EVENT_ID, f"e{number}")
        assert runner._receive("fed.event", event, FLContext()).get_return_code() == ReturnCode.OK
    assert len(runner.in_events) == 2000
