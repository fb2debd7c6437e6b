"""fedsm_site.yaml: what only the site knows."""

import re
from pathlib import Path

import pytest
import torch

import app_fedsm.provisioning
from fedsm.client.site_settings import load_site_settings
from fedsm.core.errors import UserError
from fedsm.data.site_rules import SiteRules
from fedsm.selectors.private_sums import StatisticsPrivacy


def load(tmp_path, text: str | None, simulated: bool = False):
    if text is not None:
        (tmp_path / "fedsm_site.yaml").write_text(text)
    return load_site_settings(tmp_path, tmp_path / "ws", "site-1", fair_share=3, simulated=simulated)


def test_data_and_defaults(tmp_path):
    site = load(tmp_path, "data: /somewhere\n")
    assert str(site.data) == "/somewhere"
    assert site.state_dir == tmp_path / "ws" / "fedsm_state" / "site-1"
    assert site.threads == 3
    assert site.device.type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_data_root_adds_the_sites_name(tmp_path):
    site = load(tmp_path, "data_root: /all\nthreads: 2\nstate_dir: /state\ndevice: cpu\n")
    assert (str(site.data), site.threads, str(site.state_dir)) == ("/all/site-1", 2, "/state/site-1")


def test_the_cache_is_beside_the_state_unless_told(tmp_path):
    site = load(tmp_path, "data: /somewhere\n")
    assert site.cache_dir == tmp_path / "ws" / "fedsm_cache" / "site-1"
    assert (site.workers, site.cache_budget) == (3, 20 * 10**9)
    site = load(tmp_path, "data: /somewhere\nstate_dir: /big/state\nthreads: 2\n")
    assert (str(site.cache_dir), site.workers) == ("/big/fedsm_cache/site-1", 2)
    site = load(tmp_path, "data: /somewhere\ncache_dir: /fast\nworkers: 5\n")
    assert (str(site.cache_dir), site.workers, site.threads) == ("/fast/site-1", 5, 3)


@pytest.mark.parametrize(
    ("text", "size"),
    [("20 GB", 20 * 10**9), ("1.5gb", 15 * 10**8), ("700 MB", 7 * 10**8), ("12345", 12345), ("3 TB", 3 * 10**12)],
)
def test_cache_budget(tmp_path, text, size):
    assert load(tmp_path, f"data: /somewhere\ncache_budget: {text}\n").cache_budget == size


def test_trainer_and_privacy(tmp_path):
    site = load(tmp_path, "data: /somewhere\n")
    assert (site.trainer, site.statistics_privacy) == (None, None)
    text = "data: /somewhere\ntrainer: inside\nstatistics_privacy: {epsilon: 1, delta: 1e-5, clip: 4}\n"
    site = load(tmp_path, text)
    assert (site.trainer, site.statistics_privacy) == ("inside", StatisticsPrivacy(1.0, 1e-5, 4.0))


def test_a_real_site_decides_itself_and_the_simulator_follows_the_job(tmp_path):
    real, simulated = load(tmp_path, "data: /somewhere\n"), load(tmp_path, "data_root: /all\n")
    assert real.rules == SiteRules(fixed_splits=True, patient_pattern=None, task_pattern=False)
    assert simulated.rules == SiteRules(fixed_splits=False, patient_pattern=None, task_pattern=True)
    assert (real.max_statistics, real.min_patients, simulated.min_patients) == (10, 5, 1)
    assert not load(tmp_path, "data: /somewhere\nsplits: by_seed\n").rules.fixed_splits
    assert load(tmp_path, "data_root: /all\nsplits: fixed\n").rules.fixed_splits
    own = load(tmp_path, 'data: /somewhere\npatient_pattern: ""\nmax_statistics: 3\nmin_patients: 20\n')
    assert (own.rules.patient_pattern, own.max_statistics, own.min_patients) == ("", 3, 20)


def test_a_privacy_budget_is_epsilon_unless_told(tmp_path):
    for text, total in (("{epsilon: 1, delta: 1e-5}", 1.0), ("{epsilon: 1, delta: 1e-5, budget: 3}", 3.0)):
        assert load(tmp_path, f"data: /a\nstatistics_privacy: {text}\n").statistics_privacy.total == total


def test_private_training(tmp_path):
    assert load(tmp_path, "data: /a\n").dp is None
    dp = load(tmp_path, "data: /a\ndp: {epsilon: 3, delta: 1e-3}\n").dp
    assert (dp.epsilon, dp.delta, dp.total, dp.max_grad_norm, dp.noise_multiplier) == (3.0, 1e-3, 3.0, 0.1, None)
    assert load(tmp_path, "data: /a\ndp: {epsilon: 3, delta: 1e-3, budget: 9}\n").dp.total == 9.0


