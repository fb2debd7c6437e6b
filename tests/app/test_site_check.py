"""`fedsm site check`: every FAIL and WARN is provoked on a real kit."""

import json
import os
import shutil
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from app_fedsm.cli.main import main
from fedsm.core.components import EXECUTOR, JOB_ID_GUARD
from fedsm.preflight.kit import load_kit
from fedsm.preflight.line import Line, format_lines
from fedsm.preflight.machine import check_writing
from fedsm.preflight.versions import versions
from tests.helpers.json_output import ask
from tests.helpers.kits import (
    free_port,
    new_key,
    point_to,
    provision,
    started_server,
    tls_listener,
    write_certificates,
    write_key,
)
from tests.helpers.small_jobs import write_site

SMALL = ["--task", "retinal", "--size", "32", "--set", "task.unet.channels=[4,8,16]"]


@pytest.fixture(scope="module")
def kits(tmp_path_factory) -> Path:
    return provision(tmp_path_factory.mktemp("provision") / "project")


@pytest.fixture
def kit(kits, tmp_path) -> Path:
    """A site's kit with data and all settings right; no server listens."""
    root = shutil.copytree(kits / "site-1", tmp_path / "site-1")
    write_site(tmp_path / "data", 12, 0)
    write_settings(root, f"data: {tmp_path / 'data'}\ndevice: cpu\n")
    resources = json.loads((root / "local/resources.json.default").read_text())
    resources["class_allow_list"].append(EXECUTOR)
    (root / "local/resources.json").write_text(json.dumps(resources))
    point_to(root, free_port())
    return root


def write_settings(kit: Path, text: str) -> None:
    (kit / "local" / "fedsm_site.yaml").write_text(text)


class Table:
    """What `fedsm site check` printed: topic -> (level, text with its remedy)."""

    def __init__(self, capsys, kit: Path, *options: str):
        self.code = main(["site", "check", str(kit), *options])
        self.text = capsys.readouterr().out
        self.lines: list[list[str]] = []
        for line in self.text.splitlines():
            if line.startswith(("PASS  ", "WARN  ", "FAIL  ")):
                level, rest = line.split("  ", 1)
                self.lines.append([level, *rest.split(None, 1)])
            elif line.lstrip().startswith("remedy: "):
                self.lines[-1][2] += " | " + line.strip()

    def level(self, topic: str) -> str:
        return min(level for level, found, _ in self.lines if found == topic)

    def says(self, topic: str) -> str:
        return "\n".join(text for _, found, text in self.lines if found == topic)


def snapshot(root: Path) -> dict:
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in sorted(root.rglob("*"))} | {
        str(root): root.stat().st_mtime_ns
    }


def test_no_kit_is_bad_input(tmp_path, kits, capsys):
    for folder in (tmp_path, tmp_path / "none", kits / "localhost"):
        assert main(["site", "check", str(folder)]) == 2
        assert "is no client's startup kit" in capsys.readouterr().err


def test_a_broken_kit_file_is_bad_input(kit, capsys):
    (kit / "startup/fed_client.json").write_text("{}")
    assert main(["site", "check", str(kit)]) == 2
    assert "unpack the kit again" in capsys.readouterr().err


def test_all_but_the_server_passes_and_nothing_changes(kit, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "state/site-1").mkdir(parents=True)
    (tmp_path / "state/site-1/kept").write_text("x")
    write_settings(kit, f"data: {tmp_path / 'data'}\ndevice: cpu\nstate_dir: {tmp_path / 'state'}\n")
    expect = tmp_path / "versions.json"
    expect.write_text(json.dumps(versions()))
    before = snapshot(tmp_path)
    table = Table(capsys, kit, *SMALL, "--expect", str(expect))
    assert snapshot(tmp_path) == before
    assert {topic for level, topic, _ in table.lines if level != "PASS"} == {"server"}
    assert table.code == 1 and table.level("server") == "FAIL"
    assert "12 pairs, 40x40" in table.says("data")
    assert "Connection refused" in table.says("server") and "nc -vz localhost" in table.says("server")
    # 12 images of 32 x 32 pixels, 3 channels of float32 and 2 labels of a byte
    assert "cache about 0 MB" in table.says("disk")
    assert max(map(len, table.text.splitlines())) < 180 and len(table.text.splitlines()) < 25


