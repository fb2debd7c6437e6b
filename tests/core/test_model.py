"""The base of all settings: what pydantic finds becomes one line with key, line, limits and a suggestion."""

import subprocess
import sys
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError, field_validator, model_validator

from fedsm.core.errors import UserError
from fedsm.core.model import EXPECTED, Settings, Switch
from fedsm.core.settings import JobSettings
from fedsm.core.yaml_file import read_yaml
from tests.helpers.small_jobs import small_settings


class Inner(Settings):
    depth: int = Field(default=1, ge=1, le=9)


class Example(Settings):
    name: str
    count: int = Field(default=1, ge=1)
    share: float = Field(default=0.5, gt=0, le=1)
    word: Literal["off", "warn", "clip"] = "off"
    pair: Literal["one", "two"] = "one"
    flag: Switch = False
    values: list[Annotated[float, Field(ge=0)]] = Field(default=[1.0], min_length=1, max_length=3)
    inner: Inner = Inner()
    maybe: int | None = None
    either: str | list[Any] = Field(default="x", json_schema_extra={EXPECTED: "a word or a list"})
    by_name: dict[str, int] = {}

    @field_validator("name")
    @classmethod
    def _lower(cls, name: str) -> str:
        if not name.islower():
            raise ValueError("lower case only")
        return name

    @model_validator(mode="after")
    def _fits(self):
        if self.count > 5 and self.flag:
            raise ValueError("count above 5 does not go with flag")
        return self


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"cuont": 1}, "unknown setting 'cuont'; did you mean 'count'? known: name, count, share, "),
        ({"inner": {"dept": 1}}, "unknown setting 'inner.dept'; did you mean 'depth'? known: depth"),
        ({"zzz": 1, "count": "x"}, "unknown setting 'zzz'; known: name, count, "),
        ({"\x1b[2J\n": 1}, r"unknown setting ''\x1b[2J\n''; known: name,"),
        ({1: 2}, "unknown setting '[1]'; known: name, "),
        ({"count": 0}, "count must be a whole number of at least 1, got 0"),
        ({"count": "3"}, "count must be a whole number of at least 1, got '3'"),
        ({"count": True}, "count must be a whole number of at least 1, got True"),
        ({"count": 1.0}, "count must be a whole number of at least 1, got 1.0"),
        ({"share": 0}, "share must be a number above 0 and at most 1, got 0"),
        ({"share": float("nan")}, "share must be a number above 0 and at most 1, got nan"),
        ({"share": 10**400}, "share must be a number above 0 and at most 1, got 1000"),
        ({"share": 10**5000}, "share must be a number above 0 and at most 1, got a value of type int that is too long"),
        ({"word": "warm"}, "word must be one of off, warn, clip, got 'warm'; did you mean 'warn'?"),
        ({"word": False}, "word must be one of off, warn, clip, got False"),
        ({"pair": 3}, "pair must be one or two, got 3"),
        ({"flag": "maybe"}, "flag must be true or false, got 'maybe'"),
        ({"flag": 1}, "flag must be true or false, got 1"),
        ({"values": 1}, "values must be a list of 1 to 3 numbers of at least 0, got 1"),
        ({"values": [1, 2, -3]}, "values[2] must be a number of at least 0, got -3"),
        ({"values": [1] * 100}, "values must be a list of 1 to 3 numbers of at least 0, got [1, 1, "),
        ({"inner": 3}, "inner must be settings (depth), got 3"),
        ({"inner": {"depth": 10}}, "inner.depth must be a whole number from 1 to 9, got 10"),
        ({"maybe": "x"}, "maybe must be a whole number, got 'x'"),
        ({"either": 3}, "either must be a word or a list, got 3"),
        ({"by_name": {3: 1}}, "by_name: the key 3 must be text; put it in quotes"),
        ({"by_name": {"a": "b"}}, "by_name.a must be a whole number, got 'b'"),
        ({"by_name": {"a b": "b"}}, "by_name.'a b' must be a whole number, got 'b'"),
        ({"name": "X"}, "name: lower case only"),
        ({"count": 6, "flag": True}, "count above 5 does not go with flag"),
    ],
)
def test_a_problem_is_one_line(change, line):
    with pytest.raises(UserError) as caught:
        Example.from_dict({"name": "x"} | change)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_what_is_missing_and_what_is_no_mapping():
    with pytest.raises(UserError, match="^setting 'name' is missing$"):
        Example.from_dict({})
    with pytest.raises(UserError, match=r"^must hold `key: value` lines, got \[1\]$"):
        Example.from_dict([1])


def test_words_for_a_switch():
    for word, value in {"yes": True, "on": True, "no": False, "off": False, True: True}.items():
        assert Example.from_dict({"name": "x", "flag": word}).flag is value
    assert Example.from_dict({"name": "x", "word": "off"}).word == "off", "elsewhere it stays a word"


def test_the_line_in_the_file(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("name: x\ninner:\n  depth: 99\n")
    source = read_yaml(path)
    with pytest.raises(UserError) as caught:
        Example.from_dict(source.content, source=source, site="a")
    error = caught.value
    assert str(error) == f"site 'a': {path}, line 3: inner.depth must be a whole number from 1 to 9, got 99"
    assert (error.site, error.file, error.line) == ("a", str(path), 3)
    assert error.public == "bad input at the site: see the site's own log"


def test_a_file_never_gets_into_the_public_words(tmp_path):
    """A job's values came from the server, so their words may go back; the file they stand in may not."""
    path = tmp_path / "x.yaml"
    path.write_text("rounds: 0\ntask: {name: t, channels: 1, labels: {a: [1]}}\ntracks: {}\n")
    source = read_yaml(path)
    with pytest.raises(UserError) as caught:
        JobSettings.from_dict(source.content, source=source, site="a")
    assert caught.value.public == "rounds must be a whole number from 1 to 100000, got 0"
    assert f"{path}, line 1" in str(caught.value)


def test_settings_do_not_change_and_a_copy_is_checked():
    settings = small_settings()
    with pytest.raises(ValidationError):
        settings.rounds = 7
    assert settings.replace(rounds=7).rounds == 7 and settings.rounds == 3
    assert settings.replace(task=settings.task.replace(channels=1)).task.channels == 1
    with pytest.raises(UserError, match="rounds must be"):
        settings.replace(rounds=0)


def test_a_job_is_the_same_after_a_trip_as_plain_values():
    settings = small_settings(overrides=["task.augment={flip: both}", "task.lam=1", "max_share=3"])
    values = settings.to_dict()
    assert values["task"]["unet"] == {"channels": [4, 8, 16], "residual_units": 1}, "what the task says, and no more"
    assert values["task"]["augment"] == {"flip": "both"}
    assert JobSettings.from_dict(values) == settings and JobSettings.from_dict(values).to_dict() == values


def test_settings_need_no_torch():
    """Commands that only look at settings answer at once."""
    program = (
        "import sys, fedsm.core.settings; sys.exit(bool({'torch', 'monai', 'numpy', 'nvflare'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
