"""A folder that is ready for the Hugging Face hub: the super model itself, and what people and the hub read about it.

OUT/
  README.md                front matter for the hub, our model card, how it is used, which images are foreign, changes
  config.json              what it takes and gives, and which networks it has
  manifest.json  *.safetensors   as `fedsm.super_model.artefact` writes them: `SuperModel.load(OUT)` loads the folder
  record.json              if the super model has one: `SuperModel.load(OUT, verify=...)`
  LICENSE
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

import fedsm
from fedsm.core.files import replacing_folder
from fedsm.selectors.inference import personal
from fedsm.super_model.card import render_card
from fedsm.super_model.model import SuperModel
from fedsm.super_model.record import RECORD
from fedsm.super_model.verify import MANIFEST

LIBRARY = "fedsm"
_LICENSE = """The weights belong to the sites that trained them. This file does not license them: whoever publishes this
folder has to agree with the sites, and writes the licence here and into the front matter of README.md.

The program that made them, FedSM on NVIDIA FLARE, is licensed under the Apache License, Version 2.0.
"""
_USE = """## How to use

```bash
pip install fedsm
fedsm predict FOLDER images -o predictions
fedsm serve FOLDER
```

```python
from fedsm.super_model.model import SuperModel

prediction = SuperModel.load("FOLDER").predict("image.png")
prediction.mask, prediction.model, prediction.foreign
```

FOLDER is this folder, downloaded. The files are safetensors and JSON: loading them runs no code from them."""


def export_hub(model: SuperModel, source: Path, folder: Path, evaluation: dict | None = None) -> None:
    """Writes the folder, whole or not at all.

    Args:
        model: the super model.
        source: its own folder, whose files are copied.
        folder: the new folder, which must not exist.
        evaluation: the content of evaluation.json of its test images, which adds intervals to the card.
    """
    with replacing_folder(folder) as partial:
        record = [RECORD] if (source / RECORD).is_file() else []
        for name in (MANIFEST, *record, *(entry["file"] for entry in model.manifest["networks"].values())):
            shutil.copyfile(source / name, partial / name)
        (partial / "config.json").write_text(json.dumps(_config(model), indent=2) + "\n", encoding="utf-8")
        (partial / "README.md").write_text(render_readme(model, evaluation), encoding="utf-8")
        (partial / "LICENSE").write_text(_LICENSE, encoding="utf-8")


def render_readme(model: SuperModel, evaluation: dict | None = None) -> str:
    """The text of README.md."""
    front = yaml.safe_dump(_front_matter(model), sort_keys=False, allow_unicode=True)
    title, _, rest = render_card(model.manifest, evaluation).partition("\n\n")
    parts = [
        title,
        "> **Not a medical device; not for clinical use.**",
        rest.strip(),
        _foreign(model),
        _USE,
        _changes(model),
    ]
    return f"---\n{front}---\n\n" + "\n\n".join(parts) + "\n"


def _front_matter(model: SuperModel) -> dict[str, Any]:
    """What the hub shows and searches; scores are those on each site's own test images."""
    task, scores = model.settings.task, (model.manifest.get("scores") or {}).get("super_model") or {}
    name = f"{LIBRARY}-{task.name}-{model.settings.method}"
    results = [
        {
            "task": {"type": "image-segmentation", "name": f"Segmentation of {', '.join(task.labels)}"},
            "dataset": {"type": f"private-{site}", "name": f"{site}: the site's own test images", "split": "test"},
            "metrics": [{"type": "dice", "name": "Mean Dice", "value": round(score, 4)}],
        }
        for site, score in (scores.get("per_site") or {}).items()
        if score is not None
    ]
    return {
        "license": "other",
        "license_name": "belongs-to-the-sites",
        "license_link": "LICENSE",
        "library_name": LIBRARY,
        "pipeline_tag": "image-segmentation",
        "tags": ["medical", "federated-learning", "personalization", "segmentation", "u-net", "nvflare", task.name],
        **({"metrics": ["dice"], "model-index": [{"name": name, "results": results}]} if results else {}),
    }


def _config(model: SuperModel) -> dict[str, Any]:
    settings, task = model.settings, model.settings.task
    return {
        "model_type": "fedsm-super-model",
        "fedsm_version": fedsm.__version__,
        "method": settings.method,
        "task": task.name,
        "image_size": settings.size,
        "num_channels": task.channels,
        "intensity": task.intensity,
        "labels": {name: list(values) for name, values in task.labels.items()},
        "unet": task.model_dump(mode="json")["unet"],
        "networks": {
            name: entry["file"] for name, entry in model.manifest["networks"].items()
        },
        "sites": {site: personal(site) for site in model.sites if personal(site) in model.available},
        "selector": model.manifest.get("selector"),
        "policy": json.loads(json.dumps(model.policy.to_dict())),
    }  # fmt: skip


def _foreign(model: SuperModel) -> str:
    """What happens with images that are unlike the sites' own."""
    if model.rule is None:
        rule = "There is no selector: nothing tells whether an image is unlike those that it was trained on."
    else:
        rule = "\n".join(_rules(model))
    return f"## Images from elsewhere\n\n{rule}"


def _rules(model: SuperModel) -> list[str]:
    policy, deltas = model.policy, model.policy.delta
    lines = ["For each image the selector gives a probability for each site (`yhat`). Then, in this order:", ""]
    if deltas is not None:
        values = deltas if isinstance(deltas, tuple) else (deltas,) * len(model.sites)
        limits = ", ".join(
            f"{site} {'no limit' if delta is None else f'{delta:g}'}"
            for site, delta in zip(model.sites, values, strict=True)
        )
        lines.append(
            "1. **Foreign.** Its distance to the nearest site's images is more than its delta (1 is usual there):"
            f" the global network segments it, and the prediction says `foreign`. Delta: {limits}."
        )
    if policy.gamma is not None:
        lines.append(
            f"{len(lines) - 1}. **Unsure.** The highest probability is not above gamma ({policy.gamma:g}): the global"
            " network segments it."
        )
    lines.append(f"{len(lines) - 1}. Otherwise the network of the most probable site.")
    if deltas is None:
        lines += ["", "No limit of distance was chosen: an image from elsewhere is not called foreign."]
    if policy.majority:
        lines += ["", "All slices of a volume get the network that most of them select by these rules."]
    return [*lines, "", "An image that is not foreign may still be segmented badly: look at every mask."]


def _changes(model: SuperModel) -> str:
    """What this is a version of."""
    manifest = model.manifest
    rounds = model.settings.rounds
    lines = [f"- Run `{manifest.get('run_id') or 'unknown'}`: {rounds} rounds, fedsm {_made_by(manifest)}."]
    if forgotten := manifest.get("forgotten"):
        lines.append(f"- Taken out afterwards, with their networks: {', '.join(forgotten)}.")
    lines.append(f"- Written for the hub by fedsm {fedsm.__version__}.")
    return "## Change log\n\n" + "\n".join(lines)


def _made_by(manifest: dict) -> str:
    return str((manifest.get("versions") or {}).get("fedsm", "unknown"))