def test_the_same_as_json(kit, capsys):
    table = Table(capsys, kit, *SMALL)
    answer, err = ask(capsys, "site", "check", kit, *SMALL)
    assert (answer["status"], answer["exit_code"], answer["data"]["level"]) == ("ok", 1, "FAIL")
    assert (answer["data"]["site"], answer["data"]["kit"], answer["data"]["task"]) == ("site-1", str(kit), "retinal")
    checks = answer["data"]["checks"]
    assert [(c["level"], c["name"]) for c in checks] == [(level, topic) for level, topic, _ in table.lines]
    assert sum(answer["data"]["counts"].values()) == len(checks) and table.lines[0][2].startswith(checks[0]["text"])
    (server,) = [c for c in checks if c["name"] == "server"]
    assert server["level"] == "FAIL" and "Connection refused" in server["text"] and server["remedy"]
    assert all((c["remedy"] is None) == (c["level"] == "PASS") for c in checks)
    assert "Connection refused" in err


def test_without_a_task_what_depends_on_it_is_named(kit, capsys):
    table = Table(capsys, kit)
    assert table.level("task") == "WARN" and "--task retinal" in table.says("task")
    assert "memory" not in {topic for _, topic, _ in table.lines}


def test_a_server_that_was_really_started(kits, kit, tmp_path, capsys):
    """Mutual TLS with FLARE's own server; its clock; and that it refuses a certificate of another project."""
    shutil.copy(kits / "site-1/startup/fed_client.json", kit / "startup")
    with started_server(kits, tmp_path):
        table = Table(capsys, kit)
        assert table.code == 0, table.text
        assert "localhost answers at localhost:" in table.says("server") and table.level("server") == "PASS"
        assert table.level("clock") == "PASS" and "within 60 s" in table.says("clock")

        root = (kit / "startup/rootCA.pem").read_bytes()
        write_certificates(kit / "startup")
        table = Table(capsys, kit)  # another project's kit: it does not know the server
        assert table.code == 1 and "shows a certificate that rootCA.pem refuses" in table.says("server")
        (kit / "startup/rootCA.pem").write_bytes(root)
        table = Table(capsys, kit)  # another project's certificate: the server does not know it
        assert "refuses this kit's certificate" in table.says("server")
        assert "not signed by the kit's rootCA.pem" in table.says("certificate")


def http_reply(skew: timedelta) -> bytes:
    date = format_datetime(datetime.now(UTC) + skew, usegmt=True)
    return f"HTTP/1.1 404 Not Found\r\nDate: {date}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


@pytest.mark.parametrize(("skew", "words"), [(-3600, "s ahead of the server's"), (3600, "s behind the server's")])
def test_clock_skew(kits, kit, capsys, skew, words):
    startup = kits / "localhost/startup"
    with tls_listener(startup, startup / "rootCA.pem", http_reply(timedelta(seconds=skew))) as port:
        point_to(kit, port)
        table = Table(capsys, kit)
    assert table.level("server") == "PASS" and table.level("clock") == "WARN"
    assert words in table.says("clock") and "NTP" in table.says("clock")


@pytest.mark.parametrize("scheme", ["grpc", "tcp"])
def test_other_schemes_tell_no_time(kits, kit, tmp_path, capsys, scheme):
    startup = kits / "localhost/startup"
    with tls_listener(startup, startup / "rootCA.pem", b"") as port:
        point_to(kit, port, scheme)
        table = Table(capsys, kit)
        assert table.level("server") == "PASS" and table.level("clock") == "WARN"
        assert f"speaks {scheme} does not send its time" in table.says("clock")
    other = tmp_path / "other"
    other.mkdir()
    write_certificates(other)
    with tls_listener(startup, other / "rootCA.pem", b"") as port:  # it does not take our certificate
        point_to(kit, port, scheme)
        assert "refuses this kit's certificate" in Table(capsys, kit).says("server")


def test_a_site_behind_a_relay_is_checked_with_the_relay(kits, kit, capsys):
    startup = kits / "localhost/startup"
    with tls_listener(startup, startup / "rootCA.pem", b"") as port:
        way = {"scheme": "tcp", "identity": "localhost", "address": f"localhost:{port}", "connection_security": "mtls"}
        (kit / "local/relay__resources.json").write_text(json.dumps({"relay_config": way}))
        table = Table(capsys, kit)
    assert f"localhost answers at localhost:{port}, mtls (tcp)" in table.says("server")
    (kit / "local/relay__resources.json").write_text("{}")
    assert main(["site", "check", str(kit)]) == 2 and "relay__resources.json names no" in capsys.readouterr().err


