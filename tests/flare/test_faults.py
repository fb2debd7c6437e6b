"""What the sites may do wrong, through the real controller and task server."""

import logging
import threading
import time

import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from fedsm.flare import exchange
from fedsm.flare.compat.client_tasks import ClientTasks
from fedsm.flare.inbox import Inbox
from tests.helpers.federation import Federation, in_round, results_of
from tests.helpers.plain_loop import largest_difference
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import last_weights


def test_a_failing_site_costs_its_own_round_only(tmp_path, data_root):
    def fault(site, task, shareable, work):
        if site.name == "site-2" and task == exchange.TRAIN and in_round(shareable) == 2:
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return work()

    federation = Federation(tmp_path, data_root, small_settings(), SITES, fault=fault).run()
    assert federation.panic is None
    history = results_of(federation)["validation"]["history"]
    assert [row["answered"] for row in history] == [SITES, ["site-1", "site-3"], SITES]
    assert history[1]["missing"] == {"site-2": ReturnCode.EXECUTION_EXCEPTION}
    assert results_of(federation)["wire"]["up_bytes"]["site-2"][1] == 0


def test_rubbish_is_refused_by_name_and_the_model_unharmed(tmp_path, data_root):
    def fault(site, task, shareable, work):
        result = work()
        if site.name == "site-3" and task == exchange.TRAIN:
            for part in result["DXO"]["data"].values():
                part.data = {k: v * float("nan") for k, v in part.data.items()}
        return result

    federation = Federation(tmp_path, data_root, small_settings(), SITES, fault=fault).run()
    for weights in last_weights(federation.run_folder).values():
        assert all(torch.isfinite(t).all() for t in weights.values())
    for row in results_of(federation)["validation"]["history"]:
        assert "NaN" in row["missing"]["site-3"]


def test_a_round_closes_at_its_deadline_and_the_late_answer_is_refused(tmp_path, data_root, caplog):
    """Site 1 answers the task of round 1 only when the others are at work in round 2."""
    next_round, late = threading.Event(), threading.Event()

    def fault(site, task, shareable, work):
        result = work()
        if task == exchange.TRAIN and in_round(shareable) == 2:
            next_round.set()
        if site.name == "site-1" and task == exchange.TRAIN and in_round(shareable) == 1:
            next_round.wait(600)
            late.set()
        return result

    settings = small_settings(round_timeout=6, rounds=3)
    federation = Federation(tmp_path, data_root, settings, SITES, fault=fault).run()
    assert federation.panic is None
    history = results_of(federation)["validation"]["history"]
    assert history[0]["missing"] == {"site-1": "no answer within 6 s"}
    assert late.is_set()
    assert "came too late" in caplog.text
    assert "site-1" in history[-1]["answered"], "it is invited again"


def test_below_min_sites_the_job_stops_and_names_the_reasons(tmp_path, data_root):
    def fault(site, task, shareable, work):
        if site.name != "site-1" and task == exchange.TRAIN and in_round(shareable) == 2:
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return work()

    settings = small_settings(min_sites=2, round_retries=0)
    federation = Federation(tmp_path, data_root, settings, SITES, fault=fault).run()
    assert "round 2: 1 of 3 sites gave a good answer, min_sites is 2" in federation.panic
    assert "(site-2, site-3: EXECUTION_EXCEPTION)" in federation.panic
    assert not (federation.run_folder / "results.json").exists()
    assert (federation.run_folder / "checkpoints" / "round_000001.json").exists()


def test_a_site_that_registers_late_joins(tmp_path, data_root):
    failed = []

    def fault(site, task, shareable, work):
        if site.name == "site-2" and task == exchange.REGISTER and not failed:
            failed.append(1)
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return work()

    federation = Federation(tmp_path, data_root, small_settings(rounds=2), SITES, fault=fault).run()
    assert federation.panic is None
    assert results_of(federation)["validation"]["history"][0]["answered"] == SITES


def test_a_client_that_fetches_its_task_twice_does_not_hang_the_job(tmp_path, data_root):
    """FLARE 2.9 appends the client's entry twice then; without the guard its monitor thread dies."""

    def fault(site, task, shareable, work):
        if site.name == "site-1" and task == exchange.TRAIN:
            again, _, second = site.fetch()
            assert (again, in_round(second)) == (task, in_round(shareable))
        return work()

    done = threading.Event()
    federation = Federation(tmp_path, data_root, small_settings(), SITES, fault=fault)
    thread = threading.Thread(target=lambda: (federation.run(), done.set()), daemon=True)
    thread.start()
    assert done.wait(600), "the job hangs"
    assert federation.monitor_alive, "without it no dead site is noticed and no standing task is ever removed"
    assert len(results_of(federation)["validation"]["history"]) == 3


