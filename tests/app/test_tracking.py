"""Where the curves go: what is refused before anything starts, and what a job carries."""

import http.server
import json
import sys
import threading

import pytest
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.fuel.utils.class_utils import load_class

from app_fedsm.cli.main import main
from app_fedsm.recipes import FedSMRecipe
from app_fedsm.tracking import Tracking, choose_tracking, noted_tracking
from fedsm.core.components import NOT_ALLOWED, SERVER_CLASSES
from fedsm.core.errors import UserError
from fedsm.flare.curves import check_receiver
from tests.helpers.federation import Federation
from tests.helpers.processes import free_port
from tests.helpers.small_jobs import SITES, SMALL, small_settings


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server():
    """A web server that answers every request with 404: it is there."""
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


def components(folder, **given) -> list[dict]:
    FedSMRecipe("job", settings=small_settings(), **given).export(str(folder))
    return json.loads((folder / "job/app/config/config_fed_server.json").read_text())["components"]


def test_each_kind_is_one_of_flares_own_receivers_and_allowed_by_a_kit(tmp_path):
    for kind, name in {
        "tensorboard": "TBAnalyticsReceiver",
        "mlflow": "MLflowReceiver",
        "wandb": "WandBReceiver",
    }.items():
        (receiver,) = [c for c in components(tmp_path / kind, track=kind) if c["id"] == kind]
        assert name in [cls.__name__ for cls in load_class(receiver["path"]).__mro__]
        assert receiver["path"] in {*DEFAULT_CLASS_ALLOW_LIST, *SERVER_CLASSES} - {*NOT_ALLOWED}
    assert [c["id"] for c in components(tmp_path / "none", track="none")] == ["aggregator"]
    assert [c["id"] for c in components(tmp_path / "default")] == ["aggregator", "tensorboard"]


@pytest.mark.parametrize("kind", ["mlflow", "wandb"])
def test_a_package_that_is_not_installed_is_said_at_once(kind, tmp_path, data_root, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, kind, None)
    out = tmp_path / "run"
    assert main(["run", *SMALL, "--data", str(data_root), "--out", str(out), "--track", kind]) == 2
    assert capsys.readouterr().err == f"fedsm: error: {kind} needs the package {kind}; pip install 'fedsm[{kind}]'\n"
    assert not out.exists()


def test_an_mlflow_server_that_is_not_there_is_said_before_anything_starts(tmp_path, data_root, capsys):
    address, out = f"http://127.0.0.1:{free_port()}", tmp_path / "run"
    run = ["run", *SMALL, "--data", str(data_root), "--out", str(out), "--track", "mlflow", "--track-uri", address]
    assert main(run) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and f"no MLflow server answers at {address} (" in told
    assert not out.exists()


def test_the_environment_may_name_the_server(tmp_path, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{server}/")
    chosen = choose_tracking("mlflow")
    chosen.check_answers()
    (receiver,) = [c for c in components(tmp_path, track=chosen) if c["id"] == "mlflow"]
    assert receiver["args"]["tracking_uri"] == server
    assert choose_tracking() == Tracking(), "it means nothing to the others"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("csv", None), "track 'csv' is none of tensorboard, mlflow, wandb, none"),
        (("wandb", "http://localhost:5000"), "the curves go to wandb"),
        ((None, "http://localhost:5000"), "the curves go to tensorboard"),
        (("mlflow", "localhost:5000"), "--track-uri is not the address of a server; for example http://localhost:5000"),
        (("mlflow", "sqlite:////etc/x"), "is not the address of a server"),
        (("mlflow", "http://localhost:many"), "is not the address of a server"),
    ],
)
def test_what_cannot_be_used_is_refused(given, words):
    with pytest.raises(UserError) as e:
        choose_tracking(*given)
    assert words in str(e.value)


@pytest.mark.parametrize(
    "secret", ["http://me:s3cret@mlflow.org", "https://s3cret@mlflow.org", "http://mlflow.org?t=s3cret"]
)
@pytest.mark.parametrize("variable", [True, False])
def test_an_address_with_a_secret_is_refused_and_not_shown(secret, variable, monkeypatch):
    if variable:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", secret)
    with pytest.raises(UserError) as e:
        choose_tracking("mlflow", None if variable else secret)
    assert "s3cret" not in str(e.value) and "MLFLOW_TRACKING_TOKEN, where the job's server runs" in str(e.value)


def test_no_secret_of_the_environment_gets_into_a_job(tmp_path, monkeypatch):
    secret = "5ec2e7" * 7
    for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, secret)
    for kind in ("mlflow", "wandb"):
        components(tmp_path / kind, track=kind)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not [path for path in files if secret in path.read_text(errors="replace")]


def test_wandb_goes_online_where_its_own_variable_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    (receiver,) = [c for c in components(tmp_path, track="wandb") if c["id"] == "wandb"]
    assert receiver["args"]["mode"] == "online"
    monkeypatch.setenv("WANDB_MODE", "shared")
    with pytest.raises(UserError, match="WANDB_MODE is 'shared'; write online or offline"):
        choose_tracking("wandb")


def test_a_resumed_run_goes_on_with_its_own_tracking():
    for tracking in (Tracking(), Tracking("mlflow", "http://mlflow.org"), Tracking("wandb", mode="online")):
        assert noted_tracking(json.loads(json.dumps(tracking.note()))) == tracking
    assert noted_tracking({}) == Tracking(), "of an earlier version"
    with pytest.raises(UserError, match="run.json is not the address"):
        noted_tracking({"track": "mlflow", "track_uri": "file:///etc"})


def test_the_server_looks_itself_whether_the_address_answers(tmp_path, data_root, server):
    """A job of `fedsm submit` comes from another machine: its server ends it before a site is asked for anything."""
    from app_fedsm.tracking import receiver_of

    settings = small_settings(rounds=1)
    gone = Tracking("mlflow", f"http://127.0.0.1:{free_port()}")
    run = Federation(tmp_path, data_root, settings, SITES, components={"mlflow": receiver_of(gone, "job", settings)})
    run.run()
    assert (
        run.panic
        == f"no MLflow server answers at {gone.uri} ([Errno 111] Connection refused); start it, or correct the address"
    )
    assert not (run.run_folder / "checkpoints").exists()
    here = receiver_of(Tracking("mlflow", server), "job", settings)
    check_receiver(
        Federation(tmp_path / "b", data_root, settings, SITES, components={"mlflow": here}).server_context(
            run.sites["site-1"]
        )
    )


def test_a_centralized_run_has_no_curves(tmp_path, data_root, capsys):
    command = ["run", *SMALL[:2], "--method", "centralized", "--data", str(data_root), "--out", str(tmp_path / "run")]
    assert main([*command, "--track", "mlflow"]) == 2
    assert "has no federation; leave out --track" in capsys.readouterr().err
