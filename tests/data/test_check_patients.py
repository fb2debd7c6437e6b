"""Whom an image is of, and who is in which part: what the check finds about patients and splits."""

import json

import pytest

from fedsm.core.errors import UserError
from fedsm.data.check import check_folder, split_overlaps
from fedsm.data.dataset import load_site
from fedsm.data.findings import format_reports
from fedsm.data.split import split_by_patient
from tests.helpers.small_jobs import small_settings
from tests.helpers.spoiled import TASK, assert_found


def test_split_overlaps():
    patients = ["p1", "p1", "p2", "p3"]
    assert split_overlaps(patients, {"train": [0], "validation": [1, 2], "test": [3]}) == {
        "p1": ["train", "validation"]
    }
    assert split_overlaps(patients, {"train": [0, 1], "validation": [2], "test": [3]}) == {}
    names = [f"p{i // 3}" for i in range(60)]
    assert split_overlaps(names, split_by_patient(names, 0, "a")) == {}


def test_stored_splits(site):
    names = [f"case_{i:02d}" for i in range(14)]
    split = {"train": names[:8], "validation": names[8:11], "test": names[11:]}
    path = site / "splits.json"
    path.write_text(json.dumps(split))
    assert check_folder(site, "a", TASK).level == "PASS"
    path.write_text(json.dumps(split | {"test": [*names[11:], "case_00"]}))
    assert_found(check_folder(site, "a", TASK), "overlap", "case_00 (train and test)")
    path.write_text(json.dumps(split | {"test": [names[11], "gone"]}))
    assert_found(check_folder(site, "a", TASK), "stale", "gone")
    assert_found(check_folder(site, "a", TASK), "unlisted", "case_12, case_13")
    path.write_text(json.dumps({"train": names[:8], "validation": names[8:], "test": ["gone"]}))
    assert_found(check_folder(site, "a", TASK), "splits", "no file of test is here")
    for text in ("{", "[]", json.dumps(split | {"test": []}), json.dumps({"train": names}), "\udcff"):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        assert_found(check_folder(site, "a", TASK), "splits", "splits.json")


def test_patients_are_told_by_table_or_pattern(site):
    """14 files of 7 patients: `case_00`, `case_01` are patient 0. One patient in train and test is a FAIL."""
    names = [f"case_{i:02d}" for i in range(14)]
    split = {"train": names[:7], "validation": names[7:11], "test": names[11:]}
    (site / "splits.json").write_text(json.dumps(split))
    assert check_folder(site, "a", TASK).level == "PASS", "without a table each file is a patient of its own"
    table = site / "patients.csv"
    table.write_text("file,patient\n" + "".join(f"{name},p{i // 2}\n" for i, name in enumerate(names)))
    report = check_folder(site, "a", TASK)
    assert_found(report, "overlap", "p3 (train and validation)", "p5 (validation and test)")
    assert_found(report, "few", "7")
    with pytest.raises(UserError, match="two parts"):
        load_site(site, "a", small_settings())
    table.unlink()
    decade = TASK.replace(patient_pattern=r"case_(\d)")  # two patients: 0 and 1
    assert_found(check_folder(site, "a", decade), "overlap", "0 (train and validation)", "1 (validation and test)")
    assert_found(check_folder(site, "a", decade), "too few", "2")


@pytest.mark.parametrize(
    ("table", "pattern", "words"),
    [
        ("file,patient\ncase_00,p\n", "", "no line for the file 'case_01'"),
        ("name,who\ncase_00,p\n", "", "columns"),
        ("file,patient\ncase_00,\n", "", "without file or patient"),
        ("file,patient\ncase_00\n", "", "without file or patient"),
        (None, "(", "no regular expression"),
        (None, "patient_", "does not match the file 'case_00'"),
        (None, "case_(x)?", "does not match the file 'case_00'"),
    ],
)
def test_patients_that_cannot_be_told(site, table, pattern, words):
    if table:
        (site / "patients.csv").write_text(table)
    task = TASK.replace(patient_pattern=pattern)
    assert_found(check_folder(site, "a", task), "patients", words)
    with pytest.raises(UserError, match="case_0|columns|without|expression"):
        load_site(site, "a", small_settings().replace(task=task))


def test_the_report_says_how_many_patients_and_by_which_rule(site):
    names = [f"case_{i:02d}" for i in range(14)]

    def told(task=TASK) -> str:
        return format_reports([check_folder(site, "a", task)]).splitlines()[1]

    assert told() == "  14 patients, one per file"
    pattern = TASK.replace(patient_pattern=r"case_(\d)")
    assert told(pattern) == r"  2 patients, found by the pattern 'case_(\\d)' in file names"
    (site / "patients.csv").write_text("file,patient\n" + "".join(f"{n},p{i // 2}\n" for i, n in enumerate(names)))
    assert told(pattern) == told() == "  7 patients, listed in patients.csv"
    (site / "patients.csv").write_text("file,patient\n")
    assert told().startswith("  FAIL patients cannot be told"), "no count where nobody can say"
