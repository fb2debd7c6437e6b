"""`fedsm site check` says what is left of a site's privacy budget."""

from dataclasses import replace

from fedsm.client.privacy_ledger import FILE_NAME, PrivacyLedger
from fedsm.client.site_settings import load_site_settings
from fedsm.core.privacy_loss import NoisySteps
from fedsm.preflight.privacy import check_privacy


def test_the_line_of_a_site(tmp_path):
    (tmp_path / "fedsm_site.yaml").write_text("data: /a\nstate_dir: STATE\ndp: {epsilon: 1, delta: 1e-5}\n")
    site = replace(load_site_settings(tmp_path, tmp_path, "a", 1), state_dir=tmp_path / "state")
    assert check_privacy(replace(site, dp=None), "a") == []
    [line] = check_privacy(site, "a")
    assert (line.level, line.what) == ("PASS", "epsilon 0 of 1 is spent, at delta 1e-05")
    PrivacyLedger(site.state_dir, "a").reserve("run", NoisySteps(0.5, 1.0, 1), lambda history: None)
    [line] = check_privacy(site, "a")
    assert line.level == "FAIL" and "raise `budget`" in line.remedy
    (site.state_dir / FILE_NAME).write_text("{")
    [line] = check_privacy(site, "a")
    assert line.level == "FAIL" and "restore it from a backup" in line.remedy
