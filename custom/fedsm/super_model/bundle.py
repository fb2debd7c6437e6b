"""A MONAI bundle of a super model, laid out as in MONAI's Model Zoo: it needs only MONAI and torch, not `fedsm`.

BUNDLE/
  configs/metadata.json   configs/inference.json   configs/logging.conf
  models/model.ts         selection and all networks, TorchScript
  docs/README.md          LICENSE
"""

from __future__ import annotations

import json
import warnings
from importlib.metadata import version
from pathlib import Path

import torch

import fedsm
from fedsm.core.errors import UserError
from fedsm.core.files import replacing_folder
from fedsm.core.task_settings import TaskSettings
from fedsm.data.labels import mask_table
from fedsm.data.readers import PICTURES, VOLUMES
from fedsm.super_model.card import render_card
from fedsm.super_model.model import SuperModel
from fedsm.super_model.scripted import SLICE_BY_SLICE, AnySize, script_super_model

SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"

_README = """# {name}

A FedSM super model for the task `{task}`: {count} networks, trained at the sites {sites}, and a selector
({selector}) that decides for each image which of them segments it. Labels: {labels}. Not a medical device.

    python -m monai.bundle run --config_file configs/inference.json --meta_file configs/metadata.json \\
        --bundle_root . --dataset_dir IMAGES --output_dir MASKS

It needs MONAI, `fire` and `pytorch-ignite`. IMAGES holds {inputs}. Masks have the images' size and names and the mask
values of training: {values}. It fails if IMAGES holds no such file. The images are read by MONAI: {reading}.{note}

`models/model.ts` takes (batch, {channels}, x, y) images in 0..1 of any size, along the axes of MONAI's readers, and
gives (batch, {n_labels}, x, y) probabilities.
"""
# MONAI reads it by default and warns where it is missing.
_LOGGING = """[loggers]
keys = root

[handlers]
keys = console

[formatters]
keys = plain

[logger_root]
level = INFO
handlers = console

[handler_console]
class = StreamHandler
level = INFO
formatter = plain
args = (sys.stdout,)

[formatter_plain]
format = %(asctime)s %(levelname)s %(message)s
"""
_LICENSE = """The configuration files and the program in this bundle come from FedSM on NVIDIA FLARE and are licensed
under the Apache License, Version 2.0: http://www.apache.org/licenses/LICENSE-2.0

The weights belong to those who trained them; this file does not license them.
"""


def export_bundle(model: SuperModel, folder: Path, volumes: bool) -> None:
    """Writes the bundle, whole or not at all.

    Args:
        model: the super model, on the CPU.
        folder: the bundle's folder, which must not exist.
        volumes: whether its inputs are NIfTI volumes; else pictures.
    """
    with replacing_folder(folder) as partial:
        for part in ("configs", "models", "docs"):
            (partial / part).mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated; see `scripted`
            module = torch.jit.script(AnySize(script_super_model(model), model.settings.size, volumes).eval())
            torch.jit.save(module, str(partial / "models" / "model.ts"))
        for name, content in (("metadata", _metadata(model, volumes)), ("inference", _inference(model, volumes))):
            (partial / "configs" / f"{name}.json").write_text(json.dumps(content, indent=4) + "\n")
        (partial / "configs" / "logging.conf").write_text(_LOGGING)
        (partial / "docs" / "README.md").write_text(_readme(model, volumes), encoding="utf-8")
        (partial / "LICENSE").write_text(_LICENSE, encoding="utf-8")


def bundle_format(model: SuperModel, asked: str | None = None) -> tuple[str, str]:
    """What a bundle reads, `pictures` or `volumes`, and why.

    Args:
        model: the super model. Its manifest says what the training images were; manifests of 0.1 do not.
        asked: what the user asked for; None: as in training.

    Raises:
        UserError: it was trained on both.
    """
    trained = model.manifest.get("files")
    if asked:
        return asked, "as asked for"
    if trained in ("pictures", "volumes"):
        return trained, "as in training"
    if trained == "mixed":
        raise UserError(
            "the super model was trained on pictures and on volumes", remedy="say --format pictures or --format volumes"
        )
    guess = "pictures" if model.settings.task.intensity == "unit" else "volumes"
    other = "pictures" if guess == "volumes" else "volumes"
    return guess, f"a guess: the super model does not say what it was trained on; if wrong, use --format {other}"


