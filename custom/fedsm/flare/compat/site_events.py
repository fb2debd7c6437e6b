"""Limits a site's federated events on the server to those that a component there handles as federated ones.

FLARE 2.9 fires an event on the server under whatever name the message gives it, and queues events without a limit. So
one message of one site, an event with the name of FLARE's own fatal error, would end the whole job.
"""

from __future__ import annotations

import logging

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.widgets.fed_event import FedEventHeader, ServerFedEventRunner

from fedsm.core.text import one_line

_PREFIX = "fed."  # of the names of events that come from another process
_MOST_WAITING = 1000

log = logging.getLogger(__name__)


def guard_events() -> None:
    """Lets the server take federated events only under federated names, and only as many as it can handle.

    To be called before the run starts: that is when FLARE notes who receives them.
    """
    if getattr(ServerFedEventRunner, "fedsm_guarded", False):
        return
    receive = ServerFedEventRunner._receive

    def guarded(self: ServerFedEventRunner, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        name = request.get_header(FedEventHeader.EVENT_TYPE, None)
        if not isinstance(name, str) or not name.startswith(_PREFIX):
            peer = fl_ctx.get_peer_context()
            site = peer.get_identity_name() if peer else None
            log.error("fedsm refused: an event %s that says it is from %s", one_line(name, 80), one_line(site, 80))
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        if len(self.in_events) >= _MOST_WAITING:
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        return receive(self, topic, request, fl_ctx)

    ServerFedEventRunner._receive = guarded
    ServerFedEventRunner.fedsm_guarded = True
