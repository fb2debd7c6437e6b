"""FEDSM_DATA says where the images are in the simulator, and nowhere else."""

import pytest

from fedsm.client.site_settings import FILE_NAME
from fedsm.core.task_names import SIMULATED_JOB
from tests.helpers.federation import Federation, results_of
from tests.helpers.small_jobs import SITES, small_settings


def federation(folder, data, job_id=SIMULATED_JOB, **given) -> Federation:
    """One whose sites and server find no site file."""
    settings = small_settings(rounds=1, method="fedavg", round_retries=0)
    made = Federation(folder, data, settings, SITES, job_id=job_id, **given)
    for file in folder.glob(f"*/local/{FILE_NAME}"):
        file.unlink()
    return made


def test_the_simulator_takes_it(tmp_path, data_root, monkeypatch):
    monkeypatch.setenv("FEDSM_DATA", str(data_root))
    ran = federation(tmp_path, data_root).run()
    assert ran.panic is None and results_of(ran)["validation"]["history"][0]["answered"] == SITES


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "nobody says where the sites' images are"),
        ("/nowhere", "holds no folder 'site-1'"),
        ("demo_data", "is not a full path"),  # which plain `nvflare simulator` would look up in its workspace
    ],
)
def test_the_simulators_server_says_so_before_a_site_is_asked(tmp_path, data_root, monkeypatch, value, words):
    monkeypatch.setenv("FEDSM_DATA", value)
    assert words in federation(tmp_path, data_root).run().panic


def test_a_federation_does_not(tmp_path, data_root, monkeypatch):
    monkeypatch.setenv("FEDSM_DATA", str(data_root))
    person = {"submitter_name": "lead@a.org", "submitter_org": "a", "submitter_role": "lead"}
    ran = federation(tmp_path, data_root, job_id="job-1", submitter=person).run()
    assert "site-1, site-2, site-3: the site has no data path yet" in ran.panic