def _readme(model: SuperModel, volumes: bool) -> str:
    task = model.settings.task
    pictures = "8-bit pictures, and grey ones of 16 bits that use more than 8 of them"
    card = render_card(model.manifest).partition("\n\n")[2]  # without its title
    about = _README.format(
        name=f"FedSM {task.name}",
        task=task.name,
        count=len(model.available),
        sites=", ".join(model.sites),
        selector=model.manifest.get("selector"),
        labels=", ".join(task.labels),
        inputs="NIfTI volumes, cut to axial slices" if volumes else "pictures (" + ", ".join(PICTURES) + ")",
        values=json.dumps(task.labels),
        reading=pictures if task.intensity == "unit" else "1 % to 99 % of the intensities",
        channels=task.channels,
        n_labels=len(task.labels),
        note=f" {SLICE_BY_SLICE}" if model.policy.majority else "",
    )
    return f"{about}\n{card}"


def _metadata(model: SuperModel, volumes: bool) -> dict:
    task = model.settings.task
    sites = ", ".join(model.sites)
    shape = ["*", "*"]
    image = {"type": "image", "num_channels": task.channels, "spatial_shape": shape, "dtype": "float32"}
    pred = image | {
        "format": "segmentation",
        "num_channels": len(task.labels),
        "value_range": [0, 1],
        "is_patch_data": False,
    }
    return {
        "schema": SCHEMA,
        "version": fedsm.__version__,
        "changelog": {fedsm.__version__: f"run {model.manifest.get('run_id')}"},
        "monai_version": version("monai"),
        "pytorch_version": torch.__version__.partition("+")[0],
        "numpy_version": version("numpy"),
        "required_packages_version": {
            "fire": "0.5.0", "pytorch-ignite": "0.4.11", "nibabel": version("nibabel"), "pillow": version("pillow"),
        },
        "name": f"FedSM {task.name}",
        "task": f"Segmentation of {', '.join(task.labels)}",
        "description": f"FedSM super model: one global and {len(model.sites)} personal U-Nets ({sites}) and a selector"
        f" ({model.manifest.get('selector')}, gamma {model.policy.gamma}) that chooses one of them for each image.",
        "authors": f"the sites {sites}",
        "copyright": "the sites that trained it",
        "data_source": f"images of the sites {sites}, which stayed there",
        "data_type": "nibabel" if volumes else "pictures",
        "image_classes": f"{task.channels} channel(s), intensity scaled to [0, 1]",
        "label_classes": "; ".join(f"{label}: mask values {values}" for label, values in task.labels.items()),
        "pred_classes": f"{len(task.labels)} channel(s) of probabilities, one per label; labels may overlap",
        **({"eval_metrics": {"mean_dice": score}} if (score := _mean_dice(model)) is not None else {}),
        "intended_use": "Research. Not a medical device.",
        "references": ["Xu et al., Closing the Generalization Gap of Cross-silo Federated Medical Image Segmentation,"
                       " CVPR 2022"],
        "network_data_format": {
            "inputs": {
                "image": image
                | {"format": "magnitude", "value_range": [0, 1], "is_patch_data": False, "channel_def": {"0": "image"}}
            },
            "outputs": {"pred": pred | {"channel_def": _mask_values(task)}},
        },
    }  # fmt: skip


def _mask_values(task: TaskSettings) -> dict[str, str]:
    """Each value of a written mask -> what it means.

    Slicer's extension for bundles and MONAI Label read `channel_def` so, although its name speaks of channels.
    """
    values = sorted({task.background[0], *(value for listed in task.labels.values() for value in listed)})
    names = {value: [label for label, listed in task.labels.items() if value in listed] for value in values}
    return {str(value): " and ".join(found) or "background" for value, found in names.items()}


