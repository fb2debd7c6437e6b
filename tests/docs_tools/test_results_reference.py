"""The reference of results.json and evaluation.json describes what real files hold: every key, and no other."""

import json
from pathlib import Path

import pytest
import torch

from app_fedsm.cli.main import main
from app_fedsm.runs.centralized import centralized_settings, run_centralized
from docs_tools.described_reference import ITEM, AnyKey, dotted, rows, table
from docs_tools.site_hooks import GENERATED
from fedsm.evaluation.evaluation_file import EvaluationFile
from fedsm.flare import exchange
from fedsm.server import record
from fedsm.server.results_file import ResultsFile
from tests.helpers.federation import Federation, results_of
from tests.helpers.small_jobs import SITES, SMALL_OPTIONS, small_settings

SETTINGS = ("settings",)  # has a page of its own
PRIVATE = {"site-1": {key: {"epsilon": 2.0, "delta": "1e-5"} for key in ("statistics_privacy", "dp")}}


def troubles(site, task, shareable, work):
    """In round 2 site-2 sends NaN and site-3 an update that is far too large; site-2's evaluation is rubbish."""
    result = work()
    if task == exchange.TRAIN and shareable["DXO"]["meta"]["round"] == 2:
        for part in result["DXO"]["data"].values() if site.name != "site-1" else ():
            part.data = {k: v * (torch.nan if site.name == "site-2" else 20.0) for k, v in part.data.items()}
    if task == exchange.EVALUATE and site.name == "site-2":
        result["DXO"]["meta"]["evaluation"] = {}
    return result


@pytest.fixture(scope="module")
def run(tmp_path_factory, data_root) -> Path:
    """A run in which everything happens that results.json can tell of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "MOST_NOTES", 1)
        settings = small_settings(
            rounds=2, blend=True, min_sites=1, selection="best", personal_mix=[0.5], quarantine=1,
            overrides=["tracks.personal.pull=similarity"],
        )  # fmt: skip
        folder = tmp_path_factory.mktemp("run")
        federation = Federation(folder, data_root, settings, SITES, fault=troubles, site_settings=PRIVATE).run()
    assert federation.panic is None
    return federation.run_folder


def found(value: object, above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The paths of all keys of a file."""
    paths = {above} if above and above[-1] != ITEM else set()
    if isinstance(value, dict) and above != SETTINGS:
        return paths.union(*(found(item, (*above, key)) for key, item in value.items()))
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return paths.union(*(found(item, (*above, ITEM)) for item in value))
    return paths


def fits(path: tuple[str, ...], described: tuple[str, ...]) -> bool:
    """Whether a path is the described one, or leads to it."""
    return len(path) <= len(described) and all(
        a == b or isinstance(b, AnyKey) for a, b in zip(path, described, strict=False)
    )


def undescribed_and_unseen(model: type, files: list[dict]) -> tuple[set[str], set[str]]:
    """Keys of files that the reference does not know, and keys of the reference that no file has."""
    known = {path for path, _, _ in rows(model)}
    there = set[tuple[str, ...]]().union(*map(found, files))
    return (
        {dotted(path) for path in there if not any(fits(path, one) for one in known)},
        {dotted(one) for one in known if not any(len(p) == len(one) and fits(p, one) for p in there | _items(there))},
    )


def _items(paths: set) -> set:
    return {path[: i + 1] for path in paths for i, part in enumerate(path) if part == ITEM}


def test_results(run, data_root, tmp_path):
    results = json.loads((run / "results.json").read_text())
    assert results["refused"] and results["warned"] and results["uncounted"], "or the test shows nothing about them"
    settings = centralized_settings(SMALL_OPTIONS | {"rounds": 1})
    centralized = run_centralized(settings, data_root, SITES, tmp_path / "central", None)
    clipped = {"clip": 1.0, "noise_multiplier": 5.0, "delta": 1e-2}
    shared = small_settings(method="fedavg", rounds=1, fraction=0.6, overrides=[f"update_privacy={clipped}"])
    noisy = results_of(Federation(tmp_path / "noisy", data_root, shared, SITES).run())
    assert undescribed_and_unseen(ResultsFile, [results, centralized, noisy]) == (set(), set())
    for content in (results, noisy, json.loads((tmp_path / "central" / "results.json").read_text())):
        ResultsFile.model_validate(content)  # the kinds of values, too


def test_evaluation(run, data_root, tmp_path):
    assert main(["evaluate", str(run), str(data_root), "-o", str(tmp_path)]) == 0
    evaluation = json.loads((tmp_path / "evaluation.json").read_text())
    undescribed, unseen = undescribed_and_unseen(EvaluationFile, [evaluation])
    of_volumes = {key for key in unseen if key.startswith("volumes.")}  # pictures have none
    assert (undescribed, unseen - of_volumes) == (set(), {"missing.SITE"}), "which a federation has"


def test_a_key_too_many_and_one_too_few_are_noticed(run):
    results = json.loads((run / "results.json").read_text())
    results["test"]["global"]["median"] = 0.5
    del results["gamma_sweep"]
    undescribed, unseen = undescribed_and_unseen(ResultsFile, [results])
    assert undescribed == {"test.global.median"} and {"gamma_sweep[]", "gamma_sweep[].gamma"} <= unseen


def test_what_a_row_says():
    page = table(ResultsFile, absent=True)
    assert "| `gamma` | number or null | How sure the selector must be: the best" in page
    assert "| `test.global.per_site.SITE` | number or null | Mean Dice of the site's test images" in page
    assert "| `refused[].reason` | text | Why. |" in page
    assert "| `wire.down_bytes.SITE` | list of whole numbers | To the site, in each round" in page
    assert "| `test.blend` | object, may be absent | Soft selection at `blend_gamma`" in page
    assert GENERATED["results"]() == page and GENERATED["evaluation"]() == table(EvaluationFile, absent=True)


@pytest.mark.parametrize("model", [ResultsFile, EvaluationFile], ids=lambda model: model.__name__)
def test_every_key_is_described(model):
    assert all(text and text.endswith(".") for _, _, text in rows(model))
