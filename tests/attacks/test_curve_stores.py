"""Row 2, the same hole elsewhere: a job's configuration must not choose where a tracking package writes.

FLARE's receivers for MLflow and Weights & Biases are on FLARE's list of classes that any job may name. They give what
the job says to their packages: a database at any path, a folder, another service's address.
"""

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ProcessType
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

from app_fedsm.provisioning.kits import fill_server, fill_site
from app_fedsm.runs.workspace import prepare_workspace
from fedsm.core.components import NOT_ALLOWED
from fedsm.core.errors import UserError
from tests.helpers.class_lists import KitWorkspace, write_default_resources


@pytest.mark.parametrize("place", ["server", "site", "simulator"])
@pytest.mark.parametrize("path", NOT_ALLOWED)
def test_a_kit_does_not_allow_flares_own(place, path, tmp_path):
    assert path in DEFAULT_CLASS_ALLOW_LIST, "FLARE took it off its list: so can we"
    write_default_resources(tmp_path, DEFAULT_CLASS_ALLOW_LIST)
    if place == "simulator":
        prepare_workspace(tmp_path, tmp_path, threads=1)
    else:
        fill_site(tmp_path) if place == "site" else fill_server(tmp_path, tmp_path / "storage")
    with pytest.raises(UnsafeComponentError):
        ComponentPathAuthorizer().authorize_component_config({"path": path}, workspace=KitWorkspace(tmp_path))


def test_flares_own_would_have_made_a_database_anywhere(tmp_path):
    """Why it matters."""
    pytest.importorskip("mlflow")
    from nvflare.app_opt.tracking.mlflow.mlflow_receiver import MLflowReceiver

    process = {FLContextKey.PROCESS_TYPE: ProcessType.CLIENT_JOB}
    fl_ctx = FLContextManager(None, "server", "job", private_stickers=process).new_context()
    receiver = MLflowReceiver(f"sqlite:///{tmp_path}/anywhere.db", artifact_location="artifacts")
    receiver._get_artifact_location = lambda where, fl_ctx: str(tmp_path)
    receiver.handle_event(EventType.START_RUN, fl_ctx)
    assert (tmp_path / "anywhere.db").is_file()


@pytest.mark.parametrize(
    "address", ["sqlite:////etc/x.db", "file:///etc", "/etc", "databricks", "", ["http://a.org"], 5]
)
def test_ours_takes_no_path(address):
    pytest.importorskip("mlflow")
    from fedsm.flare.compat.mlflow_curves import MLflowCurves

    with pytest.raises(UserError, match="tracking_uri is not the address of a server"):
        MLflowCurves(tracking_uri=address)


@pytest.mark.parametrize("more", [{"dir": "/etc"}, {"settings": {"base_url": "http://a.org"}}, {"resume": "must"}])
def test_ours_takes_no_folder_and_no_options_of_the_package(more):
    pytest.importorskip("wandb")
    from fedsm.flare.compat.wandb_curves import WandBCurves

    names = {"project": "p", "name": "n", "group": "g", "job_type": "t"}
    WandBCurves(names)
    with pytest.raises(UserError, match=f"wandb_args: '{next(iter(more))}' is none of project, name"):
        WandBCurves(names | more)