def test_another_server_at_the_address(kits, kit, capsys):
    startup = kits / "localhost/startup"
    with tls_listener(startup, startup / "rootCA.pem", http_reply(timedelta())) as port:
        point_to(kit, port)
        path = kit / "startup/fed_client.json"
        path.write_text(path.read_text().replace('"identity": "localhost"', '"identity": "fl.example.org"'))
        table = Table(capsys, kit)
    assert "is 'localhost', the kit wants 'fl.example.org'" in table.says("server") and table.code == 1


def test_a_host_name_that_is_not_known(kit, capsys):
    point_to(kit, 8002, host="no-such-host.invalid")
    assert "host name no-such-host.invalid is not known here" in Table(capsys, kit).says("server")


@pytest.mark.parametrize(
    ("days", "level", "words"),
    [
        ((-20, -1), "FAIL", "expired on"),
        ((-20, 29.5), "WARN", "expires in 29 days"),
        ((1, 90), "FAIL", "set the clock"),
        ((-20, 31), "PASS", "of site-1, valid until"),
    ],
)
def test_certificate_dates(kit, capsys, days, level, words):
    write_certificates(kit / "startup", first_day=days[0], last_day=days[1])
    table = Table(capsys, kit)
    assert table.level("certificate") == level and words in table.says("certificate")


def test_certificate_of_another_site_and_key_of_another_certificate(kit, capsys):
    write_certificates(kit / "startup", name="site-2")
    assert "is that of 'site-2', the kit is that of 'site-1'" in Table(capsys, kit).says("certificate")
    write_certificates(kit / "startup")
    write_key(kit / "startup/client.key", new_key())
    table = Table(capsys, kit)
    assert "client.key does not belong to client.crt" in table.says("certificate")
    assert "not tried" in table.says("server")
    (kit / "startup/client.key").unlink()
    assert "cannot be used" in Table(capsys, kit).says("certificate")


def test_versions_against_the_servers(kit, tmp_path, capsys):
    assert main(["site", "versions"]) == 0
    here = json.loads(capsys.readouterr().out)
    assert here == versions() and {"python", "fedsm", "nvflare", "torch", "monai", "numpy"} == set(here)
    expect = tmp_path / "versions.json"
    expect.write_text(json.dumps(here | {"nvflare": "2.8.0", "numpy": "1.0", "python": "3.10.1", "nothing": "1"}))
    table = Table(capsys, kit, "--expect", str(expect))
    found = {text.split()[3]: level for level, topic, text in table.lines if topic == "versions"}
    assert found == {"nvflare": "FAIL", "numpy": "WARN", "python": "WARN", "nothing": "FAIL"}
    assert 'pip install "nvflare==2.8.0"' in table.text
    expect.write_text("[]")
    assert main(["site", "check", str(kit), "--expect", str(expect)]) == 2


def test_a_python3_that_is_another(kit, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    table = Table(capsys, kit)
    assert table.level("python3") == "WARN" and "export PATH=" in table.says("python3")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data: [\n", "fedsm_site.yaml, line 2: is no YAML"),
        ("data: /a\nthreds: 2\n", "line 2: unknown setting 'threds' | remedy: did you mean 'threads'? known: data"),
        ("data: /a\nthreads: 0\n", "line 2: threads must be a whole number of at least 1, got 0 | remedy: correct /"),
        ("data: /a\ncolour: red\n", "unknown setting 'colour' | remedy: known: data"),
        ("device: cpu\n", "no data path | remedy: write `data:"),
        ("data: /nowhere/at/all\n", "data folder /nowhere/at/all does not exist"),
    ],
)
def test_site_file(kit, capsys, monkeypatch, text, words):
    monkeypatch.delenv("FEDSM_DATA", raising=False)
    write_settings(kit, text)
    table = Table(capsys, kit, *SMALL)
    assert table.level("fedsm_site.yaml") == "FAIL" and words in table.says("fedsm_site.yaml") and table.code == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_gpus_that_are_not_there(kit, tmp_path, capsys):
    path = kit / "local/resources.json"
    path.write_text(path.read_text().replace('"num_of_gpus": 0', '"num_of_gpus": 2'))
    assert "promises 2 GPUs, this machine has 0" in Table(capsys, kit).says("device")
    write_settings(kit, f"data: {tmp_path / 'data'}\ndevice: cuda:0\n")
    assert "no usable CUDA GPU" in Table(capsys, kit).says("fedsm_site.yaml")


