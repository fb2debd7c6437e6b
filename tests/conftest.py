"""Small sites and settings that every test can afford."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path

os.environ["FEDSM_WHOLE_MONAI"] = "0"  # before it is loaded, and for all processes: see fedsm/nets/monai_parts.py

import matplotlib.font_manager  # noqa: E402, F401  # looks for fonts by a process, when it is first loaded
import pytest  # noqa: E402
import torch  # noqa: E402

from tests.helpers import kinds  # noqa: E402
from tests.helpers.small_jobs import SITES, write_site  # noqa: E402

# Lines are counted in the main thread alone. With CPython 3.11, a thread that starts while another one sets its trace
# function ends without a word ("Cannot install a trace function while another trace function is being installed"). A
# pool then waits for ever for its worker, once in some ten thousand starts.
threading.settrace(None)
threading.settrace = lambda hook: None


@pytest.fixture(scope="session")
def data_root(tmp_path_factory) -> Path:
    """Three sites of 16, 12 and 20 images."""
    root = tmp_path_factory.mktemp("data")
    for seed, (site, count) in enumerate(zip(SITES, (16, 12, 20), strict=True)):
        write_site(root / site, count, seed)
    return root


@pytest.fixture(autouse=True, scope="session")
def _scratch_config(tmp_path_factory):
    """The key that signs runs of this machine; of the session, because runs are made in fixtures of modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(autouse=True)
def _scratch_home(tmp_path_factory, monkeypatch):
    """`nvflare` writes to the home folder; and two cores are shared by many small nets."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # so that it is taken away again: MLflow itself sets it
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
    """Gives every test its kind (see `tests/helpers/kinds.py`), and puts the files with the longest tests first.

    A worker takes a file at a time: were the long ones last, it would work on the last of them alone. Counting lines
    doubles a test's time, so of a test with several cases it is done in the first only, and in no attack: these go the
    ways of the other tests.
    """
    largest: dict[Path, int] = {}
    measured: set[tuple[Path, str]] = set()
    for item in items:
        test = (item.path, getattr(item, "originalname", item.name))
        if test in measured or item.path.parent.name == "attacks":
            item.add_marker("no_cover")
        measured.add(test)
        kind = kinds.kind_of(item)
        if not item.get_closest_marker(kind):
            item.add_marker(kind)
        largest[item.path] = max(largest.get(item.path, 0), kinds.ORDER.index(kind))
    items.sort(key=lambda item: -largest[item.path])


def pytest_collection_finish():
    """What is loaded now stays: collections in tests need not walk it (a twentieth of the time of the unit tests)."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    kinds.forget()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    yield
    if larger := kinds.understated(kinds.kind_of(item)):
        pytest.fail(f"not a test of kind {kinds.kind_of(item)}: mark it @pytest.mark.{larger}", pytrace=False)


def pytest_configure(config):
    """Makes the kinds of tests known, and watches what tests start.

    Processes that tests start can be stopped by Ctrl-C, also where a shell started pytest in the background: such a
    shell has it ignored, and whoever is started inherits that.
    """
    for kind, meaning in kinds.KINDS.items():
        config.addinivalue_line("markers", f"{kind}: {meaning}")
    kinds.watch()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
