"""Row 7: descriptors of single images, computed from the sums of jobs that differ in their seed only."""

import json
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fedsm.client.site_settings import SiteLocation
from fedsm.client.workers import build_worker
from fedsm.core.errors import UserError
from fedsm.core.task_names import REGISTER, VALIDATE
from fedsm.data.dataset import load_site
from fedsm.data.site_folder import list_pairs
from fedsm.data.split import split_by_patient
from fedsm.selectors.descriptor import describe
from fedsm.tracks import server_tracks
from fedsm.tracks.base import TRAIN
from tests.helpers.hostile_server import SITE, meta_of, real_site, refusal, register, same
from tests.helpers.small_jobs import small_settings, write_site

IMAGES, SEEDS = 14, range(24)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospital")
    write_site(folder, IMAGES, 3)
    return folder


def truth(data) -> torch.Tensor:
    """(14, 63): the descriptor of each image, in the order of the files."""
    parts = load_site(data, SITE, small_settings())
    split = split_by_patient([p.stem for p in list_pairs(data, SITE)], 0, SITE)
    rows = torch.empty(IMAGES, 63, dtype=torch.float64)
    for part, numbers in split.items():
        rows[numbers] = describe(parts[part].images)
    return rows


def solved(sums: dict[int, dict]) -> torch.Tensor:
    """What an attacker makes of the sums by seed: it knows the site's name and guesses the number of its files."""
    names = [f"{i:03d}" for i in range(IMAGES)]
    chosen = torch.zeros(len(sums), IMAGES, dtype=torch.float64)
    for row, seed in enumerate(sums):
        chosen[row, split_by_patient(names, seed, SITE)["train"]] = 1
    return torch.linalg.pinv(chosen) @ torch.stack([s["sum"] for s in sums.values()])


def job(seed: int = 0, **given):
    return small_settings(seed=seed, selector="statistics", **given)


def test_a_real_site_sends_the_same_sums_whatever_the_seed(tmp_path, data):
    place = real_site(tmp_path, data)
    sums = {seed: register(place, job(seed), run=seed) for seed in SEEDS}
    assert all(same(sums[0], other) for other in sums.values())
    assert (solved(sums) - truth(data)).abs().max() > 0.01, "the equations say nothing about single images"
    assert not (tmp_path / "fedsm_state" / SITE / "seed_7").exists()
    simulated = tmp_path / "root"
    simulated.mkdir()
    (simulated / SITE).symlink_to(data)
    (tmp_path / "sim").mkdir()
    (tmp_path / "sim" / "fedsm_site.yaml").write_text(f"data_root: {simulated}\n")
    in_simulator = SiteLocation(str(tmp_path / "sim"), str(tmp_path / "sim"), SITE, 1)
    assert same(sums[0], register(in_simulator, job())), "seed 0 is the simulator's split"


def test_the_attack_works_where_a_site_allows_other_splits(tmp_path, data):
    """So the test above tests something: with splits by seed and no limit the descriptors come out."""
    place = real_site(tmp_path, data, splits="by_seed", max_statistics=100)
    sums = {seed: register(place, job(seed)) for seed in SEEDS}
    assert (solved(sums) - truth(data)).abs().max() < 1e-9


@pytest.mark.parametrize("text", ["", "# data: /data/retina\n"], ids=["empty", "as_provisioned"])
def test_the_environment_makes_no_hospital_a_site_of_research(tmp_path, data, monkeypatch, text):
    """FEDSM_DATA on the machine of a site that has not written its file: its splits would follow every job's seed."""
    monkeypatch.setenv("FEDSM_DATA", str(data.parent))
    (tmp_path / "fedsm_site.yaml").write_text(text)
    with pytest.raises(UserError, match="no data path") as caught:
        register(SiteLocation(str(tmp_path), str(tmp_path), data.name, 1), job())
    assert "FEDSM_DATA" not in str(caught.value), "nor is it the remedy"


def test_different_sums_are_limited_and_listed(tmp_path, data):
    place = real_site(tmp_path, data, splits="by_seed")
    answers = [refusal(place, job(seed), run=seed) for seed in range(12)]
    assert answers[:10] == [None] * 10 and all(answers[10:])
    assert "raise max_statistics in fedsm_site.yaml" in str(answers[10]) and "releases.json" in str(answers[10])
    assert str(tmp_path) not in answers[10].public and "10 different sums" in answers[10].public
    assert refusal(place, job(3, batch_size=2)) is None, "what was sent may be sent again, however it is rounded"
    ledger = tmp_path / "fedsm_state" / SITE / "statistics_releases.json"
    assert len(json.loads(ledger.read_text())) == 10 and "case_" not in ledger.read_text()
    assert stat.S_IMODE(ledger.stat().st_mode) == 0o600
    ledger.write_text("[")
    assert "restore it" in str(refusal(place, job(3))), "a broken list lets nothing out"


@pytest.mark.parametrize("given", [{"size": 48}, {"overrides": ["task.intensity=percentiles"]}])
def test_other_descriptors_of_the_same_images_count(tmp_path, data, given):
    place = real_site(tmp_path, data, max_statistics=1)
    assert refusal(place, job()) is None and refusal(place, job(5, lr=1e-2)) is None
    assert "max_statistics" in str(refusal(place, job(**given)))


def test_sums_through_a_network_count_too(tmp_path, data):
    """The descriptor `encoder` sends its sums after training, through a network that the server chooses."""
    settings = job(overrides=["tracks.selector.descriptor=encoder"])
    place = real_site(tmp_path, data, max_statistics=1)
    meta = meta_of(settings) | {"round": 1, "tracks": ["global", "selector"]}
    weights = server_tracks(settings, [SITE, "other"])["global"].payload(TRAIN, SITE)
    worker = build_worker(place, REGISTER, meta)
    for shift in (0.0, 0.0, 0.01):
        moved = {k: v + shift if v.is_floating_point() else v.clone() for k, v in weights.items()}
        if shift:
            with pytest.raises(UserError, match="max_statistics"):
                worker.do(VALIDATE, meta, {"global": moved}, lambda: False)
        else:
            assert "selector" in worker.do(VALIDATE, meta, {"global": moved}, lambda: False).tracks


def test_two_at_once_do_not_slip_past_the_limit(tmp_path, data):
    place = real_site(tmp_path, data, splits="by_seed", max_statistics=3)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda seed: refusal(place, job(seed), run=seed), range(8)))
    assert sum(answer is None for answer in answers) == 3


def test_sums_over_a_few_patients_stay_at_home(tmp_path):
    write_site(tmp_path / "data", 8, 0)  # 4 for training
    error = refusal(real_site(tmp_path / "a", tmp_path / "data"), job())
    assert "min_patients" in str(error) and str(tmp_path) not in error.public
    assert refusal(real_site(tmp_path / "b", tmp_path / "data", min_patients=4), job()) is None
    people = "".join(f"case_{i:02d},p{i // 2}\n" for i in range(8))  # two images each
    (tmp_path / "data" / "patients.csv").write_text("file,patient\n" + people)
    assert "2 training patients" in refusal(real_site(tmp_path / "c", tmp_path / "data", min_patients=3), job()).public
