"""Monitoring by StatsD: a real UDP socket on loopback gets FLARE's metrics, and those of the rounds."""

import json
import socket
import sys
import time
from pathlib import Path

import pytest
import yaml
from nvflare.apis.fl_constant import ReservedTopic
from nvflare.fuel.data_event.data_bus import DataBus

from app_fedsm.provisioning.monitoring import parse_statsd
from app_fedsm.provisioning.provision import provision
from fedsm.preflight.kit import load_kit
from fedsm.preflight.monitoring import FILE_NAME, check_monitoring
from tests.helpers.federation import Federation
from tests.helpers.folders import ROOT
from tests.helpers.processes import Running, free_port
from tests.helpers.small_jobs import SITES, small_settings

LEAD = "lead@consortium.example.org"


@pytest.fixture
def daemon():
    """Where a StatsD daemon would listen."""
    pytest.importorskip("datadog")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.settimeout(120)
        yield listening


def metrics_until(daemon: socket.socket, last: str) -> dict[str, str]:
    """Metric -> its value, type and tags, as they arrive, up to one that begins with `last`."""
    found: dict[str, str] = {}
    deadline = time.monotonic() + 120  # the package's own metrics come for ever
    while not any(name.startswith(last) for name in found):
        assert time.monotonic() < deadline, f"no {last} among {sorted(found)}"
        for line in daemon.recv(65535).decode().splitlines():
            name, _, rest = line.partition(":")
            found[name] = rest
    return found


@pytest.mark.process
def test_a_kit_whose_project_says_so_reports_when_its_server_starts(tmp_path, daemon, monkeypatch):
    """The kit's own start.sh, as the operator runs it."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    port = daemon.getsockname()[1]
    project = yaml.safe_load((ROOT / "poc_workspace" / "project_localhost.yml").read_text())
    for entry in project["participants"]:
        if entry["type"] == "server":
            entry |= {"fed_learn_port": free_port(), "statsd": f"127.0.0.1:{port}"}
        elif entry["name"] == "site-2":
            entry["statsd"] = f"127.0.0.1:{port}"
    (tmp_path / "project.yml").write_text(yaml.safe_dump(project))
    kits = provision(tmp_path / "project.yml", tmp_path / "kits")
    written = [name for name, kit in kits.sites.items() if (kit / "local" / FILE_NAME).exists()]
    assert written == ["site-2"] and not kits.project.warnings
    (line,) = check_monitoring(load_kit(kits.sites["site-2"]))
    assert line.level == "PASS" and f"127.0.0.1:{port}" in line.what
    running = Running(kits, kits.users[LEAD])
    try:
        running.start(kits.server, {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)})
        found = metrics_until(daemon, "_system_start")
    finally:
        running.stop(kits.server)
    assert found["_system_start_count"] == "1|c|#site:localhost"


@pytest.mark.process  # datadog asks the system for the host's name
def test_the_rounds_of_a_job_reach_the_daemon(tmp_path, data_root, daemon):
    """FLARE's reporter as the server's kit loads it, in the process of the job."""
    from nvflare.fuel_opt.statsd.statsd_reporter import StatsDReporter

    reporter = StatsDReporter(host="127.0.0.1", port=daemon.getsockname()[1])
    try:
        run = Federation(tmp_path, data_root, small_settings(rounds=2), SITES).run()
        assert run.panic is None
        found = metrics_until(daemon, "fedsm_validation_personal")
    finally:
        DataBus().unsubscribe(ReservedTopic.APP_METRICS, reporter.process_metrics)
    assert found["fedsm_round_number"].split("|")[0] == "2" and found["fedsm_round_answered"].split("|")[0] == "3"
    assert found["fedsm_round_missing"] == f"0|g|#job_id:{run.job_id}"
    score = json.loads((run.run_folder / "results.json").read_text())["validation"]["history"][0]["score"]["personal"]
    assert float(found["fedsm_validation_personal"].split("|")[0]) == pytest.approx(score)


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":9125", "localhost:0", "localhost:70000", "h:x", 9125])
def test_addresses_that_are_none(address):
    assert parse_statsd(address) is None


def test_site_check_says_what_would_keep_flare_from_starting(tmp_path, monkeypatch):
    kit = Mockup(tmp_path)
    assert check_monitoring(kit) == []
    (tmp_path / FILE_NAME).write_text("{}")
    (line,) = check_monitoring(kit)
    assert (line.level, line.remedy) == ("FAIL", "correct it, or delete it")
    reporter = {"id": "statsd_reporter", "path": "x", "args": {"host": "h", "port": 1}}
    (tmp_path / FILE_NAME).write_text(json.dumps({"components": [reporter]}))
    monkeypatch.setitem(sys.modules, "datadog", None)
    (line,) = check_monitoring(kit)
    assert line.level == "FAIL" and "pip install 'fedsm[statsd]'" in line.remedy


class Mockup:
    """The part of a kit that is looked at."""

    def __init__(self, local: Path):
        self.local = local
