"""Workers of the simulator that are forked: what they get, how they end, and what is left of them."""

import json
import subprocess
import sys
import textwrap

import psutil
import pytest

from tests.helpers.processes import processes_of

# A process of its own: what forks must be the only thread. FLARE's worker is replaced by one that tells about itself.
PROGRAM = """
import json, os, signal, subprocess, sys, time
from types import SimpleNamespace
from app_fedsm.runs import worker_factory
from nvflare.fuel.f3.streaming import stream_utils

def work(args):
    told = {"pid": os.getpid(), "session": os.getsid(0), "argv": sys.argv[1:], "word": os.environ.get("WORD"),
            "path": sys.path, "folder": os.getcwd(), "streams": stream_utils.sid_base, "loaded": stream_utils.LOADED}
    with open(args.told, "w") as f:
        json.dump(told, f)
    if args.waits:
        time.sleep(600)

stream_utils.LOADED = stream_utils.sid_base
worker_factory.simulator_worker.main = work
worker_factory.simulator_worker.parse_arguments = lambda: SimpleNamespace(
    workspace=".", told=sys.argv[1], waits="--waits" in sys.argv)
found = worker_factory.start()
if isinstance(found, worker_factory.Order):
    sys.exit(found.run())
folder = sys.argv[1]
command = [sys.executable, "-m", "nvflare.private.fed.app.simulator.simulator_worker"]
os.chdir(folder)
environment = os.environ | {"WORD": "word", "PYTHONPATH": folder}
worker = found.Popen([*command, f"{folder}/one"], shell=False, preexec_fn=os.setsid, env=environment)
assert worker.wait(60) == 0 and worker.poll() == 0
worker.terminate()  # it has ended: nobody else is asked
waits = found.Popen([*command, f"{folder}/two", "--waits"], env=environment)
while not (os.path.exists(f"{folder}/two") and os.path.getsize(f"{folder}/two")):
    time.sleep(0.01)
assert waits.poll() is None
try:
    waits.wait(0.01)
except found.TimeoutExpired:
    waits.terminate()
assert waits.wait(60) == -signal.SIGTERM
other = found.Popen([sys.executable, "-c", "print(1)"], stdout=subprocess.DEVNULL)
assert isinstance(other, subprocess.Popen) and other.wait() == 0
left = found.Popen([*command, f"{folder}/three", "--waits"], env=environment)
left.kill()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere FLARE starts its workers itself")
def test_forked_workers(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)], capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one", "two"))
    assert one["session"] == one["pid"] != two["pid"], "each leads a session of its own"
    assert one["argv"] == [str(tmp_path / "one")] and one["word"] == "word" and one["folder"] == str(tmp_path)
    assert str(tmp_path) in one["path"], "code that came with the job"
    assert len({one["streams"], two["streams"], one["loaded"]}) == 3 and one["loaded"] == two["loaded"]
    assert not psutil.wait_procs(processes_of(tmp_path), 600)[1], "whoever forked them has ended as well"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere FLARE starts its workers itself")
def test_where_cuda_was_asked_for_its_devices_nothing_is_forked():
    program = (
        "import torch; torch.cuda._is_in_bad_fork = lambda: True; from app_fedsm.runs import worker_factory;"
        "assert worker_factory.start() is None"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=600).returncode == 0
