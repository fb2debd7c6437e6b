"""What kind of test a test is: `unit`, `federation`, `process` or `slow`.

A test says so itself (`@pytest.mark.process`), or it follows from the names that it uses, directly or through fixtures
and helpers of `tests/`: whoever uses `subprocess` tests processes, whoever uses `Federation` tests federations. What
starts processes inside the product is not seen that way: such a test is marked.

`watch` notes what a test really starts, so that none can call itself smaller than it is.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
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
ORDER = list(KINDS)  # from the smallest to the largest

_started: set[str] = set()


def kind_of(item) -> str:
    """The one kind of a collected test."""
    marked = {mark.name for mark in item.iter_markers()} & set(KINDS)
    if "slow" in marked:
        return "slow"
    if len(marked) > 1:
        raise ValueError(f"{item.nodeid} is marked {' and '.join(sorted(marked))}; mark the test, not its file")
    if marked:
        return marked.pop()
    names = [(item.path, item.function.__name__)]
    for fixture in item.fixturenames:
        names += [(path, fixture) for path in (item.path, *_conftests(item.path))]
    used = set[str]().union(*(_used(path, name) for path, name in names))
    return max(used, key=ORDER.index, default="unit")


def _conftests(path: Path) -> Iterator[Path]:
    for folder in path.parents:
        if (folder / "conftest.py").is_file():
            yield folder / "conftest.py"
        if folder == TESTS:
            return


@functools.cache
def _used(path: Path, name: str) -> frozenset[str]:
    """The kinds of what a name of a file stands for: its own, and those of the names in its definition."""
    kinds: set[str] = set()
    waiting, seen = [(path, name)], set()
    while waiting:
        here = waiting.pop()
        if here in seen:
            continue
        seen.add(here)
        path, name = here
        imported, defined = _names(path)
        if name in imported:
            module, original = imported[name]
            if module == "subprocess":
                kinds.add("process")
            elif (module, original) == ("tests.helpers.federation", "Federation"):
                kinds.add("federation")
            elif module.startswith("tests."):
                waiting.append((TESTS.parent / f"{module.replace('.', '/')}.py", original))
        waiting += [(path, used) for used in defined.get(name, ())]
    return frozenset(kinds)


@functools.cache
def _names(path: Path) -> tuple[dict[str, tuple[str, str]], dict[str, set[str]]]:
    """Of a file: imported name -> module and name there; defined name -> names in its definition."""
    imported: dict[str, tuple[str, str]] = {}
    defined: dict[str, set[str]] = {}
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.asname or alias.name: (alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    for node in tree.body:
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            arguments = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}  # fixtures of fixtures
            defined[node.name] = names | arguments
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                defined |= {n.id: names for n in ast.walk(target) if isinstance(n, ast.Name)}
    return imported, defined


def watch() -> None:
    """Notes from now on what is started; once for each process."""
    sys.addaudithook(_note)


def _note(event: str, args: tuple) -> None:
    # Libraries ask once in a process: scikit-learn for cores, Python's `platform` for the processor.
    asks = event == "subprocess.Popen" and str(args[0]).endswith(("lscpu", "uname"))
    if event in _STARTS and not asks:
        _started.add(_STARTS[event])


def forget() -> None:
    """Called before each test."""
    _started.clear()


def understated(kind: str) -> str | None:
    """The kind that a test of this kind should have, from what it started; None if it is right."""
    largest = max(_started, key=ORDER.index, default="unit")
    return largest if ORDER.index(largest) > ORDER.index(kind) else None
