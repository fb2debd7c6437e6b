"""`fedsm serve` as a process: it says where it is, answers, and stops; bad input is one line before it costs time."""

import os
import signal
import subprocess
import sys

import pytest
import requests

from app_fedsm.cli.main import main
from tests.helpers.processes import free_port
from tests.helpers.service import picture, send
from tests.helpers.small_model import write_super_model


def test_it_serves_until_it_is_stopped(tmp_path):
    path = write_super_model(tmp_path)
    command = [sys.executable, "-m", "app_fedsm.cli.main", "serve", str(path), "--port", "0", "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        address = line.split()[0].rstrip("/")
        assert address.startswith("http://127.0.0.1:") and "not for clinical use" in line
        assert requests.get(f"{address}/health").json()["status"] == "ok"
        for script in ("page.js", "dropped.js", "panel.js", "server.js", "style.css", "icon.svg", ""):
            assert requests.get(f"{address}/{script}").status_code == 200
        assert send(address, picture(), name="Erika Mustermann.png").status_code == 200
        assert send(address, b"no image", name="Erika Mustermann.png").status_code == 422
    finally:
        process.send_signal(signal.SIGINT)
        said = "".join(process.communicate(timeout=120))
    assert process.returncode == 130 and "Traceback" not in said and "Mustermann" not in said, said


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--port", "70000"], "must be at most 65535"),
        (["--port", "-1"], "--port must be at least 0"),
        (["--timeout", "0"], "--timeout must be at least 1"),
        (["--max-upload", "0"], "--max-upload must be at least 1"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--certificate", "x.pem"], "belong together"),
        (["--token-file", "short"], "no token of at least 16 characters"),
        (["--token-file", "none"], "No such file"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
        (["--keep", "file"], "file"),
        (["--certificate", "short", "--key", "short"], "cannot be used"),
        (["--device", "abacus"], "cannot be used"),
    ],
)  # fmt: skip
def test_bad_input(tmp_path, monkeypatch, capsys, given, words):
    path = write_super_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("short", "file"):
        (tmp_path / name).write_text("short\n")
    assert main(["serve", str(path), "--port", str(free_port()), *given]) == 2
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) == 1, said


def test_a_port_that_is_taken(tmp_path, capsys):
    from fedsm.serve.run import Listening

    with Listening(port=0).bind() as taken:
        assert main(["serve", str(write_super_model(tmp_path)), "--port", str(taken.getsockname()[1])]) == 2
    assert "choose another --port" in capsys.readouterr().err


def test_without_its_packages_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(tmp_path)]) == 2
    assert "pip install 'fedsm[serve]'" in capsys.readouterr().err


def test_other_machines_need_a_token(tmp_path, monkeypatch, capsys):
    """A token is made and printed once; without TLS there is a warning. The address is this machine's own."""
    from fedsm.serve import run as serve_run

    seen = []

    def instead(service, listening, listener, token):
        seen.append((listening, token))
        service.close()

    monkeypatch.setattr(serve_run, "run", instead)
    path = str(write_super_model(tmp_path))
    assert main(["serve", path, "--host", "0.0.0.0", "--port", "0"]) == 0
    said = capsys.readouterr()
    ((_, token),) = seen
    assert len(token) >= 32 and said.out.count(f"#token={token}") == 1 and "unencrypted" in said.err
    (tmp_path / "token").write_text("x" * 40)
    os.chmod(tmp_path / "token", 0o600)
    assert main(["serve", path, "--host", "0.0.0.0", "--port", "0", "--token-file", str(tmp_path / "token")]) == 0
    assert seen[1][1] == "x" * 40 and "x" * 40 not in capsys.readouterr().out, "who has the file knows it"
    for host in ("127.0.0.1", "localhost", "127.8.9.1"):
        assert main(["serve", path, "--host", host, "--port", "0"]) == 0
        assert seen[-1][1] is None and "unencrypted" not in capsys.readouterr().err
