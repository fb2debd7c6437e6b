"""Real FLARE processes with real kits: masked updates over mTLS, keys signed with the sites' own certificates."""

import contextlib
import io

import pytest

from app_fedsm.cli.main import main
from app_fedsm.federation.poc import Poc
from fedsm.client.kit_identity import identity_of
from tests.helpers.plain_loop import algorithm_1, largest_difference
from tests.helpers.processes import free_port, kill_all
from tests.helpers.small_jobs import SITES, SMALL, small_settings
from tests.helpers.weights import TOLERANCE, last_weights


@pytest.mark.slow
def test_a_federation_gives_the_global_model_of_the_plain_loop(tmp_path, data_root):
    """Every site has a certificate, so a key that was not signed by its site's would have been refused."""
    here, out = ["--dir", str(tmp_path / "poc")], tmp_path / "run"
    secure = ["--set", "secure_sum=true", "--norm-check", "off", "--min-sites", "3"]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["poc", "up", *here, "--data", str(data_root), "--port", str(free_port())]) == 0
            assert main(["poc", "submit", *here, *SMALL, *secure, "--rounds", "2", "--out", str(out)]) == 0
        kits = Poc(tmp_path / "poc").kits
        assert all(identity_of(kits / site / "startup", site) for site in SITES)
    finally:
        kill_all(tmp_path / "poc")
    expected = algorithm_1(data_root, small_settings(rounds=2), SITES, 0.7, "none")["global"]
    weights = last_weights(out)
    assert largest_difference(weights["global"], expected) < TOLERANCE
    assert {f"personal.{site}" for site in SITES} <= weights.keys(), "handed over at the end"
