"""What kind of test a test is: `unit`, `federation`, `process` or `slow`.

A test says so itself (`@pytest.mark.process`), or it follows from what its file imports: whoever imports `subprocess`,
or a helper that does, tests processes; whoever imports the federation in one process tests federations. Where a file
holds several kinds, the tests that are of another kind than their file say so.

`watch` notes what a test really starts, so that none can call itself smaller than it is.
"""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
KINDS = {
    "unit": "one process, no federation",
    "federation": "controller, task server and executors of a job in one process",
    "process": "starts processes: commands, FLARE's simulator, a POC, startup kits",
    "slow": "real runs of minutes: `make test-slow`",
}
FEDERATION_EVENT = "tests.federation"  # raised by `Federation`
_STARTS = {"subprocess.Popen": "process", "os.fork": "process", FEDERATION_EVENT: "federation"}
_ORDER = list(KINDS)

_started: set[str] = set()


def kind_of(item) -> str:
    """The one kind of a collected test."""
    marked = {mark.name for mark in item.iter_markers()} & set(KINDS)
    if "slow" in marked:
        return "slow"
    if len(marked) > 1:
        raise ValueError(f"{item.nodeid} is marked {' and '.join(sorted(marked))}; mark the test, not its file")
    return marked.pop() if marked else kind_of_file(item.path)


@functools.cache
def kind_of_file(path: Path) -> str:
    """The kind of tests that a file's imports speak of."""
    reached = _reached(path)
    if "subprocess" in reached:
        return "process"
    return "federation" if "tests.helpers.federation" in reached else "unit"


@functools.cache
def _reached(path: Path) -> frozenset[str]:
    """The modules that a file imports, and those that they import as far as they are helpers of tests."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    helpers = [TESTS.parent / f"{name.replace('.', '/')}.py" for name in names if name.startswith("tests.helpers.")]
    return frozenset(names).union(*(_reached(helper) for helper in helpers if helper.is_file()))


def watch() -> None:
    """Notes from now on what is started; once for each process."""
    sys.addaudithook(lambda event, _: _started.add(_STARTS[event]) if event in _STARTS else None)


def forget() -> None:
    """Called before each test."""
    _started.clear()


def understated(kind: str) -> str | None:
    """The kind that a test of this kind should have, from what it started; None if it is right."""
    largest = max(_started, key=_ORDER.index, default="unit")
    return largest if _ORDER.index(largest) > _ORDER.index(kind) else None
