"""Row 1: a site answers under another's name. Its word about itself counts for nothing."""

import json
import shutil

import pytest
import torch
from nvflare.apis.fl_context import FLContextManager

from fedsm.flare.evaluation import MODEL, EvaluationController
from tests.helpers.federation import JOB, Federation, Site, results_of
from tests.helpers.hostile import HOSTILE, TRAIN, scale_updates
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import last_weights


class Impostor(Federation):
    """A federation in which a site's messages say that they come from another: all of them, or its training answers.

    Answers are merged in the order of the sites: what `site-1` sends as `site-3` is there before the victim's own.
    """

    liar, victim, in_training_only = HOSTILE, "site-1", False
    answering = ""

    def server_context(self, site: Site):
        fl_ctx = super().server_context(site)
        if site.name == self.liar and (self.answering == TRAIN or not self.in_training_only):
            fl_ctx.set_peer_context(FLContextManager(identity_name=self.victim, job_id="job").new_context())
        return fl_ctx


class FirstToAnswer(Impostor):
    """The impostor is merged before its victim, and honest but for its training."""

    liar, victim, in_training_only = "site-1", HOSTILE, True


def remember(site: Site, task: str, shareable, work):
    """What the impostor answers now."""
    if site.name == site.federation.liar:
        site.federation.answering = task
    return work()


@pytest.mark.parametrize("kind", [Impostor, FirstToAnswer])
def test_an_impostor_is_refused_by_its_own_name_and_the_victim_is_not(tmp_path, data_root, kind):
    federation = kind(tmp_path, data_root, small_settings(rounds=2), SITES, fault=remember).run()
    assert federation.panic is None
    results = results_of(federation)
    assert {entry["site"] for entry in results["refused"]} == {kind.liar}
    reason = f"under the name {kind.victim!r}, which is not its own"
    assert all(reason in entry["reason"] for entry in results["refused"])
    authors = [json.loads(line) for line in (federation.run_folder / "accepted.jsonl").read_text().splitlines()]
    honest = [site for site in SITES if site != kind.liar]
    assert {line["site"] for line in authors} == set(honest)
    assert all(row["answered"] == honest for row in results["validation"]["history"])


def test_an_impostor_with_harmful_weights_changes_no_model(tmp_path, data_root):
    """Only the name is forged in the first run; in the second the impostor's weights are noise, too. The models are the
    same: nothing of it was merged."""

    def noise(site, task, shareable, work):
        result = remember(site, task, shareable, work)
        if site.name == FirstToAnswer.liar and task == TRAIN:
            scale_updates(result, -3.0)
        return result

    runs = [
        FirstToAnswer(tmp_path / name, data_root, small_settings(rounds=2), SITES, fault=fault).run()
        for name, fault in (("honest", remember), ("noise", noise))
    ]
    first, second = (last_weights(run.run_folder) for run in runs)
    assert first.keys() == second.keys()
    for model, weights in first.items():
        assert all(torch.equal(weights[key], second[model][key]) for key in weights), model


def test_an_impostor_in_an_evaluation_is_refused(tmp_path, data_root):
    """The same in the job that lets the sites score a super model."""
    trained = Federation(tmp_path / "run", data_root, small_settings(rounds=1), SITES).run()
    controller = EvaluationController(part="test")
    federation = Impostor(tmp_path / "scored", data_root, small_settings(), SITES, controller=controller)
    workspace = federation.engine.get_workspace.return_value
    shutil.copytree(trained.run_folder / "super_model", f"{workspace.get_app_config_dir(JOB)}/{MODEL}")
    federation.run()
    found = json.loads((federation.run_folder / "evaluation.json").read_text())
    assert set(found["missing"]) == {HOSTILE}
    assert "not its own" in found["missing"][HOSTILE]
