"""Row 14: junk and tensors without end are refused before they are stored, by the site's name."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.shareable import Shareable
from nvflare.app_common.decomposers import numpy_decomposers
from nvflare.fuel.f3.cellnet import cell as flare_cell
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.blob_streamer import BlobHandler
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs import dots

from fedsm.core import plain_values
from fedsm.flare import exchange
from fedsm.flare.compat import intake
from fedsm.flare.compat.tensors import enable_tensors
from fedsm.server.checks import most_bytes, most_message, templates_of
from fedsm.tracks import server_tracks
from tests.helpers.federation import Federation, in_round, results_of
from tests.helpers.small_jobs import SITES, SMALL, small_settings

HERE = Path(__file__).parent
CELL = fobs.FOBSContextKey.CELL


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


JUNK = {
    "a long string": "j" * (plain_values.MOST_META_BYTES + 1),
    "bytes": b"j" * (plain_values.MOST_META_BYTES + 1),
    "many short strings": ["j" * 100] * 50_000,
    "a million entries": list(range(10**6)),
    "a million keys": dict.fromkeys(range(10**6)),
    "deep nesting": nested(5000),
    "an array": np.zeros(3),
    "a number of NumPy": np.float32(4),
    "an object": SimpleNamespace(),
}


@pytest.mark.parametrize("kind", JUNK)
def test_junk_in_the_meta_is_refused(kind):
    with pytest.raises(exchange.BadShareable, match="its meta"):
        exchange.unpack(exchange.pack({"global": {"w": torch.zeros(2)}}, {"round": 1, "junk": JUNK[kind]}))


def test_junk_in_a_track_s_own_meta_and_in_names_is_refused():
    part = DXO(DataKind.WEIGHTS, data={"w": torch.zeros(2)}, meta={"junk": JUNK["a long string"]})
    for content in ({"global": part}, {JUNK["a long string"]: DXO(DataKind.WEIGHTS, data={})}):
        with pytest.raises(exchange.BadShareable, match="oversized: its meta"):
            exchange.unpack(DXO(DataKind.COLLECTION, data=content, meta={"round": 1}).to_shareable())


def test_what_honest_sites_send_passes():
    values = {"round": 3, "losses": {"global": np.float64(0.1)}, "list": [1, 2.5, None, True, ("a", b"b")]}
    assert plain_values.plain_problem(values) is None
    assert plain_values.plain_problem({"evaluation": {f"site-{k}": [0.5] * 50 for k in range(500)}}) is None


def test_a_site_that_sends_junk_is_refused_by_name_and_the_others_go_on(tmp_path, data_root):
    def fault(site, task, shareable, work):
        result = work()
        if site.name == "site-2" and task == exchange.TRAIN and in_round(shareable) == 1:
            result["DXO"]["meta"]["junk"] = JUNK["a long string"]
        return result

    results = results_of(Federation(tmp_path, data_root, small_settings(rounds=2), SITES, fault=fault).run())
    (refused,) = results["refused"]
    assert refused["site"] == "site-2" and refused["reason"].startswith("oversized: its meta has more than")
    assert results["validation"]["history"][1]["missing"] == {}


class Source:
    """A cell from which pieces of tensors come without end; it counts how many were asked for."""

    def __init__(self, piece: int = 1000):
        self.piece, self.asked = piece, 0

    def send_request(self, **kwargs) -> Message:
        self.asked += 1
        return make_reply(ReturnCode.OK, body={"data": [bytes(self.piece)]})


def endless(fobs_ctx: dict, ref: dict) -> dict:
    """FLARE's download in short: asks until there is an error."""
    for _ in range(10**4):
        reply = fobs_ctx[CELL].send_request(timeout=600)
        if reply.get_header(MessageHeaderKey.RETURN_CODE) != ReturnCode.OK:
            raise RuntimeError("failed to download")
    return {}


@pytest.fixture
def _expect():
    intake.expect(10_000)
    yield
    intake.expect(None)


@pytest.mark.usefixtures("_expect")
def test_the_pull_stops_above_the_limit_and_counts_a_message_s_references_together():
    """Pieces of 1000 bytes, 10,000 expected: the eleventh is the last, and a second reference gets none."""
    source = Source()
    fobs_ctx = {CELL: source}
    for _ in range(2):
        unfetched = intake.pull(endless, fobs_ctx, {"ref_id": "x"})
        assert isinstance(unfetched, intake.Unfetched) and unfetched.reason.startswith("oversized: more than 10000")
        assert source.asked == 11
    assert "T7" in unfetched and unfetched.get("T7") is unfetched, "FLARE finds every tensor"
    assert fobs_ctx[CELL] is source


@pytest.mark.usefixtures("_expect")
def test_a_piece_that_was_refused_is_not_asked_for_again():
    source = SimpleNamespace(send_request=lambda **kwargs: make_reply(ReturnCode.TIMEOUT))
    codes = []

    def download(fobs_ctx, ref):
        codes.append(fobs_ctx[CELL].send_request(timeout=600).get_header(MessageHeaderKey.RETURN_CODE))
        raise RuntimeError("failed")

    assert "oversized" in intake.pull(download, {CELL: source}, {}).reason
    assert codes == [ReturnCode.COMM_ERROR], "a timeout would be tried three times more"


