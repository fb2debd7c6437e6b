"""An evaluation as tables for people, in the terminal and in Markdown, and as CSV."""

from __future__ import annotations

from fedsm.core.spread import spread_cells
from fedsm.core.tables import csv_table, markdown_table
from fedsm.evaluation.image_scores import SUPER
from fedsm.evaluation.metrics import DICE, HD95, METRICS, NSD, TITLES, VOLUME_METRICS
from fedsm.evaluation.paired_table import NOTE, paired_cells, paired_head
from fedsm.evaluation.site_report import LEAST_PATIENTS, MEAN, OWN
from fedsm.evaluation.tables import ALL_IMAGES, CLIENT_AVG, accuracy_means, dice_head
from fedsm.selectors.inference import GLOBAL, personal

ROWS = {SUPER: "super model", OWN: "personal, own site", GLOBAL: "global"}


def volumes_as_images(evaluation: dict) -> dict | None:
    """The scores of whole volumes in the form of an evaluation, for the same tables; None where there are none."""
    if not (found := evaluation.get("volumes")):
        return None
    unit = dict.fromkeys(found["volumes"], "mm")
    return evaluation | found | {"images": found["volumes"], "counted": "volumes", "unit": unit}


def table_title(evaluation: dict, metric: str) -> str:
    """`HD95 [mm]`, or `volume NSD (2 mm)`."""
    title = f"{TITLES[metric]}{unit_text(evaluation) if metric == HD95 else ''}"
    if "counted" not in evaluation:
        return title
    return f"volume {title}" + (f" ({evaluation['tolerance']:g} mm)" if metric == NSD else "")


def table_head(evaluation: dict, corner: str) -> list[str]:
    """The columns of a table of scores."""
    pooled = f"all {evaluation['counted']}" if "counted" in evaluation else ALL_IMAGES
    return [pooled if title == ALL_IMAGES else title for title in dice_head(corner, list(evaluation["images"]))]


def score_tables(evaluation: dict, label: str = MEAN) -> list[str]:
    """The tables of all metrics, of images and of whole volumes."""
    tables = [score_table(evaluation, metric, label) for metric in METRICS]
    volumes = volumes_as_images(evaluation)
    return tables + [score_table(volumes, metric, label) for metric in VOLUME_METRICS if volumes]


def interval_text(value: dict, metric: str) -> str:
    """`0.912 (0.88-0.94)`; distances with one digit."""
    digits = _digits(metric)
    mean = f"{value['mean']:.{digits}f}"
    return mean if value["low"] is None else f"{mean} ({value['low']:.{digits}f}-{value['high']:.{digits}f})"


def score_table(evaluation: dict, metric: str, label: str = MEAN) -> str:
    """Super model, own models and global model: one column per site, then the averages, the worst site, the spread."""
    rows = [images_row(evaluation)]
    for key, title in ROWS.items():
        if key in evaluation["models"]:
            rows.append([title, *score_cells(evaluation, key, metric, label)])
    return markdown_table(table_head(evaluation, table_title(evaluation, metric)), rows)


def images_row(evaluation: dict) -> list[str]:
    """The first row of a table of scores: how many images (or volumes) and patients there are."""
    images, patients = evaluation["images"], evaluation["patients"]
    counts = [f"{n} ({patients[site]})" for site, n in images.items()]
    title = f"{evaluation.get('counted', 'images')} (patients)"
    return [title, *counts, "", f"{sum(images.values())} ({sum(patients.values())})", "", ""]


def score_cells(evaluation: dict, key: str, metric: str, label: str) -> list[str]:
    """A model's row: each site, the two averages, the worst site and the spread over sites."""
    by_site, average = evaluation["models"][key], evaluation["averages"][key][metric][label]
    found = {s: by_site[s][metric][label] if s in by_site else None for s in evaluation["images"]}
    cells = ["-" if value is None else interval_text(value, metric) for value in found.values()]
    cells += [interval_text(average[k], metric) for k in ("client_avg", "global")]
    means = {site: value and value["mean"] for site, value in found.items()}
    return cells + spread_cells(means, _digits(metric), highest=metric == HD95)


def _digits(metric: str) -> int:
    return 1 if metric == HD95 else 3


def paired_table(evaluation: dict) -> str:
    """The rows compared with each other, image by image."""
    sites = list(evaluation["images"])
    rows = [
        paired_cells(f"{ROWS[found['first']]} - {ROWS[found['second']]}", found, sites)
        for found in evaluation["paired"]
    ]
    return markdown_table(paired_head(sites), rows)


def selector_text(evaluation: dict) -> str:
    """The selector's accuracy, over sites and over all images, and how well it is calibrated; empty without one."""
    found = evaluation["reliability"]
    if not found:
        return ""
    shares, images = {}, {}
    for site, counts in evaluation["confusion"].items():
        if personal(site) in counts:
            images[site] = sum(counts.values())
            shares[site] = counts[personal(site)] / images[site]
    mean, pooled = accuracy_means(shares, images)
    return (
        f"accuracy {mean:.3f} ({CLIENT_AVG}: mean over sites) and {pooled:.3f} ({ALL_IMAGES}),"
        f" calibration error (ECE) {found['ece']:.3f}"
    )


