"""Workarounds: `fedsm.flare.compat.receivers`, and `check_receiver` in `fedsm.flare.curves`.

Symptom: on a server, FLARE's receivers for MLflow and Weights & Biases drop the curves of the server's own components:
they make a run for each client, and none for the server. FLARE 2.9.0. With the workaround:
`tests/flare/test_tracking.py`. After a failure the one for MLflow tries again with every value, in the thread of the
rounds; and a receiver that cannot start is a line in the log, no more.
"""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ProcessType
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import Shareable
from nvflare.app_common.widgets.streaming import ANALYTIC_EVENT_TYPE, AnalyticsReceiver, create_analytic_dxo

from fedsm.flare.compat import receivers
from fedsm.flare.compat.receivers import OWN_CURVES, OwnCurves


class Receiver(AnalyticsReceiver):
    """FLARE's choice of participants alone, as both receivers have it."""

    def __init__(self, start=lambda fl_ctx: None, events=OWN_CURVES):
        super().__init__(events)
        self._start = start
        self.tried = 0

    def initialize(self, fl_ctx):
        self._start(fl_ctx)

    def save(self, fl_ctx, shareable, record_origin):
        self.tried += 1
        raise ConnectionError("its server is away")

    def finalize(self, fl_ctx):
        """Not called here."""


class OwnReceiver(OwnCurves, Receiver):
    """The same with the workaround."""


@pytest.fixture
def fl_ctx(tmp_path):
    engine = Mock(get_clients=lambda: [SimpleNamespace(name="site-1"), SimpleNamespace(name="site-2")])
    process = {FLContextKey.PROCESS_TYPE: ProcessType.SERVER_JOB}
    return FLContextManager(engine, "server", "job", private_stickers=process).new_context()


@pytest.mark.parametrize("kind", ["mlflow", "wandb"])
def test_flares_receivers_have_no_place_for_the_servers_own_curves(kind, fl_ctx, monkeypatch):
    """Taken from FLARE's own `initialize`: what it does for each participant is replaced, and noted."""
    pytest.importorskip(kind)
    made: list[str] = []
    if kind == "mlflow":
        from nvflare.app_opt.tracking.mlflow import mlflow_receiver as module

        receiver = module.MLflowReceiver(events=[ANALYTIC_EVENT_TYPE])
        monkeypatch.setattr(module, "mlflow", Mock())
        monkeypatch.setattr(receiver, "_get_tracking_uri", lambda fl_ctx: "")
        monkeypatch.setattr(receiver, "_get_artifact_location", lambda where, fl_ctx: "")
        monkeypatch.setattr(receiver, "_mlflow_setup", lambda where, name, tags, sites, fl_ctx: made.extend(sites))
    else:
        from nvflare.app_opt.tracking.wandb import wandb_receiver as module

        monkeypatch.setattr(module, "Process", Mock())
        receiver = module.WandBReceiver({"project": "p", "group": "g", "job_type": "t", "name": "n"})
        monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    receiver.initialize(fl_ctx)
    made = made or list(receiver.queues)
    assert made == ["site-1", "site-2"]


def test_flares_receiver_of_mlflow_tries_again_with_every_value():
    pytest.importorskip("mlflow")
    from nvflare.app_opt.tracking.mlflow.mlflow_receiver import MLflowReceiver

    client = Mock()
    client.log_batch.side_effect = ConnectionError("its server is away")
    receiver = MLflowReceiver(events=[ANALYTIC_EVENT_TYPE], buffer_flush_time=0)
    receiver.mlflow_clients, receiver.run_ids = {"server": client}, {"server": "run"}
    receiver._init_buffer(["server"])
    for step in range(5):
        sent = create_analytic_dxo("loss", 1.0, AnalyticsDataType.SCALAR, global_step=step).to_shareable()
        with pytest.raises(ConnectionError):
            receiver.save(Mock(), sent, "server")
    assert client.log_batch.call_count == 5


def test_flare_goes_on_without_a_receiver_that_cannot_start(fl_ctx):
    def fail(ctx):
        raise ConnectionError("no server")

    Receiver(fail).handle_event(EventType.START_RUN, fl_ctx)
    assert not fl_ctx.get_engine().fire_event.called


def test_a_receiver_of_our_jobs_sees_one_participant(fl_ctx):
    seen = []
    for kind in (OwnReceiver, Receiver):
        kind(lambda ctx: seen.append((ctx.get_process_type(), ctx.get_identity_name()))).handle_event(
            EventType.START_RUN, fl_ctx
        )
    assert seen == [(ProcessType.CLIENT_JOB, "server"), (ProcessType.SERVER_JOB, "server")]


def test_a_store_that_is_away_is_not_asked_for_every_value(fl_ctx, monkeypatch):
    """FLARE tries it again with each of the twenty values of a round, and the round waits each time."""
    receiver = OwnReceiver()
    receiver.handle_event(EventType.START_RUN, fl_ctx)
    fl_ctx.set_prop(FLContextKey.EVENT_DATA, Shareable(), private=True, sticky=False)
    for _ in range(20):
        receiver.handle_event(ANALYTIC_EVENT_TYPE, fl_ctx)
    assert receiver.tried == 1
    later = receivers.time.monotonic() + receivers._PAUSE
    monkeypatch.setattr(receivers.time, "monotonic", lambda: later)
    receiver.handle_event(ANALYTIC_EVENT_TYPE, fl_ctx)
    assert receiver.tried == 2
