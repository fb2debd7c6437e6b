"""The chaos run's own tools: its accidents, and the replay that judges it."""

import copy
from collections import Counter

import pytest
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from benchmarks.chaos import seen_faults
from benchmarks.chaos_filter import LOST, RUBBISH, ChaosFilter
from benchmarks.chaos_plan import TRAINERS, draw
from benchmarks.chaos_replay import KILLED, accepted_updates, differences, log_errors, lost_updates, replay
from benchmarks.process import Failed
from fedsm.flare import exchange
from tests.helpers.federation import Federation, results_of
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import TOLERANCE

SIX = [f"site-{i}" for i in range(1, 7)]


def test_the_accidents_of_a_seed_are_always_the_same():
    assert draw(3, SIX, 30, 2) == draw(3, SIX, 30, 2) != draw(4, SIX, 30, 2)


@pytest.mark.parametrize("seed", range(20))
def test_a_fifth_is_lost_a_twentieth_rubbish_and_every_round_keeps_its_quorum(seed):
    """6 sites x 30 rounds = 180 site-rounds: 36 lost, 9 rubbish of all kinds, 3 trainers and 1 server."""
    plan = draw(seed, SIX, 30, 2)
    kinds = Counter(kind for by_round in plan.faults.values() for kind in by_round.values())
    assert kinds.pop(LOST) == 36
    assert sum(kinds.values()) == 9 and set(kinds) == set(RUBBISH)
    assert len(plan.trainers) == TRAINERS and plan.server not in plan.trainers
    for number in range(1, 31):
        assert plan.struck(number) + (number in plan.trainers) <= 4
    assert not any(number in plan.faults[site] for number, site in plan.trainers.items()), "or nobody could tell which"


def test_a_blow_that_missed_is_repeated_where_nothing_else_happens():
    plan = draw(0, SIX, 30, 2)
    number = plan.later("site-2", 10, 30, taken={11: "site-1"})
    assert number > 11 and number != plan.server and number not in plan.faults["site-2"]
    assert plan.later("site-2", 30, 30, taken={}) is None


def test_too_few_rounds_are_refused():
    with pytest.raises(Failed, match="too few"):
        draw(0, SIX, 4, 2)


@pytest.fixture(scope="module")
def struck(tmp_path_factory, data_root):
    """Seven rounds of three sites, with an answer lost and one of each kind of rubbish; settings, folder, results."""
    faults = {
        "site-1": {"2": LOST, "5": "nan"},
        "site-2": {"1": "shape", "4": "key"},
        "site-3": {"3": "count", "6": "round"},
    }

    def fault(site, task, shareable, work):
        result = work()
        if task != exchange.TRAIN:
            return result
        with site.manager.new_context() as fl_ctx:
            try:
                return ChaosFilter(faults).process(result, fl_ctx)
            except RuntimeError:
                return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)  # as FLARE answers

    settings = small_settings(rounds=7, lam=0.7, selector="statistics")
    federation = Federation(tmp_path_factory.mktemp("struck"), data_root, settings, SITES, fault=fault).run()
    assert federation.panic is None
    return settings, federation.run_folder, results_of(federation), faults


def test_results_tell_of_every_accident(struck):
    _, _, results, faults = struck
    expected = {(int(number), site): kind for site, by in faults.items() for number, kind in by.items()}
    assert seen_faults(results["validation"]["history"]) == expected


def test_the_replay_of_the_log_reaches_the_same_weights(struck, data_root):
    settings, folder, results, _ = struck
    log = accepted_updates(folder)
    assert not log_errors(log, results)
    lost = lost_updates(results["validation"]["history"])
    apart = differences(folder, replay(data_root, settings, SITES, log, lost))
    assert set(apart) == {"global", *(f"personal.{site}" for site in SITES)}
    assert max(apart.values()) < TOLERANCE


@pytest.mark.parametrize("harm", ["one is left out", "one stands twice", "a lost one moved no Adam"])
def test_the_replay_notices(struck, data_root, harm):
    settings, folder, results, _ = struck
    log, lost = accepted_updates(folder), lost_updates(results["validation"]["history"])
    victim = next(i for i, line in enumerate(log) if (line["round"], line["site"]) == (7, "site-1"))
    if harm == "one is left out":
        del log[victim]
    elif harm == "one stands twice":
        log.insert(victim, log[victim])
    else:
        del lost[4]
    assert (harm == "a lost one moved no Adam") != bool(log_errors(log, results))
    apart = differences(folder, replay(data_root, settings, SITES, log, lost))
    assert max(apart.values()) > 10 * TOLERANCE


def test_a_log_with_another_weight_is_noticed(struck):
    _, folder, results, _ = struck
    log = copy.deepcopy(accepted_updates(folder))
    log[0]["n_images"] += 1
    assert len(log_errors(log, results)) == 1


def test_a_killed_trainer_has_not_trained_unless_its_state_was_written():
    rows = [{"round": 2, "missing": {"site-1": f"the trainer process {KILLED} (fedsm_train of round 2)"}}]
    assert lost_updates(rows) == {}
    assert lost_updates(rows, {(2, "site-1")}) == {2: ["site-1"]}
    with pytest.raises(Failed, match="no answer within"):
        lost_updates([{"round": 2, "missing": {"site-1": "no answer within 60 s"}}])
