"""Workaround: `TBAnalyticsReceiver(events=...)` in `app_fedsm.recipes`.

Symptom: FLARE's receiver for TensorBoard writes what sites send as well, into a folder, a file and a thread for every
name that a message gives its sender, and texts of any length. FLARE 2.9.0. With the workaround:
`tests/attacks/test_site_events.py`.
"""

from types import SimpleNamespace
from unittest.mock import Mock

from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import EventScope, FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContextManager
from nvflare.app_common.widgets.streaming import ANALYTIC_EVENT_TYPE, create_analytic_dxo
from nvflare.app_opt.tracking.tb.tb_receiver import TBAnalyticsReceiver


def test_flares_receiver_takes_what_sites_send(tmp_path):
    receiver = TBAnalyticsReceiver()
    engine = Mock(get_workspace=lambda: SimpleNamespace(get_run_dir=lambda job: str(tmp_path)))
    fl_ctx = FLContextManager(engine, identity_name="server", job_id="job").new_context()
    receiver.handle_event(EventType.START_RUN, fl_ctx)
    fl_ctx.set_prop(FLContextKey.EVENT_SCOPE, EventScope.FEDERATION, private=True, sticky=False)  # as FLARE marks them
    for name in ("site-3", "nobody", "nobody-else"):
        sent = create_analytic_dxo("note", "x" * 100_000, AnalyticsDataType.TEXT).to_shareable()
        sent.set_peer_props({ReservedKey.IDENTITY_NAME: name})
        fl_ctx.set_prop(FLContextKey.EVENT_DATA, sent, private=True, sticky=False)
        receiver.handle_event(f"fed.{ANALYTIC_EVENT_TYPE}", fl_ctx)
    receiver.handle_event(EventType.END_RUN, fl_ctx)
    written = {file.parent.name: file.stat().st_size for file in tmp_path.rglob("events*")}
    assert set(written) == {"site-3", "nobody", "nobody-else"} and min(written.values()) > 100_000
