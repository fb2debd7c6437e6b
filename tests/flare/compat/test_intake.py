"""Workaround: `fedsm.flare.compat.intake`.

Symptoms: an answer that cannot be decoded ends the process of the job, so that one site ends the run of all; messages
of up to 4 GiB are read into memory; tensors are pulled for as long as their sender has more of them. FLARE 2.9.0.
With the workaround: `tests/attacks/test_oversized.py`.
"""

import os
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.cellnet import cell as flare_cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.f3.streaming.download_service import Consumer, ProduceRC, _download_object
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from tests.helpers.pristine import pristine


class Exited(Exception):
    """In the place of the end of the process."""


def test_flare_ends_the_jobs_process_for_an_answer_that_it_cannot_decode(monkeypatch):
    def leave(code: int) -> None:
        raise Exited(code)

    monkeypatch.setattr(os, "_exit", leave)
    headers = {
        StreamHeaderKey.CHANNEL: CellChannel.SERVER_COMMAND, StreamHeaderKey.TOPIC: ServerCommandNames.SUBMIT_UPDATE,
        StreamHeaderKey.PAYLOAD_ENCODING: "fobs", MessageHeaderKey.ORIGIN: "site-3",
    }  # fmt: skip
    cell = SimpleNamespace(
        decode_pass_through_channels=(), decode_pass_through_topics=(), get_fobs_context=lambda props: dict(props)
    )
    adapter = pristine(flare_cell).Adapter(None, SimpleNamespace(fqcn="server.job"), cell)
    with pytest.raises(Exited):
        adapter.call(SimpleNamespace(headers=headers, result=lambda: b"no answer at all"))


def test_flare_reads_messages_of_4_gib():
    assert CommConfigurator().get_streaming_max_blob_size() >= 4 * 1024**3


def test_flare_pulls_whatever_comes():
    """2000 pieces of 10 kB, and nobody could have said how many were expected."""
    pulled = []

    class Counting(Consumer):
        def consume(self, ref_id, state, data):
            pulled.append(len(data))
            return {}

        def download_completed(self, ref_id):
            pass

        def download_failed(self, ref_id, reason):
            pulled.append(reason)

    class Endless:
        def send_request(self, **kwargs):
            status = ProduceRC.OK if len(pulled) < 2000 else ProduceRC.EOF
            return make_reply(ReturnCode.OK, body={"status": status, "state": {}, "data": bytes(10_000)})

    _download_object("site-3", "ref", 60.0, Endless(), Counting())
    assert pulled == [10_000] * 2000
