"""YAML as a person means it: each trap of YAML 1.1, and the lines."""

import math

import pytest

from fedsm.core.errors import UserError
from fedsm.core.yaml_file import parse_value, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3), ("1E5", 1e5), ("-2e+4", -2e4), ("1.5e3", 1500.0), (".5", 0.5), ("12.", 12.0),
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"), ("Off", "Off"), ("y", "y"), ("N", "N"),
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None),
        ("010", 10), ("0o10", 8), ("0x1F", 31), ("+7", 7), ("-7", -7),
        ("1:30", "1:30"), ("2024-01-01", "2024-01-01"), ("2024-01-01 10:00:00", "2024-01-01 10:00:00"), ("=", "="),
        ("1_000", "1_000"), ("'1e-3'", "1e-3"), ("1e", "1e"), ("e3", "e3"), (".inf", math.inf), ("-.inf", -math.inf),
        ("{no: 1, yes: [off]}", {"no": 1, "yes": ["off"]}),
        ("{<<: {a: 1}, b: 2}", {"a": 1, "b": 2}),
    ],
)  # fmt: skip
def test_values(text, value):
    found = parse_value(text, "x")
    assert found == value and type(found) is type(value)


def test_nan_is_a_number():
    assert math.isnan(parse_value(".nan", "x"))


@pytest.mark.parametrize(
    "text",
    [
        "[", "{a: 1, a: 2}", "{a: {b: 1, b: 2}}", "&a [*a]", "{? [1] : 2}", "!!timestamp 2024-01-01", "!!set {a}",
        "!!python/object/apply:os.system [id]", "!!int x", "!!float x", "!!bool perhaps", "<<", "\x00",
        "a: 1\n---\nb: 2", "1" * 5000, "[" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_plain_value_is_one_line(text):
    with pytest.raises(UserError, match="^--set lr: .* is no YAML value: ") as caught:
        parse_value(text, "--set lr")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_lines(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("# a comment\na: 1\n\nb:\n  c: [1,\n    2]\n  d: {e: 3}\nf: &x {g: 1}\nh: *x\n")
    file = read_yaml(path)
    assert file.content["h"] == {"g": 1} and file.file == str(path)
    lines = {"a": 2, "b": 4, "b.c": 5, "b.d": 7, "b.d.e": 7, "f.g": 8, "h": 9}
    assert {key: file.line_of(key.split(".")) for key in lines} == lines
    assert file.line_of(["b", "c", 1]) == 6
    assert file.line_of(["b", "c", 9]) == 5, "the nearest that is there"
    assert file.line_of(["h", "g"]) == 9, "an alias stands where it is used"
    assert file.line_of(["z"]) is None and file.line_of([]) is None


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"a: 1\nb: [\n", 3, "is no YAML"),
        (b"a: 1\na: 2\n", 2, "'a' occurs twice"),
        (b"\xff", None, "no UTF-8 text"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, content, line, words):
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        read_yaml(path, site="a")
    error = caught.value
    assert (error.file, error.site, error.line) == (str(path), "a", line) and "\n" not in str(error)
    assert str(tmp_path) not in error.public


def test_a_missing_file_has_a_remedy(tmp_path):
    with pytest.raises(UserError, match="No such file or directory; give another"):
        read_yaml(tmp_path / "none.yaml", remedy="give another")