def test_every_line_of_the_kits_template_can_be_used(tmp_path):
    """With the # taken away, as its reader is told to."""
    template = (Path(app_fedsm.provisioning.__file__).parent / "kit" / "fedsm_site.yaml").read_text()
    lines = re.findall(r"^# ([a-z_]+: .+)$", template, re.MULTILINE)
    assert len(lines) > 8
    site = load(tmp_path, "\n".join(line.replace("device: cuda", "device: cpu") for line in lines))
    assert (str(site.data), site.rules.patient_pattern) == ("/data/retina", r"^(P\d+)_")


def test_a_size_is_a_number_of_bytes_or_text(tmp_path):
    """`1_000` is no number in YAML 1.2, and the message says what is."""
    with pytest.raises(
        UserError, match="cache_budget must be a size such as `20 GB`, or a number of bytes, got '1_000'"
    ):
        load(tmp_path, "data: /a\ncache_budget: 1_000\n")


def test_environment_variable_serves_where_there_is_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSM_DATA", "/from/env")
    assert str(load(tmp_path, None, simulated=True).data) == "/from/env/site-1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no data path"),
        ("", "no data path"),
        ("data: /a\ndata_root: /b\n", "not both"),
        ("data: /a\ncolour: red\n", "line 2: unknown setting 'colour'"),
        ("# a comment\ndata: 7\n", "line 2: data must be text"),
        ("data: /a\nthreads: many\n", "threads"),
        ("data: /a\nthreads: 0\n", "threads"),
        ("data: /a\nworkers: 0\n", "line 2: workers must be a whole number"),
        ("data: /a\nworkers: true\n", "line 2: workers must be a whole number"),
        ("data: /a\ncache_dir: 7\n", "line 2: cache_dir must be text"),
        ("data: /a\ncache_budget: lots\n", "line 2: cache_budget must be a size such as `20 GB`"),
        ("data: /a\ncache_budget: 20 XB\n", "line 2: cache_budget"),
        ("data: /a\ncache_budget: -1\n", "line 2: cache_budget"),
        ("data: /a\ncache_budget: 0 GB\n", "line 2: cache_budget"),
        ("data: /a\ntrainer: outside\n", "line 2: trainer must be process or inside"),
        ("data: /a\nsplits: sometimes\n", "line 2: splits must be fixed or by_seed"),
        ("data: /a\nmax_statistics: 0\n", "line 2: max_statistics must be a whole number"),
        ("data: /a\nmin_patients: few\n", "line 2: min_patients must be a whole number"),
        (
            "data: /a\nstatistics_privacy: {epsilon: 2, delta: 0.1, budget: 1}\n",
            "line 2: statistics_privacy: budget must be at least epsilon (2), got 1",
        ),
        (
            "data: /a\nstatistics_privacy: {epsilon: 2, delta: 0.1, budget: .inf}\n",
            "statistics_privacy.budget must be a number above 0, got inf",
        ),
        (
            "data: /a\nstatistics_privacy: 1\n",
            "line 2: statistics_privacy must be settings (epsilon, delta, clip, budget), got 1",
        ),
        ("data: /a\nstatistics_privacy: {epsilon: 1}\n", "line 2: setting 'statistics_privacy.delta' is missing"),
        (
            "data: /a\nstatistics_privacy: {epsilon: 0, delta: 0.1}\n",
            "epsilon must be a number above 0 and at most 100, got 0",
        ),
        ("data: /a\nstatistics_privacy: {epsilon: .nan, delta: 0.1}\n", "statistics_privacy.epsilon must be a number"),
        (
            "data: /a\nstatistics_privacy: {epsilon: 1, delta: 0.1, colour: 3}\n",
            "line 2: unknown setting 'statistics_privacy.colour'",
        ),
        (
            "data: /a\ndp: {epsilon: 2, delta: 0.1, budget: 1}\n",
            "line 2: dp: budget must be at least epsilon (2), got 1",
        ),
        ("data: /a\ndp: {epsilon: 2}\n", "line 2: setting 'dp.delta' is missing"),
        ("data: /a\ndp: {epsilon: 2, delta: 1}\n", "dp.delta must be a number above 0 and below 1, got 1"),
        ("data: /a\ndp: {epsilon: 2, delta: 0.1, max_grad_norm: 0}\n", "dp.max_grad_norm must be a number above 0"),
        ("data: /a\ndp: {epsilon: 2, delta: 0.1, noise_multiplier: .inf}\n", "dp.noise_multiplier must be a number"),
        ("data: /a\ndevice: toaster\n", "device 'toaster'"),
        ("- data\n", "key: value"),
        ("data: [\n", "line 2: is no YAML"),
    ],
)
def test_errors_name_the_site_and_the_remedy(tmp_path, monkeypatch, text, words):
    monkeypatch.delenv("FEDSM_DATA", raising=False)
    with pytest.raises(UserError, match="site-1") as caught:
        load(tmp_path, text)
    assert words in str(caught.value)
    assert str(tmp_path) not in caught.value.public


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_asked_for_where_there_is_none(tmp_path):
    with pytest.raises(UserError, match="no usable CUDA"):
        load(tmp_path, "data: /a\ndevice: cuda:0\n")