def test_the_order_of_arrival_does_not_show(tmp_path, data_root):
    """The first site answers last in one run and first in the other: bit for bit the same weights."""

    def slow(name):
        def fault(site, task, shareable, work):
            result = work()
            time.sleep(0.5 if site.name == name else 0)
            return result

        return fault

    settings = small_settings(selector="gradient", rounds=2)
    first = Federation(tmp_path / "first", data_root, settings, SITES, fault=slow("site-1")).run()
    last = Federation(tmp_path / "last", data_root, settings, SITES, fault=slow("site-3")).run()
    a, b = last_weights(first.run_folder), last_weights(last.run_folder)
    for model in a:
        assert largest_difference(a[model], b[model]) == 0, model


def test_inbox_hands_on_in_order_and_nothing_after_it_was_closed():
    taken = []
    inbox = Inbox(["a", "b", "c"], lambda result, fl_ctx: taken.append(result))
    assert inbox.put("b", "B", None) and taken == []
    assert inbox.put("a", "A", None) and taken == ["A", "B"]
    inbox.close()
    assert not inbox.put("c", "C", None)
    gap = Inbox(["a", "b", "c"], lambda result, fl_ctx: taken.append(result))
    gap.put("c", "C", None)
    gap.close()
    assert taken == ["A", "B", "C"], "a missing site does not hold back the others for ever"


def test_client_tasks_hold_each_entry_once():
    entries, entry = ClientTasks(), object()
    entries.append(entry)
    entries.append(entry)
    assert len(entries) == 1


def test_a_round_that_diverges_costs_the_site_that_round_only(tmp_path, data_root, monkeypatch):
    """NaN weights are neither sent nor kept: the next round goes on from the last good moments."""

    def poison(site, task, shareable, work):
        if site.name == "site-2" and task == exchange.TRAIN and in_round(shareable) == 2:
            trainer = site.executor._trainer
            parameter = next(iter(trainer.tracks["personal"].net.parameters()))
            hook = parameter.register_hook(lambda g: g * float("nan"))
            result = work()
            hook.remove()
            return result
        return work()

    federation = Federation(tmp_path, data_root, small_settings(rounds=4), SITES, fault=poison).run()
    history = results_of(federation)["validation"]["history"]
    assert "diverged in round 2" in history[1]["missing"]["site-2"]
    assert [row["answered"] for row in history[2:]] == [SITES, SITES]


def test_a_round_that_fails_midway_leaves_no_half_advanced_moments(tmp_path, data_root):
    """The same failure in round 2, once with the process kept and once with a new one: the same weights."""
    runs = []
    for restart in (False, True):

        def fault(site, task, shareable, work, restart=restart):
            if site.name == "site-1" and task == exchange.TRAIN and in_round(shareable) == 2:
                track = site.executor._trainer.tracks["personal"]
                step, calls = track.step, iter(range(99))
                track.step = lambda *batch: 1 / 0 if next(calls) == 1 else step(*batch)
                result = work()
                track.step = step
                if restart:
                    site.restart()
                return result
            return work()

        folder = tmp_path / str(restart)
        runs.append(Federation(folder, data_root, small_settings(rounds=4), SITES, fault=fault).run())
    a, b = (last_weights(run.run_folder) for run in runs)
    for model in a:
        assert largest_difference(a[model], b[model]) == 0, model


def test_lam_one_is_local_training(tmp_path, data_root):
    """With lam = 1 a site's personal model does not depend on who else takes part."""
    settings = small_settings(lam=1.0)
    three = Federation(tmp_path / "three", data_root, settings, SITES).run()
    two = Federation(tmp_path / "two", data_root, settings, SITES[:2]).run()
    a, b = last_weights(three.run_folder), last_weights(two.run_folder)
    assert largest_difference(a["personal.site-1"], b["personal.site-1"]) == 0


def test_nothing_but_numbers_leaves_a_site(tmp_path, data_root, caplog):
    """No file name and no path in anything the server receives or writes, even when a site fails over a file."""
    received = []

    def fault(site, task, shareable, work):
        if site.name == "site-2" and task == exchange.REGISTER:
            site.federation.data = data_root
            (tmp_path / "site-2" / "local" / "fedsm_site.yaml").write_text(f"data: {tmp_path}/secret_folder/site-2\n")
        result = work()
        received.append(repr(dict(result)))
        return result

    federation = Federation(tmp_path, data_root, small_settings(rounds=1), SITES, fault=fault).run()
    assert results_of(federation)["validation"]["history"][0]["missing"]["site-2"].startswith("not registered: ")
    errors = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert errors and not any("secret_folder" in e for e in errors), "kits stream the log of errors to the server"
    assert "secret_folder" in caplog.text, "the site's own log names the folder"
    written = [p.read_text(errors="ignore") for p in federation.run_folder.rglob("*") if p.is_file()]
    for text in received + written:
        assert "secret_folder" not in text
        assert "case_0" not in text
        assert str(data_root) not in text