def _mean_dice(model: SuperModel) -> float | None:
    """The mean over sites on their own test images; None: it was not measured."""
    score = ((model.manifest.get("scores") or {}).get("super_model") or {}).get("client_avg")
    return None if score is None else round(score, 4)


def _inference(model: SuperModel, volumes: bool) -> dict:
    task = model.settings.task
    table = mask_table(task)
    value = "@table[sum((p[i] > 0.5).long() << i for i in range(len(p)))][None]"
    deep = "image.mode[0] in 'IF'"
    reader = {"_target_": "PILReader", "converter": f"$lambda image: image if {deep} else image.convert(@mode)"}
    load = {"_target_": "LoadImaged", "keys": "image", "ensure_channel_first": True}
    turn = {"_target_": "Orientationd", "keys": "image", "axcodes": "RAS", "labels": None}
    scale = (
        {"_target_": "ScaleIntensityRangePercentilesd", "keys": "image", "lower": 1, "upper": 99, "b_min": 0.0,
         "b_max": 1.0, "clip": True, "channel_wise": task.intensity == "channel_percentiles"}
        if task.intensity != "unit"
        else _each("lambda x: x / (255.0 if x.max() <= 255 else 65535.0)", "image")
    )  # fmt: skip
    widen = _each(f"lambda x: x if x.shape[0] == {task.channels} else x.expand({task.channels}, *x.shape[1:])", "image")
    return {
        "imports": ["$import os", "$import sys"],
        "bundle_root": ".",
        "dataset_dir": "$@bundle_root + '/images'",
        "output_dir": "$@bundle_root + '/masks'",
        "extensions": list(VOLUMES if volumes else PICTURES),
        "files": "$os.listdir(@dataset_dir) if os.path.isdir(@dataset_dir)"
        " else sys.exit('no input: ' + @dataset_dir + ' is no folder')",
        "found": "$sorted(n for n in @files if n.lower().endswith(tuple(@extensions)))",
        # Without this, MONAI would end with exit code 0 and write nothing.
        "datalist": "$[os.path.join(@dataset_dir, n) for n in @found]"
        " or sys.exit('no input: ' + @dataset_dir + ' holds no file that ends with ' + ' or '.join(@extensions))",
        "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
        "mode": "RGB" if task.channels == 3 else "L",
        "table": f"$torch.tensor({table.tolist()})",
        "network_def": "$torch.jit.load(os.path.join(@bundle_root, 'models', 'model.ts'), map_location=@device)",
        "preprocessing": {
            "_target_": "Compose",
            "transforms": [load, turn, scale, widen] if volumes else [load | {"reader": reader}, scale, widen],
        },
        "dataset": {
            "_target_": "Dataset",
            "data": "$[{'image': p} for p in @datalist]",
            "transform": "@preprocessing",
        },
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 1, "num_workers": 0},
        "inferer": {"_target_": "SliceInferer", "roi_size": [-1, -1], "spatial_dim": 2, "sw_batch_size": 16}
        if volumes
        else {"_target_": "SimpleInferer"},
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [
                {"_target_": "Invertd", "keys": "pred", "transform": "@preprocessing", "orig_keys": "image",
                 "nearest_interp": False, "to_tensor": True},
                _each(f"lambda p: {value}", "pred"),
                {"_target_": "SaveImaged", "keys": "pred", "output_dir": "@output_dir", "output_postfix": "",
                 "output_ext": ".nii.gz" if volumes else ".png", "separate_folder": False, "resample": False,
                 "output_dtype": f"$np.{table.dtype}"},
            ],
        },
        "evaluator": {
            "_target_": "SupervisedEvaluator", "device": "@device", "val_data_loader": "@dataloader",
            "network": "@network_def", "inferer": "@inferer", "postprocessing": "@postprocessing",
        },
        "run": ["$@evaluator.run()"],
    }  # fmt: skip


def _each(expression: str, key: str) -> dict:
    return {"_target_": "Lambdad", "keys": key, "func": f"${expression}"}
