"""Sites that nobody has told where their images are: the job says so at once, in one line, and ends."""

import json
import shutil

import pytest

from fedsm.client.site_settings import DATA_ROOT_VARIABLE
from fedsm.flare import exchange
from fedsm.flare.task_runner import TaskRunner
from tests.helpers.attack_jobs import LEAD
from tests.helpers.federation import Federation, results_of
from tests.helpers.folders import ROOT
from tests.helpers.small_jobs import SITES, small_settings

TEMPLATE = ROOT / "app_fedsm" / "provisioning" / "kit" / "fedsm_site.yaml"
REASON = "the site has no data path yet: its IT writes `data: FOLDER` to local/fedsm_site.yaml in its kit"


@pytest.fixture(autouse=True)
def _never_again(monkeypatch):
    """Nobody waits before asking a second time."""

    def pause(self, seconds):
        raise AssertionError("an unready site would be asked again")

    monkeypatch.delenv(DATA_ROOT_VARIABLE, raising=False)
    monkeypatch.setattr(TaskRunner, "_pause", pause)


def provisioned(folder, data_root, unready: list[str], template: bool, **more) -> tuple[Federation, list[str]]:
    """A job on hospitals of which some have not written their file; and the sites in the order they were asked."""
    asked: list[str] = []

    def fault(site, task, shareable, work):
        if task == exchange.REGISTER:
            asked.append(site.name)
        return work()

    settings = small_settings(rounds=1, **more)
    federation = Federation(folder, data_root, settings, SITES, fault=fault, job_id="job-1", submitter=LEAD)
    for name in unready:
        file = folder / name / "local" / "fedsm_site.yaml"
        file.unlink()
        if template:
            shutil.copyfile(TEMPLATE, file)
    return federation.run(), asked


@pytest.mark.parametrize("template", [True, False], ids=["the untouched template", "no file"])
def test_nobody_is_asked_again_and_the_line_says_who_and_what(tmp_path, data_root, template):
    federation, asked = provisioned(tmp_path, data_root, SITES, template)
    assert sorted(asked) == SITES, "each once"
    assert federation.panic == (
        f"registration: 0 of 3 sites gave a good answer, min_sites is 2 (site-1, site-2, site-3: {REASON});"
        " start the run again"
    )
    events = [json.loads(line) for line in (federation.run_folder / "progress.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "failed" and events[-1]["reason"] == federation.panic
    assert events[-1]["can_go_on"] is False, "a supervised job does not start again by itself"
    assert str(tmp_path) not in federation.panic, "no path of a site"


def test_too_many_of_them_end_the_job_although_another_might_still_answer(tmp_path, data_root):
    federation, asked = provisioned(tmp_path, data_root, SITES[1:], True)
    assert sorted(asked) == SITES and f"(site-2, site-3: {REASON})" in federation.panic


def test_with_enough_others_the_job_goes_on_and_names_it(tmp_path, data_root):
    federation, asked = provisioned(tmp_path, data_root, SITES[2:], True)
    assert federation.panic is None
    (row,) = results_of(federation)["validation"]["history"]
    assert row["answered"] == SITES[:2] and row["missing"] == {"site-3": f"not registered: {REASON}"}
