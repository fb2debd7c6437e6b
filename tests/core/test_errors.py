"""One line for a person, fields for code, and a public form that names nothing of the site's."""

import ast
import pickle
from pathlib import Path

import pytest

import app_fedsm
import fedsm
from fedsm.core.errors import UserError

FULL = {"site": "a", "file": "/data/a/x.png", "line": 3, "remedy": "replace it"}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "cannot be read"),
        ({"site": "a"}, "site 'a': cannot be read"),
        ({"file": "/data/a/x.png"}, "/data/a/x.png: cannot be read"),
        ({"file": "/data/a/x.png", "line": 3}, "/data/a/x.png, line 3: cannot be read"),
        ({"remedy": "replace it"}, "cannot be read; replace it"),
        (FULL, "site 'a': /data/a/x.png, line 3: cannot be read; replace it"),
    ],
)
def test_the_line_joins_site_file_message_and_remedy(fields, line):
    assert str(UserError("cannot be read", **fields)) == line


def test_the_public_form_is_a_generic_hint_unless_told(tmp_path):
    assert UserError(f"{tmp_path} is full", **FULL).public == "bad input at the site: see the site's own log"
    assert UserError("x", public="the disk is full").public == "the disk is full"


def test_a_table_shows_site_and_remedy_in_columns_of_their_own():
    error = UserError("cannot be read", **FULL)
    assert (error.site, error.what, error.remedy) == ("a", "/data/a/x.png, line 3: cannot be read", "replace it")


def test_an_error_of_a_part_keeps_its_fields_and_its_class():
    class Special(UserError):
        pass

    outer = Special("unknown method 'x'", remedy="known: fedsm", public="p").within("row 'A'")
    assert isinstance(outer, Special) and str(outer) == "row 'A': unknown method 'x'; known: fedsm"
    assert (outer.remedy, outer.public) == ("known: fedsm", "p")


def test_it_survives_pickle():
    error = pickle.loads(pickle.dumps(UserError("m", public="p", **FULL)))
    assert str(error) == "site 'a': /data/a/x.png, line 3: m; replace it" and error.public == "p"


SOURCES = sorted(path for package in (app_fedsm, fedsm) for path in Path(package.__path__[0]).rglob("*.py"))


def _literal(node: ast.expr) -> str:
    """The plain text in a message: of an f-string what stands between its values."""
    if isinstance(node, ast.BinOp):
        return _literal(node.left) + _literal(node.right)
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "?" for part in parts)


def test_what_to_do_is_a_field_never_a_part_of_the_message():
    raised = [
        (f"{path.name}:{node.lineno}", _literal(node.args[0]))
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "UserError" and node.args
    ]
    assert len(raised) > 200
    assert not [
        where for where, message in raised if "; " in message or ": use " in message or "pip install" in message
    ]
