"""FLARE's own `nvflare simulator` on an exported job."""

from app_fedsm.cli.main import main
from tests.helpers.assertions import assert_equals_plain_loop
from tests.helpers.plain_simulator import plain_simulator
from tests.helpers.small_jobs import SMALL


def test_plain_nvflare_simulator_with_fewer_threads_than_sites(tmp_path, data_root):
    """A new process for each task, the same weights."""
    arguments = ["job", "export", *SMALL, "--rounds", "1", "--selector", "gradient", "--out", str(tmp_path)]
    assert main(arguments) == 0
    folder = plain_simulator(tmp_path / "fedsm_retinal", tmp_path, data_root, threads=2)
    assert_equals_plain_loop(folder, data_root, rounds=1)
