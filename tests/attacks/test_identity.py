"""Row 1: a site answers under another's name. Its word about itself counts for nothing."""

import json
import shutil

from nvflare.apis.fl_context import FLContextManager

from fedsm.flare.evaluation import MODEL, EvaluationController
from tests.helpers.federation import JOB, Federation, Site, results_of
from tests.helpers.hostile import HOSTILE, TRAIN
from tests.helpers.small_jobs import SITES, small_settings


class Impostor(Federation):
    """A federation in which the hostile site's messages say that they come from site 1."""

    def server_context(self, site: Site):
        fl_ctx = super().server_context(site)
        if site.name == HOSTILE:
            fl_ctx.set_peer_context(FLContextManager(identity_name="site-1", job_id="job").new_context())
        return fl_ctx


def test_an_impostor_is_refused_by_its_own_name_and_the_victim_is_not(tmp_path, data_root):
    federation = Impostor(tmp_path, data_root, small_settings(rounds=2), SITES).run()
    assert federation.panic is None
    results = results_of(federation)
    assert {entry["site"] for entry in results["refused"]} == {HOSTILE}
    assert all("under the name 'site-1', which is not its own" in entry["reason"] for entry in results["refused"])
    authors = [json.loads(line) for line in (federation.run_folder / "accepted.jsonl").read_text().splitlines()]
    assert {line["site"] for line in authors} == {"site-1", "site-2"}
    assert all(row["answered"] == ["site-1", "site-2"] for row in results["validation"]["history"])


def test_an_impostor_with_harmful_weights_changes_no_model(tmp_path, data_root):
    """Only the name is forged in the first run; in the second the impostor's weights are noise, too. The models are the
    same: nothing of it was merged."""

    def noise(site, task, shareable, work):
        result = work()
        if site.name == HOSTILE and task == TRAIN:
            for part in result["DXO"]["data"].values():
                part.data = {k: v * -3 for k, v in part.data.items()}
        return result

    runs = [
        Impostor(tmp_path / name, data_root, small_settings(rounds=2), SITES, fault=fault).run()
        for name, fault in (("honest", None), ("noise", noise))
    ]
    first, second = (results_of(run)["test"]["global"]["per_site"] for run in runs)
    assert first == second


def test_an_impostor_in_an_evaluation_is_refused(tmp_path, data_root):
    """The same in the job that lets the sites score a super model."""
    trained = Federation(tmp_path / "run", data_root, small_settings(rounds=1), SITES).run()
    controller = EvaluationController(part="test")
    federation = Impostor(tmp_path / "scored", data_root, small_settings(), SITES, controller=controller)
    workspace = federation.engine.get_workspace.return_value
    shutil.copytree(trained.run_folder / "super_model", f"{workspace.get_app_config_dir(JOB)}/{MODEL}")
    federation.run()
    found = json.loads((federation.run_folder / "evaluation.json").read_text())
    assert "not its own" in found["missing"][HOSTILE]
    assert set(found["missing"]) == {HOSTILE}
