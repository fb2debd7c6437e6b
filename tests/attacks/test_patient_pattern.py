"""Row 12: the job's patient_pattern as an oracle that spells patients' file names."""

import pytest

from app_fedsm.cli.main import main
from fedsm.client.workers import build_worker
from fedsm.core.errors import UserError
from fedsm.core.task_names import REGISTER, SCORE
from fedsm.data.check import check_folder
from fedsm.data.site_rules import SiteRules
from tests.helpers.hostile_server import SITE, meta_of, real_site, refusal
from tests.helpers.small_jobs import small_settings, write_site

NAMES = ("Anna", "Boris", "Carla", "Dinesh", "Emma", "Farid", "Greta", "Hugo", "Irma", "Jonas")


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    write_site(folder, len(NAMES), 0)
    for part in ("images", "masks"):
        for number, name in enumerate(NAMES):
            (folder / part / f"case_{number:02d}.png").rename(folder / part / f"{name}_{number}.png")
    return folder


def asking(pattern: str):
    """A job whose task has a pattern."""
    settings = small_settings(selector="statistics")
    return settings.replace(task=settings.task.replace(patient_pattern=pattern))


def told(place, pattern: str) -> str:
    """What the server hears."""
    error = refusal(place, asking(pattern))
    return error.public if error else "registered"


def test_the_answers_to_right_and_wrong_guesses_are_the_same(tmp_path, data):
    """`^(?!Anna).*` does not match the file of Anna: where it ran, the site refused, and for Zoe it did not."""
    place = real_site(tmp_path / "site", data)
    guesses = ["Anna|.*", "Zoe|.*", "^(?!Anna).*", "^(?!Zoe).*", "(", "^(.)", "^(A|B|.*)"]
    heard = {told(place, guess) for guess in guesses}
    assert len(heard) == 1 and "must say how its patients are told apart" in heard.pop()


def test_the_site_is_told_what_to_write(tmp_path, data):
    place = real_site(tmp_path / "site", data)
    error = refusal(place, asking("^([A-Z][a-z]+)_\x1b"))
    assert r'patient_pattern: "^([A-Z][a-z]+)_\u001b"' in str(error) and "\n" not in str(error)
    assert 'patient_pattern: ""' in str(error) and str(data) not in error.public and "A-Z" not in error.public


@pytest.mark.parametrize("own", ["", "^([A-Z][a-z]+)_"])
def test_a_site_that_has_said_it_takes_any_task(tmp_path, data, own):
    place = real_site(tmp_path / "site", data, patient_pattern=own)
    assert {told(place, guess) for guess in ("Anna|.*", "^(?!Anna).*", "(", "")} == {"registered"}


def test_a_list_of_patients_will_do(tmp_path, data):
    (data / "patients.csv").write_text("file,patient\n" + "".join(f"{n}_{i},p{i}\n" for i, n in enumerate(NAMES)))
    place = real_site(tmp_path / "site", data)
    assert {told(place, guess) for guess in ("Anna|.*", "^(?!Anna).*", "(", "")} == {"registered"}


def test_a_sites_own_pattern_that_fails_names_no_file_outside(tmp_path, data):
    error = refusal(real_site(tmp_path / "site", data, patient_pattern="^(An|Bo)"), asking(""))
    assert "Carla" in str(error) and "Carla" not in error.public and "An|Bo" not in error.public


def test_an_evaluation_goes_by_the_same_rule(tmp_path, data):
    place, settings = real_site(tmp_path / "site", data), asking("Anna|.*")
    meta = meta_of(settings) | {"part": "test", "seed": 0, "super_model": {"sites": [SITE, "other"], "gamma": 0.5}}
    with pytest.raises(UserError, match="only if you allow it") as caught:
        build_worker(place, SCORE, meta).do(SCORE, meta, {}, lambda: False)
    assert "told apart" in caught.value.public


def test_the_checks_at_the_site_say_so_before(tmp_path, data, capsys):
    task = asking("^([A-Z][a-z]+)_").task
    report = check_folder(data, SITE, task, rules=SiteRules(fixed_splits=True, task_pattern=False))
    assert report.level == "FAIL" and any("only if you allow it" in f.file for f in report.findings)
    path = tmp_path / "task.yaml"
    path.write_text('name: t\nchannels: 3\nlabels: {disc: [1, 2], cup: [2]}\npatient_pattern: "^([A-Z][a-z]+)_"\n')
    command = ["data", "check", str(data), "--task", str(path), "--no-sheets"]
    assert main(command) == 1 and "only if you allow it" in capsys.readouterr().out
    assert main([*command, "--patient-pattern", ""]) == 0


def test_in_the_simulator_the_tasks_pattern_is_used(tmp_path, data):
    """Research on one machine: one patient in all, which cannot be split."""
    place = real_site(tmp_path / "site", data)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / SITE).symlink_to(data)
    (tmp_path / "site" / "fedsm_site.yaml").write_text(f"data_root: {tmp_path / 'root'}\n")
    with pytest.raises(UserError, match="1 patients cannot be split"):
        build_worker(place, REGISTER, meta_of(asking("_")))
