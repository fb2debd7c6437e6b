"""The super model as one ONNX file: selection and segmentation.

Each network is in a branch of an `If`, so each image costs the selector and one U-Net. The file holds the weights of
all networks. Needs the packages of the extra `export`.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import torch

from fedsm.core.errors import UserError
from fedsm.core.files import replacing
from fedsm.super_model.model import SuperModel
from fedsm.super_model.scripted import OUTPUTS, script_super_model

TOLERANCE = 1e-4
_OPSET = 18


def export_onnx(model: SuperModel, path: Path) -> float:
    """Writes the file, after onnxruntime has given the same results as the original.

    Args:
        model: the super model, on the CPU.
        path: the file to write.

    Returns:
        the largest difference between the probabilities, at most `TOLERANCE`.

    Raises:
        UserError: a package is missing, the super model cannot be exported, or the results differ.
    """
    try:
        import onnx
        import onnxruntime  # noqa: F401
    except ImportError as e:
        raise UserError(f"ONNX needs the package {e.name!r}", remedy="pip install 'fedsm[export]'") from e
    names = ("images", *OUTPUTS)
    with replacing(path) as partial:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the newer exporter has no branches on the data
            torch.onnx.export(
                script_super_model(model), (examples(model)[:2],), str(partial), dynamo=False, opset_version=_OPSET,
                input_names=["images"], output_names=list(OUTPUTS), dynamic_axes={name: {0: "batch"} for name in names},
            )  # fmt: skip
        content = onnx.load(str(partial))
        onnx.helper.set_model_props(content, _properties(model))
        onnx.save(content, str(partial))
        worst = _difference(model, partial)
        if not worst <= TOLERANCE:
            raise UserError(f"the ONNX file would differ from the super model by {worst:.2g}, so it was not written")
    return worst


def examples(model: SuperModel) -> torch.Tensor:
    """Images for the check: noise of different brightness and contrast, so that several models are chosen."""
    task, size = model.settings.task, model.settings.size
    noise = torch.rand(6, task.channels, size, size, generator=torch.Generator().manual_seed(0))
    level = torch.linspace(0.1, 1, 6)[:, None, None, None]
    return (noise * level).clamp(0, 1)


def _difference(model: SuperModel, path: Path) -> float:
    """The largest difference between the outputs of file and super model, for batches of one and of several images."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for images in (examples(model), examples(model)[:1]):
        found = dict(zip(OUTPUTS, session.run(None, {"images": images.numpy()}), strict=True))
        expected = model.predict_batch(images)
        if not np.array_equal(found["choice"], expected.selection.choices.numpy()):
            return float("inf")
        worst = max(worst, float(np.abs(found["probabilities"] - expected.probabilities.numpy()).max()))
        if expected.selection.yhat is not None:
            worst = max(worst, float(np.abs(found["yhat"] - expected.selection.yhat.numpy()).max()))
    return worst


def _properties(model: SuperModel) -> dict[str, str]:
    """What a reader of the file must know to feed it."""
    task = model.settings.task
    content = {
        "task": task.name,
        "input": f"(batch, {task.channels}, {model.settings.size}, {model.settings.size}) float32 in 0..1",
        "intensity": task.intensity,
        "labels": task.labels,
        "models": model.models,
        **model.policy.changed(majority=False).to_dict(),  # the file sees one image at a time
        "run_id": model.manifest.get("run_id"),
    }
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in content.items()}
