"""Row 17: late answers brought terminal escapes into log and bar, and made every checkpoint grow without bound."""

import json

from nvflare.apis.client import Client
from nvflare.apis.shareable import Shareable

from fedsm.server.record import MOST_NOTES
from tests.helpers.attack_jobs import run_evaluation
from tests.helpers.federation import Federation, results_of
from tests.helpers.hostile import HOSTILE, TRAIN
from tests.helpers.small_jobs import SITES, small_settings

FLOOD = 2000
ESCAPE = "\x1b[2J\nfedsm round=9 site=site-1 refused: it is the others"


def test_a_flood_of_late_answers_is_counted_and_has_no_effect_on_a_terminal(tmp_path, data_root, caplog):
    sent = []

    def flood(site, task, shareable, work):
        if site.name == HOSTILE and task == TRAIN and not sent:
            sent.append(True)
            for _ in range(FLOOD):
                federation.controller.process_result_of_unknown_task(
                    Client(HOSTILE, "token"), ESCAPE, "id", Shareable(), federation.server_context(site)
                )
        return work()

    federation = Federation(tmp_path, data_root, small_settings(rounds=2), SITES, fault=flood)
    federation.run()
    results = results_of(federation)
    assert len(results["refused"]) == MOST_NOTES and results["uncounted"] == {HOSTILE: FLOOD - MOST_NOTES}
    assert {entry["site"] for entry in results["refused"]} == {HOSTILE}
    assert all(entry["reason"].isprintable() for entry in results["refused"])
    said = [record.getMessage() for record in caplog.records if "too late" in record.getMessage()]
    assert 0 < len(said) <= MOST_NOTES and all(line.isprintable() for line in said)
    (newest,) = sorted((federation.run_folder / "checkpoints").glob("round_*.json"))[-1:]
    assert newest.stat().st_size < 100_000
    told = [json.loads(line) for line in (federation.run_folder / "progress.jsonl").read_text().splitlines()]
    assert sum(event["event"] == "refused" for event in told) == MOST_NOTES


def test_the_same_in_an_evaluation(tmp_path, data_root, caplog):
    """A line of the log for each site, whatever it sends."""

    def flood(site, task, shareable, work):
        if site.name == HOSTILE:
            for _ in range(FLOOD):
                site.federation.controller.process_result_of_unknown_task(
                    Client(HOSTILE, "token"), ESCAPE, "id", Shareable(), site.federation.server_context(site)
                )
        return work()

    assert run_evaluation(tmp_path, data_root, flood).panic is None
    (line,) = [record.getMessage() for record in caplog.records if "too late" in record.getMessage()]
    assert line.isprintable()
