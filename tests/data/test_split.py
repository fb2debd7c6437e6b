"""The split is drawn once and used again; whose image a file is."""

import json

import pytest

from fedsm.core.errors import UserError
from fedsm.data.patients import patients_of
from fedsm.data.split import PARTS, split_site

STEMS = [f"p{i // 2:02d}_{i % 2}" for i in range(24)]


def split(tmp_path, stems=STEMS, seed=0, state="state"):
    patients = patients_of(tmp_path, stems, r"^(p\d+)_", "a")
    parts = split_site(stems, patients, seed, "a", tmp_path, tmp_path / state if state else None)
    return {part: {stems[i] for i in parts[part]} for part in PARTS}


def test_written_once_and_used_again(tmp_path):
    first = split(tmp_path)
    assert first == split(tmp_path) == split(tmp_path, state=None)
    assert [len(first[p]) for p in PARTS] == [12, 6, 6]
    for a in PARTS:
        for b in PARTS:
            assert a == b or not {s[:3] for s in first[a]} & {s[:3] for s in first[b]}
    assert split(tmp_path, seed=1) != first


def test_files_that_come_or_go_do_not_move_the_others(tmp_path):
    first = split(tmp_path)
    later = split(tmp_path, [s for s in STEMS if s != "p03_1"] + ["p99_0", "p98_0", "p04_2"])
    for part in PARTS:
        assert first[part] - {"p03_1"} <= later[part]
    home = next(part for part in PARTS if "p04_0" in first[part])
    assert "p04_2" in later[home], "a patient's new image joins the others of that patient"
    assert split(tmp_path) == first, "and a file that comes back is where it was"


def test_the_sites_own_splits_json_wins(tmp_path):
    own = {"train": STEMS[:20], "validation": STEMS[20:22], "test": STEMS[22:]}
    (tmp_path / "splits.json").write_text(json.dumps(own))
    assert split(tmp_path) == {part: set(stems) for part, stems in own.items()}
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be used"),
        ("{}", "cannot be used"),
        (json.dumps({"train": STEMS[:22], "validation": STEMS[22:23], "test": []}), "does not name"),
        (json.dumps({"train": STEMS, "validation": STEMS[:1], "test": []}), "two parts"),
        (json.dumps({"train": STEMS[:21], "validation": STEMS[21:23], "test": STEMS[23:]}), "patient 'p10' in two"),
        (json.dumps({"train": STEMS[:20], "validation": STEMS[20:], "test": []}), "no file for test"),
    ],
)
def test_a_bad_splits_json_is_one_line(tmp_path, content, words):
    (tmp_path / "splits.json").write_text(content)
    with pytest.raises(UserError, match=words) as caught:
        split(tmp_path)
    assert "\n" not in str(caught.value)


def test_patients_from_a_table(tmp_path):
    (tmp_path / "patients.csv").write_text("file,patient\nx,Anna\ny,Anna\nz,Bob\n")
    assert patients_of(tmp_path, ["x", "y", "z"], "ignored(", "a") == ["Anna", "Anna", "Bob"]
    with pytest.raises(UserError, match="no line for the file 'w'"):
        patients_of(tmp_path, ["w"], None, "a")
    (tmp_path / "patients.csv").write_text("file,patient\nx,Anna\nx,Bob\n")
    with pytest.raises(UserError, match="two patients"):
        patients_of(tmp_path, ["x"], None, "a")
    (tmp_path / "patients.csv").write_text("name,id\nx,1\n")
    with pytest.raises(UserError, match="columns"):
        patients_of(tmp_path, ["x"], None, "a")


def test_a_table_may_name_files_with_their_ending(tmp_path):
    """Only an ending that we read is one: `scan.2` is a name."""
    (tmp_path / "patients.csv").write_text("file,patient\na.nii.gz,p\nb.png,q\nscan.2,r\n")
    assert patients_of(tmp_path, ["a", "b", "scan.2"], None, "x") == ["p", "q", "r"]
    with pytest.raises(UserError, match="no line for the file 'scan'"):
        patients_of(tmp_path, ["scan"], None, "x")


def test_patients_from_a_pattern(tmp_path):
    assert patients_of(tmp_path, ["ab12", "cd34"], None, "a") == ["ab12", "cd34"]
    assert patients_of(tmp_path, ["ab12", "cd34"], r"\d+", "a") == ["12", "34"]
    with pytest.raises(UserError, match="does not match the file 'x'"):
        patients_of(tmp_path, ["x"], r"\d+", "a")
    with pytest.raises(UserError, match="no regular expression"):
        patients_of(tmp_path, ["x"], "(", "a")
