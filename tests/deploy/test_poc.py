"""`fedsm poc`: a server and three sites as processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from app_fedsm.cli.main import main
from app_fedsm.cli.status import summary
from app_fedsm.federation.poc import Poc
from fedsm.core.errors import UserError
from tests.helpers.assertions import assert_equals_plain_loop, assert_same_means
from tests.helpers.json_output import ask
from tests.helpers.processes import free_port, kill_all, processes_of
from tests.helpers.small_jobs import SITES, SMALL


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("poc")
    yield folder
    kill_all(folder)


def artefacts_by_nvflare(job: str, kit: Path, folder: Path) -> tuple[dict, list[str]]:
    """What FLARE's own command finds in a result, and what it misses."""
    command = [sys.executable, "-m", "nvflare.cli", "--format", "json", "job", "download", job, "-o", str(folder)]
    told = subprocess.run([*command, "--startup-kit", str(kit)], capture_output=True, text=True, check=True)
    data = json.loads(told.stdout)["data"]
    return data["artifacts"], data["missing_artifacts"]


@pytest.mark.process
def test_up_submit_status_down(folder, data_root, capsys, monkeypatch):
    """The whole way, on real processes. The same seed gives the weights of the plain loop, hence the simulator's."""
    poc, port, out = str(folder / "poc"), str(free_port()), folder / "run"
    here = ["--dir", poc]
    submit = ["poc", "submit", *here, *SMALL, "--rounds", "3", "--selector", "gradient", "--out", str(out)]
    assert main(["poc", "status", *here]) == 2 and "poc up" in capsys.readouterr().err

    assert main(["poc", "up", *here, "--data", str(data_root), "--port", port]) == 0
    assert main(["poc", "up", *here, "--data", str(data_root), "--port", port]) == 0, "again: nothing to do"
    assert main(["poc", "up", *here, "--port", str(free_port())]) == 2, "another POC is not made over it"
    capsys.readouterr()
    answer, err = ask(capsys, *submit)
    assert (answer["data"]["state"], answer["data"]["rounds_done"]) == ("finished", 3) and "FedSM" in err
    assert answer["data"]["job_id"] and answer["data"]["super_model"] == str(out / "super_model")
    assert main(submit) == 2 and "already holds a run" in capsys.readouterr().err

    assert_equals_plain_loop(out, data_root, rounds=3)
    assert {p.name for p in out.iterdir()} >= {
        "results.json",
        "super_model",
        "checkpoints",
        "progress.jsonl",
        "tb_events",
        "metrics",
        "cross_site_val",
        "artifact_manifest.json",
    }
    kit = Poc(folder / "poc").kits / "site-2"
    told = ask(capsys, "verify", out, "--kit", kit)[0]["data"]
    assert told["verified"] and told["record"]["submitter"]["name"] == "lead@fedsm.org", "by real certificates"
    job = json.loads((out / "run.json").read_text())["job_id"]
    found, missing = artefacts_by_nvflare(job, Poc(folder / "poc").lead, folder / "by_nvflare")
    assert missing == ["client_logs"] and found["global_model"].endswith("/super_model/global.safetensors")
    assert json.loads(Path(found["metrics_summary"]).read_text())["final_round"] == 3
    assert len(Path(found["round_metrics"]).read_text().splitlines()) == 3
    events = [json.loads(line) for line in (out / "progress.jsonl").read_text().splitlines()]
    assert summary(events).startswith("round 3 of 3 done, 3 of 3 sites answered, validation Dice global")
    assert main(["status", str(out)]) == 0 and "round 3 of 3 done" in capsys.readouterr().out
    assert main(["poc", "status", *here]) == 0
    told = capsys.readouterr().out
    assert f"3 sites connected: {', '.join(SITES)}" in told and "FINISHED:COMPLETED" in told
    status = ask(capsys, "poc", "status", *here)[0]["data"]
    assert (status["connected"], status["not_connected"]) == (SITES, [])
    (listed,) = status["jobs"]
    assert (listed["state"], listed["job_id"], listed["name"]) == (
        "finished",
        answer["data"]["job_id"],
        "fedsm_retinal",
    )

    model, at_home, federated = str(out / "super_model"), folder / "at_home", folder / "federated"
    assert main(["evaluate", model, str(data_root), "-o", str(at_home)]) == 0
    monkeypatch.chdir(folder)
    answer, err = ask(capsys, "evaluate", model, "--env", "poc", *here, "-o", federated.name)  # also a relative path
    assert "all tables" in err and answer["data"]["files"]["json"] == str(federated / "evaluation.json")
    assert_same_means(*(json.loads((f / "evaluation.json").read_text()) for f in (at_home, federated)))
    assert {p.name for p in federated.iterdir()} == {
        "evaluation.json", "evaluation.md", "evaluation.csv", "MODEL_CARD.md", "evaluation.log",
    }  # fmt: skip

    audit = ask(capsys, "privacy", "audit", out, "--env", "poc", *here)[0]["data"]["audit"]
    assert set(audit["attacks"]) == set(SITES) and audit["missing"] == {}, "each site attacked at home"
    assert main(["verify", str(out)]) == 0, "what commands write into a run later is not in its record"

    lost = Poc(folder / "poc").kits / "site-2"
    for process in processes_of(lost):
        process.suspend()  # its connection stands, and it says nothing
    assert main([*submit[:-1], str(folder / "other")]) == 2
    assert "not connected to the server: site-2" in capsys.readouterr().err
    kill_all(lost)
    assert not (folder / "other" / "run.json").exists()
    assert main(["evaluate", model, "--env", "poc", *here, "-o", str(folder / "third")]) == 2
    assert "not connected to the server: site-2" in capsys.readouterr().err and not (folder / "third").exists()

    assert main(["poc", "down", *here]) == 0
    assert not processes_of(folder / "poc"), "everything that was started has ended"
    assert not (folder / "poc" / "flare").exists() and (out / "results.json").is_file()
    assert main(["poc", "down", *here]) == 2


