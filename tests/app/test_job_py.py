"""`app_fedsm/job.py`: the sites are the folders of --data, and what it prints can be given to `fedsm predict`."""

import sys
from types import SimpleNamespace

import pytest

from app_fedsm import job

HOSPITALS = ["fluor-256", "fluor-360", "histology"]  # not two, which is PocEnv's default


def run_job(monkeypatch, tmp_path, *arguments) -> list:
    """The environments that the job was run in; FLARE is not started, and its answer is `/flare`."""
    for name in HOSPITALS:
        (tmp_path / name).mkdir(exist_ok=True)
    ran: list = []
    answer = SimpleNamespace(get_result=lambda clean_up: "/flare")
    monkeypatch.setattr(job.FedSMRecipe, "execute", lambda self, env: ran.append(env) or answer)
    monkeypatch.setattr(sys, "argv", ["job.py", "--data", str(tmp_path), *arguments])
    job.main()
    return ran


@pytest.mark.parametrize(("where", "below"), [("sim", "server/simulate_job"), ("poc", "workspace")])
def test_the_sites_are_called_as_their_folders(monkeypatch, tmp_path, capsys, where, below):
    (env,) = run_job(monkeypatch, tmp_path, "--env", where)
    assert env.clients == HOSPITALS
    assert f"results: /flare/{below}" in capsys.readouterr().out


def test_no_data(monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        run_job(monkeypatch, tmp_path, "--data", str(tmp_path / "nowhere"))
    assert ended.value.code == 2 and capsys.readouterr().err.count("\n") == 1
