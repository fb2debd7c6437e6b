"""What is usual was decided by too few: by the only site whose update was not zero (the ensemble's first round, in
which every honest selector stays as it is), and by a site that was refused and asked again, once for each time. And it
could never grow: one site with the gradient selector's updates turned round ended the run of six."""

import torch

from fedsm.server.guard import NormGuard
from tests.helpers.federation import Federation, in_round, results_of
from tests.helpers.hostile import HOSTILE, TRAIN
from tests.helpers.small_jobs import SITES, small_settings


def guard(history=None) -> NormGuard:
    return NormGuard("clip", 5.0, history)


def test_one_norm_beside_zeros_is_no_measure():
    """Five of six sites changed nothing: what the sixth sends is measured by the least norm, 1e-6 * sqrt(entries)."""
    judge = guard()
    for site, norm in enumerate([0.0] * 5 + [1e15]):
        judge.note("selector", str(site), norm)
    assert judge.usual("selector", 10**6) == 1e-3
    judge.close({"selector": [0.0] * 5 + [1e15]})
    assert not judge.knows("selector"), "nor is it one for later rounds"


def test_zeros_of_a_few_sites_do_not_count():
    judge = guard({"global": [[0.0, 2.0, 4.0, 6.0]]})
    assert judge.knows("global") and judge.usual("global", 1) == 4.0


def test_who_is_asked_again_has_one_vote():
    """Norms 1, 1 and 1e6, and the last one again and again: the median stays 1."""
    judge = guard()
    for site, norm in (("a", 1.0), ("b", 1.0), ("c", 1e6), ("c", 1e6), ("c", 1e6), ("c", 1e6)):
        judge.note("global", site, norm)
    assert judge.usual("global", 1) == 1.0


def test_the_ensembles_first_round_is_nobodys(tmp_path, data_root):
    """The hostile site sends a selector of norm 1e12 in round 1, where those of the others are zero."""

    def seize(site, task, shareable, work):
        result = work()
        if site.name == HOSTILE and task == TRAIN and in_round(shareable) == 1:
            selector = result["DXO"]["data"]["selector"]
            selector.data = {k: torch.full_like(v, 1e9) for k, v in selector.data.items()}
        return result

    settings = small_settings(rounds=2, selector="ensemble")
    federation = Federation(tmp_path, data_root, settings, SITES, fault=seize).run()
    assert federation.panic is None
    assert [(e["round"], e["site"]) for e in results_of(federation)["refused"]] == [(1, HOSTILE)]


def test_asking_again_does_not_let_a_norm_in(tmp_path, data_root, monkeypatch):
    """All three sites are needed; the hostile one is refused and asked again with the same answer."""
    monkeypatch.setattr("fedsm.flare.task_runner.RETRY_PAUSE", 0.0)

    def boost(site, task, shareable, work):
        result = work()
        if site.name == HOSTILE and task == TRAIN:
            for part in result["DXO"]["data"].values():
                part.data = {k: v * 1e6 for k, v in part.data.items()}
        return result

    settings = small_settings(rounds=1, method="fedavg", min_sites=3)
    federation = Federation(tmp_path, data_root, settings, SITES, fault=boost).run()
    assert federation.panic is not None and HOSTILE in federation.panic and "far above the usual" in federation.panic


def test_where_all_go_further_the_measure_follows():
    """Found by a run: norms grew fivefold a round, were scaled down to 1, only the 1 was remembered, and in round 7
    five of six sites were refused for good. Now 1, 10, 100, ... is followed; one site among them changes nothing."""
    judge = guard()
    judge.close({"selector": [1.0] * 6})
    for exponent in range(1, 8):
        norm = 10.0**exponent
        assert norm < judge.absurd(judge.usual("selector", 1)), exponent
        judge.close({"selector": [norm] * 5 + [1e15]}, {"selector": [norm / 10] * 5})
    assert judge.usual("selector", 1) == 1e7


def test_one_of_two_does_not_lead_the_measure():
    judge = guard()
    for _ in range(5):
        judge.close({"global": [1.0, 400.0]}, {"global": [1.0, 1.0]})
    assert judge.usual("global", 1) == 1.0
