"""SoftPull's options: the federated run equals the formulas, written as plain loops."""

import pytest

from fedsm.flare import exchange
from fedsm.nets import build_unet
from fedsm.tracks.fedbn import norm_entries
from tests.helpers import plain_pulls as plain
from tests.helpers.federation import Federation, in_round, results_of
from tests.helpers.plain_loop import algorithm_1, fed_avg, largest_difference, soft_pull
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import TOLERANCE, last_weights

LAM = 0.7


def run(folder, data_root, options: dict, fault=None):
    overrides = [f"tracks.personal.{key}={value}" for key, value in options.items()]
    settings = small_settings(selector="statistics", lam=LAM, rounds=3, overrides=overrides)
    federation = Federation(folder, data_root, settings, SITES, fault=fault).run()
    assert federation.panic is None
    return federation, settings


def assert_equal(federation, expected: dict) -> None:
    weights = last_weights(federation.run_folder)
    for site in SITES:
        assert largest_difference(weights[f"personal.{site}"], expected[f"personal.{site}"]) < TOLERANCE, site


@pytest.mark.parametrize("missing", [False, True], ids=["all", "one missing"])
def test_similarity(tmp_path, data_root, missing):
    """The second time site 2 misses round 2: it keeps its model, and the others are pulled as two."""

    def fault(site, task, shareable, work):
        lost = missing and site.name == SITES[1] and task == exchange.TRAIN and in_round(shareable) == 2
        return exchange.pack({}, {"round": 2}) if lost else work()

    federation, settings = run(tmp_path, data_root, {"pull": "similarity"}, fault)
    s = plain.similarity(data_root, settings, SITES)
    present = {2: [SITES[0], SITES[2]]} if missing else {}
    here = [[SITES.index(site) for site in present.get(number, SITES)] for number in (1, 2, 3)]
    merge = (fed_avg, plain.pull_by(s, here))
    expected = algorithm_1(data_root, settings, SITES, LAM, "statistics", present, merge=merge)
    assert_equal(federation, expected)
    uniform = algorithm_1(data_root, settings, SITES, LAM, "statistics", present)
    assert largest_difference(expected["personal.site-1"], uniform["personal.site-1"]) > 10 * TOLERANCE

    results = results_of(federation)
    shares = results["tracks"]["personal"]["pull"]
    for k, site in enumerate(SITES):
        total = sum(s[k, j] for j in range(3) if j != k)
        assert shares[site] == pytest.approx({o: s[k, j] / total for j, o in enumerate(SITES) if j != k}, abs=1e-4)
    one = results["wire"]
    assert set(one["registration_up_bytes"].values()) == {16_640}, "not a byte more than without"


@pytest.mark.parametrize("pull", ["uniform", "similarity"])
def test_own_norm_layers(tmp_path, data_root, pull):
    federation, settings = run(tmp_path, data_root, {"norm": "own", "pull": pull})
    norms = norm_entries(build_unet(settings.task))
    assert norms
    s = plain.similarity(data_root, settings, SITES)
    inner = soft_pull if pull == "uniform" else plain.pull_by(s, [[0, 1, 2]] * 3)
    expected = algorithm_1(
        data_root, settings, SITES, LAM, "statistics", merge=(fed_avg, plain.keeping(norms, inner))
    )  # fmt: skip
    assert_equal(federation, expected)


def test_the_last_round_alone(tmp_path, data_root):
    federation, settings = run(tmp_path, data_root, {"alone": 0.3})
    merge = (fed_avg, plain.until(2, soft_pull))
    assert_equal(federation, algorithm_1(data_root, settings, SITES, LAM, "statistics", merge=merge))
