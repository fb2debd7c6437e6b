"""The example of a privacy policy that the kits carry, read by FLARE's own code and used on real results."""

import json
import shutil

import torch
from nvflare.apis.filter import Filter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.app.fl_conf import create_privacy_manager

from app_fedsm.provisioning.kits import TEMPLATES
from fedsm.flare import exchange
from tests.helpers.federation import Federation, results_of
from tests.helpers.small_jobs import SITES, small_settings


def filters_of(kit) -> list[Filter]:
    """The filters of results that a site with our policy has."""
    for part in ("startup", "local"):
        (kit / part).mkdir(parents=True)
    shutil.copyfile(TEMPLATES / "privacy.json", kit / "local" / "privacy.json")
    manager = create_privacy_manager(Workspace(str(kit), "site-2"), names_only=False)
    scope = manager.get_scope(None)  # of a job that names no scope, as ours
    return scope.task_result_filters["out"]


def test_a_site_with_the_policy_takes_part(tmp_path, data_root):
    (policy,) = filters_of(tmp_path / "kit")
    largest, zeros, others = [], [], []

    def site_2_filters(site, task, shareable, work):
        result = work()
        if site.name == "site-2":
            sent = exchange.unpack(result)[1] if task == exchange.REGISTER else {}
            result = policy.process(result, FLContext())
            _, tracks = exchange.unpack(result)
            if task == exchange.TRAIN:
                values = torch.cat([t.flatten() for tensors in tracks.values() for t in tensors.values() if t.dim()])
                largest.append(float(values.abs().max()))
                zeros.append(float((values == 0).float().mean()))
            for name, tensors in sent.items():
                others.extend(torch.equal(tensors[k], tracks[name][k]) for k in tensors)
        return result

    settings = small_settings(rounds=2)
    federation = Federation(tmp_path / "run", data_root, settings, SITES, fault=site_2_filters).run()
    assert federation.panic is None
    results = results_of(federation)
    assert [row["answered"] for row in results["validation"]["history"]] == [SITES] * 2
    args = json.loads((TEMPLATES / "privacy.json").read_text())["scopes"][0]["task_result_filters"][0]["args"]
    assert len(largest) == 2
    assert max(largest) <= args["gamma"] * (1 + 1e-6)
    assert min(zeros) >= 0.99 * args["percentile"] / 100
    assert others and all(others), "sums of the statistics selector are no weight differences: they pass as they are"
