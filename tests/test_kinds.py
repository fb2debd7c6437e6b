"""Every test has exactly one kind, and shared things are not imported from tests."""

import ast

from tests.helpers.kinds import KINDS, TESTS


def test_every_test_has_one_kind(request):
    """Of those collected now; in the whole suite, of all."""
    for item in request.session.items:
        assert len({mark.name for mark in item.iter_markers()} & set(KINDS)) == 1, item.nodeid


def test_nothing_is_imported_from_a_test():
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert not module.startswith("tests.") or ".test_" not in module, f"{path}: move it to tests/helpers/"