def test_a_taken_port_and_a_foreign_folder_are_refused(tmp_path, data_root):
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        with pytest.raises(UserError, match="port .* in use; .* --port"):
            Poc(tmp_path / "poc").prepare(data_root, SITES, s.getsockname()[1], None)
    (tmp_path / "mine" / "flare").mkdir(parents=True)
    (tmp_path / "mine" / "flare" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="is not a POC of `fedsm poc`"):
        Poc(tmp_path / "mine").prepare(data_root, SITES, free_port(), None)
    assert (tmp_path / "mine" / "flare" / "thesis.tex").is_file()
    with pytest.raises(UserError, match="blanks"):
        Poc(tmp_path / "with blanks")


def test_summary_says_who_is_missing_and_how_long_it_takes():
    """Rounds of 60, 120 and 180 s: the median is 120, two rounds are left: 4 min."""
    names = {"global": "Dice", "selector": "accuracy"}
    events = [{"event": "started", "sites": ["a", "b", "c"], "rounds": 5, "round": 0, "scores": names}]
    assert summary([]) == "starting"
    assert summary(events) == "round 0 of 5 done, 3 sites"
    for number, seconds in enumerate((60, 120, 180), start=1):
        events.append({
            "event": "round", "round": number, "seconds": seconds, "answered": ["a", "b"],
            "missing": {"c": "no answer"}, "score": {"global": 0.5, "selector": 0.9} if number == 2 else {},
        })  # fmt: skip
    assert summary(events) == (
        "round 3 of 5 done, 2 of 3 sites answered, c missing: no answer, validation Dice global 0.500,"
        " validation accuracy selector 0.900, about 4 min of training left"
    )
    assert summary([*events, {"event": "failed", "reason": "no quorum"}]).endswith("failed: no quorum")
