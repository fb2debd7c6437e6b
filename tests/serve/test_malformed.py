"""Two hundred uploads that cannot be used: each is a 4xx with one sentence, and leaves nothing behind."""

import gc
import http.client
import socket
from urllib.parse import urlsplit

import psutil
import pytest
import requests

from fedsm.serve.limits import MIB, ServeLimits
from fedsm.serve.service import Service
from fedsm.super_model.model import SuperModel
from tests.helpers import malformed
from tests.helpers.service import picture, send, serving
from tests.helpers.small_model import write_super_model

LIMITS = ServeLimits(upload=4 * MIB, uploads=16 * MIB, pixels=10_000_000, volume=32 * MIB)
_SLACK = 24 * MIB


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model = SuperModel.load(write_super_model(folder, task="prostate", overrides=["task.selector_net={}"]), "cpu")
    with serving(Service(model, LIMITS)) as address:
        yield address


def check(answer: requests.Response, what: str) -> None:
    assert 400 <= answer.status_code < 500, f"{what}: {answer.status_code} {answer.text}"
    told = answer.json()["detail"]
    assert "Traceback" not in answer.text and "/tmp" not in answer.text and ".py" not in answer.text, answer.text
    assert isinstance(told, str) and len(told) < 300 and "\n" not in told, told


def test_two_hundred_malformed_uploads(address, tmp_path):
    contents, broken = list(malformed.contents(tmp_path)), list(malformed.forms())
    assert len(contents) + len(broken) + len(malformed.NAMES) >= 200

    def send_all(step: int = 1) -> None:
        for what, content in contents[::step]:
            check(send(address, content), what)
        for what, headers, body in broken[::step]:
            check(requests.post(f"{address}/api/predict", body, headers=headers), what)
        for name in malformed.NAMES[::step]:
            check(send(address, picture(), name=name), name)

    send_all(step=3)  # everything is imported, and every pool has its memory
    before = resident()
    send_all()
    assert resident() - before < _SLACK
    assert send(address, picture()).status_code == 200, "it still works"
    assert requests.get(f"{address}/health").json()["jobs"] == 0


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def test_addresses_are_no_paths(address):
    for path in (
        "/../../etc/passwd", "/..%2f..%2fetc/passwd", "/page.js/../../app.py", "/api/results/..%2f..%2fx/mask.nii.gz",
        "/api/results/x/image/-1.png", "/api/results/x/image/1e9.png", "/api/results/x/secret/1.png", "/infer/../x",
        "/style.css%00", "/index.html", "/app.py", "/session/../../x",
    ):  # fmt: skip
        connection = http.client.HTTPConnection(urlsplit(address).netloc)
        connection.request("GET", path)
        assert 400 <= connection.getresponse().status < 500, path
        connection.close()


def test_lengths(address):
    """More than the limit, and an unknown length, are refused before anything is read."""
    head = "POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    for more, status in (
        (f"Content-Length: {LIMITS.upload + MIB}", 413), (f"Content-Length: {10**17}", 413),
        ("Transfer-Encoding: chunked", 411), ("Content-Length: -1", 400),
        ("Content-Length: 1\r\nContent-Length: 2", 400),
    ):  # fmt: skip
        with socket.create_connection((urlsplit(address).hostname, urlsplit(address).port), 20) as s:
            s.sendall(f"{head}{more}\r\n\r\n".encode())
            assert s.recv(1000).split()[1] == str(status).encode(), more


def test_an_upload_that_ends_early(address):
    with socket.create_connection((urlsplit(address).hostname, urlsplit(address).port), 20) as s:
        s.sendall(
            b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
        )
    assert send(address, picture()).status_code == 200
    assert requests.get(f"{address}/health").json()["jobs"] == 0


def test_an_upload_that_never_ends(tmp_path):
    model = SuperModel.load(write_super_model(tmp_path), "cpu")
    with (
        serving(Service(model, ServeLimits(seconds=0.3))) as address,
        socket.create_connection((urlsplit(address).hostname, urlsplit(address).port), 20) as s,
    ):
        s.sendall(
            b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
        )
        assert s.recv(1000).split()[1] == b"408"