@pytest.mark.parametrize("dot", [dots.TENSOR_DOWNLOAD, dots.NUMPY_DOWNLOAD])
def test_tensors_and_the_arrays_of_filters_are_pulled_within_the_limit(dot, monkeypatch):
    """FLARE calls these handlers itself: both end in `pull`."""
    numpy_decomposers.register()
    enable_tensors()
    monkeypatch.setattr(intake, "pull", lambda download, fobs_ctx, ref: "within the limit")
    assert fobs.get_dot_handler(dot)._download_from_remote_cell({}, {}) == "within the limit"


def test_an_answer_without_its_tensors_is_refused():
    shareable = exchange.pack({"global": {"w": intake.Unfetched("oversized: more than 10 bytes")}}, {"round": 1})
    with pytest.raises(exchange.BadShareable, match="oversized: more than 10 bytes"):
        exchange.unpack(shareable)


def test_the_aggregator_expects_what_the_open_task_can_bring(tmp_path, data_root, monkeypatch):
    expected, limits = [], []
    monkeypatch.setattr(intake, "expect", expected.append)
    monkeypatch.setattr(intake, "limit_messages", lambda cells, most: limits.append(most))
    settings = small_settings(rounds=1)
    Federation(tmp_path, data_root, settings, SITES).run()
    tracks = server_tracks(settings, SITES)
    tasks = [*exchange.TASKS, exchange.EVALUATE]  # of the validation images, then of the test images
    assert expected == [most_bytes(templates_of(task, tracks)) for task in tasks]
    assert limits == [most_message(tracks)] == [plain_values.MOST_PLAIN_MESSAGE + max(expected)]


def test_messages_above_the_limit_are_refused_at_their_first_piece():
    handler = BlobHandler(lambda future: None)
    registry = SimpleNamespace(
        reg={"a:b": SimpleNamespace(cb=handler.handle_blob_cb), "c:d": SimpleNamespace(cb=print)}
    )
    cell = SimpleNamespace(byte_receiver=SimpleNamespace(registry=registry))
    intake.limit_messages([cell], 12_345)
    assert handler.max_blob_size == 12_345


def test_an_answer_that_cannot_be_decoded_does_not_end_the_process(monkeypatch):
    """FLARE's `Adapter` calls `os._exit` when decoding an answer raises: here it gets an empty answer."""
    monkeypatch.setattr(flare_cell, "decode_payload", flare_cell.decode_payload)
    intake.survive_undecodable()
    key = StreamHeaderKey.PAYLOAD_ENCODING
    message = Message({StreamHeaderKey.TOPIC: ServerCommandNames.SUBMIT_UPDATE, key: Encoding.FOBS}, b"\xc1junk")
    flare_cell.decode_payload(message, key, fobs_ctx={})
    assert isinstance(message.payload, Shareable) and message.payload.get_peer_context() is not None
    with pytest.raises(RuntimeError, match="header bytes"):
        flare_cell.decode_payload(Message({key: Encoding.FOBS}, b"\xc1junk"), key, fobs_ctx={})


def offloaded(folder: Path) -> int:
    """Bytes of tensors that the server holds on disk now."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.path.getsize(os.path.join(parent, name)) if name.endswith(".safetensors") else 0
            except OSError:
                pass
    return size


@pytest.mark.slow
def test_a_hostile_site_of_a_real_simulator_costs_the_server_neither_memory_nor_disk(tmp_path, data_root):
    """1.5 GB in one tensor, 1.5 GB in arrays, a meta of 5 MB, and one of 300 MB, which nobody reads.

    Before, the tensor and the meta of 300 MB: 3313 MB of memory, 1500 MB of disk, and the meta was taken.
    Since: 469 MB (436 at the start), 0.1 MB of disk.
    """
    plan = {1: "tensor:1500000000", 2: "arrays:1500000000", 3: "meta:5000000", 4: "meta:300000000"}
    scratch, out = tmp_path / "tmp", tmp_path / "run"
    scratch.mkdir()
    environment = os.environ | {
        "FEDSM_HOSTILE": json.dumps(plan), "PYTHONPATH": str(HERE / "hostile_site"), "TMPDIR": str(scratch),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "app_fedsm.cli.main", "run", *SMALL, "--data", str(data_root), "--rounds", "4"]
    command += ["--round-timeout", "60"]  # round 4 waits for it
    process = subprocess.Popen([*command, "--out", str(out)], env=environment)
    disk = 0
    while process.poll() is None:
        disk = max(disk, offloaded(scratch))
        time.sleep(0.1)
    assert process.returncode == 0
    results = json.loads((out / "results.json").read_text())
    peak = results["peak_rss_mb"]
    print(f"server: {peak['server_start']} MB at the start, {peak['server']} MB at most; {disk / 1e6:.1f} MB on disk")
    refused = {entry["round"]: entry for entry in results["refused"] if entry["round"] < 4}
    assert {entry["site"] for entry in refused.values()} == {"site-2"} and sorted(refused) == [1, 2, 3]
    assert all("oversized" in entry["reason"] for entry in refused.values())
    assert "no answer within" in results["validation"]["history"][3]["missing"]["site-2"]
    assert peak["server"] - peak["server_start"] < 300 and disk < 10e6