def test_data(kit, tmp_path, capsys):
    """An empty folder; and the site's own patient_pattern, in which the data check finds too few patients."""
    (tmp_path / "empty/images").mkdir(parents=True)
    (tmp_path / "empty/masks").mkdir()
    write_settings(kit, f"data: {tmp_path / 'empty'}\n")
    table = Table(capsys, kit, *SMALL)
    assert table.level("data") == "FAIL" and "no images" in table.says("data")
    write_settings(kit, f'data: {tmp_path / "data"}\npatient_pattern: "^case_(\\\\d)"\n')
    table = Table(capsys, kit, *SMALL)
    assert table.level("data") == "FAIL" and "2 patients cannot be split" in table.says("data")
    command = ["data", "check", str(tmp_path / "data"), "--task", "retinal", "--no-sheets"]
    assert main(command) == 0 and main([*command, "--patient-pattern", r"^case_(\d)"]) == 1


def test_many_findings_are_cut_and_the_command_is_named(kit, tmp_path, capsys):
    data = tmp_path / "data"
    (data / "images/case_00.png").write_text("no picture")
    (data / "images/extra.png").write_text("x")
    (data / "images/case_01.txt").write_text("x")
    (data / "splits.json").write_text("{}")
    (data / "masks/case_02.png").unlink()
    table = Table(capsys, kit, *SMALL)
    assert "more findings" in table.says("data") and f"fedsm data check {data} --task retinal" in table.says("data")


def test_folders_that_cannot_be_written(kit, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    write_settings(kit, f"data: {tmp_path / 'data'}\nstate_dir: {tmp_path / 'file'}/state\ncache_dir: {tmp_path}\n")
    table = Table(capsys, kit, *SMALL)
    assert table.level("writing") == "FAIL" and "is a file" in table.says("writing")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_folders_of_another_user(kit):
    """Root may write everywhere: so a child of this process becomes `nobody`."""
    loaded = load_kit(kit)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        line = check_writing(loaded, None)[0]
        os._exit(0 if line.level == "FAIL" and "chown nobody" in line.remedy else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert check_writing(loaded, None)[0].level == "PASS"


def test_a_job_too_large_for_the_machine(kit, capsys):
    wide = ["--set", "task.unet.channels=[2048,2048,2048]"]
    table = Table(capsys, kit, "--task", "retinal", "--size", "128", "--batch-size", "4096", *wide)
    assert table.level("memory") == "FAIL" and "--batch-size" in table.says("memory")


def test_disk(kit, tmp_path, capsys, monkeypatch):
    write_settings(kit, f"data: {tmp_path / 'data'}\ncache_budget: 1000\n")
    assert "more than cache_budget" in Table(capsys, kit, *SMALL).says("disk")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**7))
    table = Table(capsys, kit, "--task", "retinal", "--size", "1024", "--set", "task.unet.channels=[4,8,16]")
    assert table.level("disk") == "WARN" and "cache_dir" in table.says("disk")


def test_the_ways_that_code_may_come(kit, capsys):
    rules = json.loads((kit / "local/authorization.json.default").read_text())
    assert Table(capsys, kit).says("code").endswith("jobs of lead, project_admin may bring code")
    resources = (kit / "local/resources.json").read_text()
    for wide in ("fedsm.", "fedsm.flare", "*"):  # kits of version 0.1 have the first
        (kit / "local/resources.json").write_text(resources.replace(EXECUTOR, wide))
        table = Table(capsys, kit)
        assert table.level("code") == "WARN" and f'"{wide}" lets a job' in table.says("code")
    (kit / "local/resources.json").unlink()
    table = Table(capsys, kit)
    assert table.level("code") == "WARN" and "copy local/resources.json.default" in table.says("code")
    rules["permissions"] = {"project_admin": {"submit_job": "any"}, "lead": {"submit_job": "any", "byoc": "none"}}
    (kit / "local/authorization.json").write_text(json.dumps(rules))
    assert Table(capsys, kit).level("code") == "FAIL"
    (kit / "local/resources.json").write_text(resources)
    table = Table(capsys, kit)
    assert table.level("code") == "WARN" and "a job can choose its id here" in table.says("code")
    guarded = json.loads(resources)
    guarded["components"].append(JOB_ID_GUARD)
    (kit / "local/resources.json").write_text(json.dumps(guarded))
    assert "BYOC is forbidden here" in Table(capsys, kit).says("code")
    (kit / "local/authorization.json").write_text("no JSON")
    assert Table(capsys, kit).level("code") == "FAIL"


def test_long_rows_are_wrapped_under_their_column():
    lines = [Line("PASS", "a", "short"), Line("WARN", "topic", "word " * 20, "do this " * 10)]
    rows = format_lines(lines, 60).splitlines()
    assert max(map(len, rows)) <= 60 and rows[0] == "PASS  a      short"
    assert all(row.startswith(" " * 13) for row in rows[2:-1]) and rows[-1] == "1 PASS, 1 WARN"
