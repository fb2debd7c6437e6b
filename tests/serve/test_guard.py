"""Who may ask: only clients that use our name, that are no other site's page, and that know the token."""

import pytest
import requests

from fedsm.serve.service import Service
from fedsm.super_model.model import SuperModel
from tests.helpers.service import picture, serving
from tests.helpers.small_model import write_super_model

TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return SuperModel.load(write_super_model(tmp_path_factory.mktemp("model")), "cpu")


@pytest.fixture(scope="module")
def address(model):
    with serving(Service(model), hosts=("ward.example",)) as address:
        yield address


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200), ("localhost", 200), ("[::1]:8000", 200), ("10.1.2.3", 200), ("ward.example:80", 200),
        ("WARD.example.", 200), ("evil.example", 421), ("localhost.evil.example", 421), ("127.0.0.1.evil.example", 421),
        ("[", 421), ("a@localhost.evil", 421), ("127.0.0.1:x", 200),
    ],
)  # fmt: skip
def test_host(address, host, status):
    """A page whose name was made to mean this machine sends its own name."""
    assert requests.get(f"{address}/api/model", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
    ],
)  # fmt: skip
def test_pages_of_others(address, headers):
    """A form on another site's page can be sent here by a browser, but is refused before it is read."""
    for path in ("/api/predict", "/infer/selector", "/auth/token"):
        assert requests.post(address + path, files={"file": picture()}, headers=headers).status_code == 403
    assert requests.get(f"{address}/api/model", headers=headers).status_code == 403
    assert requests.get(address, headers=headers).status_code == 200, "a link to the page may be followed"


def test_our_own_page(address):
    headers = {"Origin": address, "Sec-Fetch-Site": "same-origin"}
    assert requests.post(f"{address}/api/predict", files={"file": picture()}, headers=headers).status_code == 200


def test_token(model):
    with serving(Service(model), TOKEN) as address:
        for path in ("/", "/page.js", "/style.css", "/health", "/auth/"):
            assert requests.get(address + path).status_code == 200
        for path in ("/api/model", "/info/", "/auth/token/valid", "/api/results/x"):
            for given in (None, f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer", TOKEN):
                refused = requests.get(address + path, headers={"Authorization": given} if given else {})
                assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
        assert requests.post(f"{address}/api/predict", files={"file": picture()}).status_code == 401
        assert requests.post(f"{address}/", data={}).status_code == 401
        known = {"Authorization": f"bearer {TOKEN}"}
        assert requests.get(f"{address}/api/model", headers=known).status_code == 200
        assert requests.get(f"{address}/nowhere", headers=known).status_code == 404


def test_headers_of_every_answer(address):
    for path in ("/", "/health", "/nowhere", "/api/results/x/mask.nii.gz"):
        headers = requests.get(address + path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
        assert "server" not in headers and "access-control-allow-origin" not in headers and "set-cookie" not in headers


def test_a_bug_is_told_without_its_traceback(model, caplog):
    service = Service(model)
    service.predict = None  # a bug
    with serving(service) as address:
        answer = requests.post(f"{address}/api/predict", files={"file": picture()})
    assert answer.status_code == 500 and "Traceback" not in answer.text and "NoneType" not in answer.text
    assert any("unexpected TypeError" in record.getMessage() for record in caplog.records)


def test_the_interface_describes_itself(address):
    paths = requests.get(f"{address}/openapi.json").json()["paths"]
    assert {"/api/predict", "/api/model", "/health", "/info/", "/infer/{network}", "/session/"} <= set(paths)
