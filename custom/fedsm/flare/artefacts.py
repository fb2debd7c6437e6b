"""What FLARE's own tools read of a run: `metrics/`, `cross_site_val/` and `artifact_manifest.json`.

FLARE's own widgets write them. They are not components of the job: there they would write what they hear of while it
runs, which is only a part of a resumed run, and what sites send unchecked. Here they are fed once, at the end, from the
record and the evaluation, whose values were checked when they arrived.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.widgets.metrics_artifact_writer import MetricsArtifactWriter
from nvflare.app_common.widgets.validation_json_generator import ValidationJsonGenerator
from nvflare.widgets.widget import Widget

from fedsm.core.files import write_json
from fedsm.evaluation.image_scores import SUPER
from fedsm.evaluation.metrics import DICE
from fedsm.evaluation.site_report import MEAN, OWN
from fedsm.selectors.inference import GLOBAL, personal
from fedsm.server.record import RunRecord

METRICS = "metrics"
CROSS_SITE = AppConstants.CROSS_VAL_DIR
MANIFEST = "artifact_manifest.json"  # where `nvflare job download` looks for a model under a name that it does not know
_SERVER = "SRV_"  # FLARE's sign of a model that is no site's own

Scores = dict[str, dict[str, dict[str, float]]]  # site whose images they are -> model -> metric -> value


def write_artefacts(folder: Path, record: RunRecord, summary: dict, fl_ctx: FLContext) -> None:
    """Writes all of them for a finished training.

    Args:
        folder: the job's own folder.
        record: what happened in the run, with all rounds.
        summary: what `server.results.summarize` made of the evaluation.
        fl_ctx: the job's context.
    """
    shutil.rmtree(folder / METRICS, ignore_errors=True)  # FLARE's writer appends
    _write_metrics(record, summary["test"], fl_ctx)
    write_cross_validation(_scores(summary["test"]), record.sites, fl_ctx)
    model = Path("super_model") / f"{GLOBAL}.safetensors"
    if (folder / model).is_file():
        write_json(folder / MANIFEST, {"schema_version": "1", "artifacts": {"global_model": str(model)}})


def write_cross_validation(scores: Scores, sites: list[str], fl_ctx: FLContext) -> None:
    """Writes `cross_site_val/cross_val_results.json`: site -> model -> metric -> value.

    As FLARE's cross-site evaluation does it, a site's personal model has the name of the site, and the others `SRV_`
    before theirs.
    """
    owners = {personal(site): site for site in sites}
    writer = ValidationJsonGenerator()
    for site, by_model in scores.items():
        for model, metrics in by_model.items():
            given = {
                AppConstants.MODEL_OWNER: owners.get(model, _SERVER + model),
                AppConstants.DATA_CLIENT: site,
                AppConstants.VALIDATION_RESULT: DXO(DataKind.METRICS, data=metrics).to_shareable(),
            }
            _tell(writer, AppEventType.VALIDATION_RESULT_RECEIVED, fl_ctx, given)
    _tell(writer, EventType.END_RUN, fl_ctx)


def scores_of(reports: dict[str, dict]) -> Scores:
    """The means of all metrics and labels of a federated evaluation: site -> its report."""
    return {
        site: {
            model: {_name(metric, label): v["mean"] for metric, by in metrics.items() for label, v in by.items()}
            for model, metrics in report["models"].items()
            if model != OWN  # it is there under its own name
        }
        for site, report in reports.items()
    }


def _name(metric: str, label: str) -> str:
    return metric if label == MEAN else f"{metric}/{label}"


def _scores(test: dict) -> Scores:
    """Every candidate's Dice on every site's test images, and the super model's."""
    scores: Scores = {}
    for name, table in {DICE: test, **{_name(DICE, k): v for k, v in test.get("labels", {}).items()}}.items():
        for site, by_model in table["candidates"].items():
            chosen = table.get(SUPER, {}).get("per_site", {}).get(site)
            for model, dice in (by_model | ({SUPER: chosen} if chosen is not None else {})).items():
                scores.setdefault(site, {}).setdefault(model, {})[name] = dice
    return scores


def _write_metrics(record: RunRecord, test: dict, fl_ctx: FLContext) -> None:
    """Writes `metrics/`: one line for each round, and the summary; names as in the curves."""
    writer = MetricsArtifactWriter(results_dir=METRICS)
    for row in record.history:
        metrics = _aggregated(row)
        if row is record.history[-1]:
            metrics |= {f"{name}/test": test[name]["client_avg"] for name in (GLOBAL, OWN, SUPER) if name in test}
        about = {
            "metric_source": "site_reports_checked_by_the_server",
            "metric_split": "validation",
            "aggregation": {"method": "weighted_average", "weight_key": "images", "metric_policy": "mean_over_models"},
            "sites": [{"name": site, "metrics": _of_site(row, site)} for site in record.sites],
        }
        model = FLModel(
            metrics=metrics, current_round=row["round"], meta={AppConstants.METRICS_AGGREGATION_INFO: about}
        )
        _tell(writer, AppEventType.AFTER_AGGREGATION, fl_ctx, {AppConstants.AGGREGATION_RESULT: model})
    if best := _best(record):
        _tell(writer, AppEventType.GLOBAL_BEST_MODEL_AVAILABLE, fl_ctx, {AppConstants.METRICS_SELECTION_INFO: best})
    _tell(writer, EventType.END_RUN, fl_ctx)


def _aggregated(row: dict) -> dict[str, float]:
    return {f"{track}/validation": score for track, score in row.get("score", {}).items()}


def _of_site(row: dict, site: str) -> dict[str, float]:
    """A site's losses and scores in a round."""
    kinds = {"loss": row["loss"], "validation": row.get("validation", {})}
    return {f"{track}/{kind}": by[site] for kind, found in kinds.items() for track, by in found.items() if site in by}


def _best(record: RunRecord) -> dict | None:
    """The best round of the global model, or of the first track where there is none."""
    scored = [row for row in record.history if row.get("score")]
    if not scored:
        return None
    track = GLOBAL if GLOBAL in scored[-1]["score"] else next(iter(scored[-1]["score"]))
    by_score = max(scored, key=lambda row: row["score"].get(track, -1.0))
    number = record.best[track]["round"] if track in record.best else by_score["round"]
    metrics = _aggregated(record.history[number - 1])
    name = f"{track}/validation"
    return {
        "best_round": number,
        "key_metric": {"name": name, "mode": "max"},
        "best_metrics": {name: metrics.get(name)},
        "best_aggregated_metrics": metrics,
    }


def _tell(writer: Widget, event: str, fl_ctx: FLContext, given: dict | None = None) -> None:
    """Hands FLARE's widget an event of its own, with what it expects in the context; nobody else hears of it."""
    with fl_ctx.get_engine().new_context() as own:
        for key, value in (given or {}).items():
            own.set_prop(key, value, private=True, sticky=False)
        writer.handle_event(event, own)