def evaluation_markdown(evaluation: dict) -> str:
    """The whole evaluation."""
    about, sites = evaluation["super_model"], list(evaluation["images"])
    gamma = "" if about["gamma"] is None else f", gamma {about['gamma']:g}"
    images = ", ".join(f"{s} {evaluation['images'][s]} ({evaluation['patients'][s]} patients)" for s in sites)
    boot = evaluation["bootstrap"]
    text = [
        f"# {about['method']} on {about['task']}: {evaluation['part']} images",
        f"Selector {about['selector']}{gamma}. Images: {images}.",
        f"Intervals: {boot['level']:.0%}, bootstrap by patient, {boot['draws']} draws. An image with neither truth nor"
        " prediction counts Dice 1, IoU 1, HD95 0; with only one of them 0, 0 and the image's diagonal.",
    ]
    if boot["averages"] == "errors":
        text.append(
            "Every site evaluated its own images. Intervals of averages come from the sites' standard errors; a site"
            f" with fewer than {LEAST_PATIENTS} patients reports none."
        )
    if missing := evaluation.get("missing"):
        text.append("Missing: " + "; ".join(f"{site} ({reason})" for site, reason in missing.items()) + ".")
    if volumes := evaluation.get("volumes"):
        text.append(
            "Volumes are scored as a whole, too, on the grid of their files. NSD is the share of the surfaces that is"
            f" within {volumes['tolerance']:g} mm of the other one. A volume with neither truth nor prediction counts"
            " Dice 1, NSD 1, HD95 0; with only one of them 0, 0 and the volume's diagonal."
        )
    text += score_tables(evaluation)
    if len(evaluation["labels"]) > 1:
        for label in evaluation["labels"]:
            text += [f"## {label}", *score_tables(evaluation, label)]
    if evaluation["paired"]:
        text += ["## Models compared on the same images", NOTE, paired_table(evaluation)]
    candidates = [m for m in evaluation["models"] if m not in (SUPER, OWN)]
    matrix = [[m, *(f"{evaluation['models'][m][s][DICE][MEAN]['mean']:.3f}" for s in sites)] for m in candidates]
    text += ["## Every model on every site", markdown_table(["Dice", *sites], matrix)]
    if evaluation["gammas"]:
        sweep = []
        for row in evaluation["gammas"]:
            values = [*(row["per_site"][s] for s in sites), row["client_avg"], row["global"]]
            sweep.append([f"{row['gamma']:g}", *(f"{v:.3f}" for v in values), str(row["selected"][GLOBAL])])
        head = ["gamma", *sites, CLIENT_AVG, ALL_IMAGES, "sent to the global model"]
        text += ["## Dice at every gamma", markdown_table(head, sweep)]
    for key, title in (("selected", "Models that were used"), ("confusion", "The selector's first choice")):
        if evaluation[key]:
            columns = list(next(iter(evaluation[key].values())))
            counts = [[s, *(str(row[c]) for c in columns)] for s, row in evaluation[key].items()]
            text += [f"## {title}, images", markdown_table(["images of", *columns], counts)]
    if found := evaluation["reliability"]:
        rows = []
        for b in found["bins"]:
            seen = [f"{b['confidence']:.3f}", f"{b['accuracy']:.3f}"] if b["images"] else ["-", "-"]
            rows.append([f"{b['low']:.1f}-{b['high']:.1f}", str(b["images"]), *seen])
        table = markdown_table(["confidence", "images", "mean confidence", "accuracy"], rows)
        text += ["## Calibration of the selector", f"Selector: {selector_text(evaluation)}.", table]
    return "\n\n".join(text) + "\n"


def evaluation_csv(evaluation: dict) -> str:
    """One row per model, site, metric and label; those of whole volumes are called `volume_dice` and so on."""
    head = ["model", "site", "metric", "label", "mean", "low", "high", "images", "patients", "unit"]
    rows = _csv_rows(evaluation)
    if volumes := volumes_as_images(evaluation):
        rows += _csv_rows(volumes, "volume_")
    return csv_table(head, rows)


def _csv_rows(evaluation: dict, prefix: str = "") -> list[list]:
    rows: list[list] = []
    for model, by_site in evaluation["models"].items():
        for site, metrics in by_site.items():
            unit = evaluation["unit"][site]
            for metric, labels in metrics.items():
                for label, v in labels.items():
                    numbers = ["" if v[k] is None else f"{v[k]:.6f}" for k in ("mean", "low", "high")]
                    counts = [evaluation["images"][site], evaluation["patients"][site]]
                    name = f"{prefix}{metric}"
                    rows.append([model, site, name, label, *numbers, *counts, unit if metric == HD95 else ""])
    return rows


def unit_text(evaluation: dict) -> str:
    """The unit of distances, ` [mm]`; sites may differ."""
    return f" [{'/'.join(sorted(set(evaluation['unit'].values())))}]"
