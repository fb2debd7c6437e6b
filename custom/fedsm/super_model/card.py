"""The model card beside the weights: what the super model is, how good it was, and what it is not.

After Mitchell et al., "Model Cards for Model Reporting" (2019). It holds counts and scores, no path and no file name.
"""

from __future__ import annotations

from fedsm.core.tables import markdown_table
from fedsm.selectors.policy import in_words

CARD = "MODEL_CARD.md"

_ROWS = {"super_model": "super model", "personal_own": "personal model of the site", "global": "global model"}
_USE = """## Intended use

Research on the segmentation of images like those of the sites above. **Not a medical device**: it has not been
approved for diagnosis or treatment by any authority, and no decision about a patient may rest on it alone. A person
who can read such images must look at every mask.
"""
_LIMITS = """## Limits

- The scores hold for images like the sites' own: same devices, protocols and patients. An image from elsewhere may be
  segmented badly without any warning; the selector's confidence says how much an image resembles a site, not whether
  its mask is right.
- The truth is what the sites' readers drew. How well they agree was not measured.
- Whether it is equally good for groups of patients (age, sex, origin, stage of disease) is not known: nothing about
  patients was collected.
- Images are resized to the size above; structures smaller than a few pixels of that are lost.
"""


def render_card(manifest: dict, evaluation: dict | None = None) -> str:
    """The text of MODEL_CARD.md.

    Args:
        manifest: the super model's; `images` (site -> part -> count) and `scores` (as `test` in results.json) are
            shown if it has them; `pooled` says that all images were in one place.
        evaluation: the content of evaluation.json of its test images, which adds intervals.
    """
    job, task = manifest["settings"], manifest["settings"]["task"]
    title = f"# Model card: {manifest['method']} for {manifest['task']}"
    sites = len(manifest["sites"])
    what = (
        f"A super model of {sites} sites: one U-Net for all, one for each site and a selector that chooses among them."
        if manifest["selector"] != "none"
        else f"U-Nets trained at {sites} sites, without a selector."
    )
    if manifest.get("pooled"):
        what = f"A U-Net trained on the images of {sites} sites in one place."
    versions = ", ".join(f"{name} {number}" for name, number in manifest.get("versions", {}).items())
    size = job["size"]
    settings = {
        "task": f"{manifest['task']}: {', '.join(task['labels'])}",
        "input": f"{task['channels']} channel(s), {size} x {size} pixels, intensity `{task['intensity']}`",
        "tracks": ", ".join(f"{name} `{spec['kind']}`" for name, spec in job["tracks"].items()),
        "rounds": f"{job['rounds']}, {job['local_epochs']} local epoch(s) each",
        "learning rate": f"{job['lr']:g} (selector {job['selector_lr']:g}), batches of {job['batch_size']}",
        "lam": _number(manifest.get("lam")),
        "gamma": _number(manifest.get("gamma")),
        **{name: in_words(manifest.get(name)) for name in ("delta", "share")},
        "mirror images": "yes" if manifest.get("flip") else "no",
        **({"volumes": "one model for all slices, by majority"} if manifest.get("majority") else {}),
        "seed": str(job["seed"]),
        "made with": versions,
    }
    table = markdown_table(["setting", "value"], list(settings.items()))
    parts = [title, what, f"## Settings\n\n{table}", _data(manifest), _scores(manifest, evaluation)]
    return "\n\n".join([*parts, _USE.strip(), _LIMITS.strip()]) + "\n"


def _data(manifest: dict) -> str:
    images = manifest.get("images") or {}
    where = "All images were in one place" if manifest.get("pooled") else "Each site's images stayed at the site"
    head = f"## Data\n\n{where}; these are counts of images (slices of volumes).\n\n"
    if not images:
        return head + f"Sites: {', '.join(manifest['sites'])}. Their counts were not recorded."
    rows = [[site, str(n["train"]), str(n["validation"]), str(n["test"])] for site, n in images.items()]
    return head + markdown_table(["site", "train", "validation", "test"], rows)


def _scores(manifest: dict, evaluation: dict | None) -> str:
    if evaluation:
        return _with_intervals(evaluation)
    scores, sites = manifest.get("scores") or {}, manifest["sites"]
    known = [(title, scores[key]) for key, title in _ROWS.items() if key in scores]
    if not known:
        return "## Scores\n\nNone were measured."
    rows = [
        [title, *(_number(row["per_site"].get(s), 3) for s in sites), _number(row["client_avg"], 3)]
        for title, row in known
    ]
    return (
        "## Scores\n\nMean Dice on each site's own test images, measured at the site. Intervals are not known:"
        " `fedsm evaluate` gives them where the images are.\n\n"
    ) + markdown_table(["model", *sites, "client average"], rows)


def _with_intervals(evaluation: dict) -> str:
    sites, boot = list(evaluation["images"]), evaluation["bootstrap"]
    rows = []
    for key, title in _ROWS.items():
        if by_site := evaluation["models"].get(key):
            values = [by_site[s]["dice"]["mean"] if s in by_site else None for s in sites]
            values.append(evaluation["averages"][key]["dice"]["mean"]["client_avg"])
            rows.append([title, *map(_interval, values)])
    return (
        f"## Scores\n\nMean Dice on the {evaluation['part']} images, with {boot['level']:.0%} intervals (bootstrap by"
        f" patient, {boot['draws']} draws).\n\n"
    ) + markdown_table(["model", *sites, "client average"], rows)


def _interval(value: dict | None) -> str:
    if value is None or value["low"] is None:
        return _number(value["mean"] if value else None, 3)
    return f"{value['mean']:.3f} ({value['low']:.3f}-{value['high']:.3f})"


def _number(value: float | None, digits: int | None = None) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if digits is None else f"{value:.{digits}f}"
