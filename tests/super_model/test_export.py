"""Exports give what the super model gives. ONNX and bundles need packages that not everybody has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from app_fedsm.cli.main import main
from fedsm.super_model.model import SuperModel
from fedsm.super_model.onnx_file import _properties
from fedsm.super_model.scripted import script_super_model
from tests.helpers.small_model import KINDS, site_images, write_super_model

REQUIRED = {
    "schema", "version", "monai_version", "pytorch_version", "numpy_version", "required_packages_version", "task",
    "description", "authors", "copyright", "network_data_format",
}  # fmt: skip


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "local"])
def test_one_module_for_every_selector(tmp_path, kind):
    model = SuperModel.load(write_super_model(tmp_path, kind), "cpu")
    module = script_super_model(model)
    images = torch.cat([site_images(model.settings, k, 4) for k in (0, 1)])
    for batch in (images, images[:1], images[:5]):
        probabilities, choice, yhat, _ = module(batch)
        expected = model.predict_batch(batch)
        torch.testing.assert_close(probabilities, expected.probabilities, atol=1e-5, rtol=0)
        assert choice.tolist() == expected.selection.choices.tolist()
        if expected.selection.yhat is not None:
            torch.testing.assert_close(yhat, expected.selection.yhat, atol=1e-5, rtol=0)


POLICY = {"gamma": 0.3, "delta": 1.2, "share": [0.2, 0.6], "flip": True}


@pytest.mark.parametrize("kind", ["statistics", "gradient", "ensemble", "fedavg"])
def test_one_module_for_every_policy(tmp_path, kind):
    """Images of both sites, and black ones, which are foreign where the selector knows a distance."""
    own = POLICY if kind in ("statistics", "gradient") else {"flip": True}
    model = SuperModel.load(write_super_model(tmp_path, kind, policy=own), "cpu")
    module = script_super_model(model)
    images = torch.cat([*(site_images(model.settings, k, 3) for k in (0, 1)), torch.zeros(2, 3, 32, 32)])
    expected = model.predict_batch(images)
    probabilities, choice, *_ = module(images)
    torch.testing.assert_close(probabilities, expected.probabilities, atol=1e-5, rtol=0)
    assert choice.tolist() == expected.selection.choices.tolist()
    if kind == "statistics":
        assert choice.tolist()[-2:] == [0, 0] and 0 not in choice.tolist()[:6]


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("statistics", POLICY),
        pytest.param("statistics", {}, marks=pytest.mark.slow),
        pytest.param("extra", {}, marks=pytest.mark.slow),
        ("ensemble", {}),
    ],
)
def test_onnx(tmp_path, kind, policy, capsys):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is missing: pip install 'fedsm[export]'")
    path, out = write_super_model(tmp_path, kind, policy=policy), tmp_path / "model.onnx"
    assert main(["export", "onnx", str(path), "-o", str(out)]) == 0, capsys.readouterr().err
    session = runtime.InferenceSession(str(out))
    model = SuperModel.load(path, "cpu")
    images = torch.cat([site_images(model.settings, k, 3) for k in (0, 1)])
    found = session.run(["probabilities", "choice"], {"images": images.numpy()})
    expected = model.predict_batch(images)
    assert np.abs(found[0] - expected.probabilities.numpy()).max() < 1e-4
    assert found[1].tolist() == expected.selection.choices.tolist()
    assert json.loads(session.get_modelmeta().custom_metadata_map["models"]) == model.models
    assert main(["export", "onnx", str(path), "-o", str(out)]) == 2, "it is not overwritten"


def test_onnx_without_its_packages_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", "onnx", str(write_super_model(tmp_path)), "-o", str(tmp_path / "a.onnx")]) == 2
    assert "pip install 'fedsm[export]'" in capsys.readouterr().err


def test_bundle_is_complete(tmp_path):
    path = write_super_model(tmp_path)
    assert main(["export", "bundle", str(path), "-o", str(tmp_path / "bundle")]) == 0
    files = {p.relative_to(tmp_path / "bundle").as_posix() for p in (tmp_path / "bundle").rglob("*") if p.is_file()}
    assert files == {
        "configs/metadata.json", "configs/inference.json", "configs/logging.conf", "models/model.ts", "docs/README.md",
        "LICENSE",
    }  # fmt: skip
    assert "## Data" in (tmp_path / "bundle/docs/README.md").read_text()
    metadata = json.loads((tmp_path / "bundle/configs/metadata.json").read_text())
    assert set(metadata) >= REQUIRED
    for tensors in metadata["network_data_format"].values():
        for tensor in tensors.values():
            assert set(tensor) >= {"type", "format", "num_channels", "spatial_shape", "dtype", "value_range"}
    assert main(["export", "bundle", str(path), "-o", str(tmp_path / "bundle")]) == 2, "it is not overwritten"
    # Pictures as MONAI reads them, columns first: the same probabilities.
    model = SuperModel.load(path, "cpu")
    image = np.random.default_rng(0).integers(0, 256, (40, 28, 3), np.uint8)
    module = torch.jit.load(str(tmp_path / "bundle/models/model.ts"))
    given = torch.from_numpy(image).permute(2, 1, 0)[None].float() / 255
    expected = model.predict(image).probabilities
    np.testing.assert_allclose(module(given)[0].transpose(1, 2).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("files", ["pictures", "volumes"])
@pytest.mark.parametrize("task", ["retinal", "prostate"])
def test_a_bundle_reads_what_the_sites_trained_on(tmp_path, capsys, task, files):
    """Not what the task's `intensity` makes one guess: pictures may be scaled by percentiles too."""
    path = write_super_model(tmp_path, task=task, files=files, overrides=["task.selector_net={}"])
    assert main(["export", "bundle", str(path), "-o", str(tmp_path / "bundle")]) == 0
    assert f"a bundle for {files} (as in training)" in capsys.readouterr().out
    ending = {"pictures": ".png", "volumes": ".nii"}[files]
    assert ending in json.loads((tmp_path / "bundle/configs/inference.json").read_text())["extensions"]


def test_a_bundle_of_both_or_of_an_earlier_version(tmp_path, capsys):
    mixed = write_super_model(tmp_path / "mixed", files="mixed")
    assert main(["export", "bundle", str(mixed), "-o", str(tmp_path / "a")]) == 2
    assert "say --format pictures or --format volumes" in capsys.readouterr().err and not (tmp_path / "a").exists()
    assert main(["export", "bundle", str(mixed), "-o", str(tmp_path / "a"), "--format", "volumes"]) == 0
    assert "a bundle for volumes (as asked for)" in capsys.readouterr().out
    old = write_super_model(tmp_path / "old")
    assert main(["export", "bundle", str(old), "-o", str(tmp_path / "b")]) == 0
    assert "a bundle for pictures (a guess" in capsys.readouterr().out


_ZOO_CHECKS = """
from monai.bundle import ConfigWorkflow, verify_net_in_out

files = {"config_file": "configs/inference.json", "meta_file": "configs/metadata.json", "bundle_root": "."}
verify_net_in_out(net_id="network_def", **files)
workflow = ConfigWorkflow(workflow_type="infer", logging_file=False, **files)
workflow.initialize()
print(workflow.check_properties())
"""


@pytest.mark.process
def test_a_bundle_passes_the_checks_of_the_model_zoo(tmp_path):
    """Those of its `ci/verify_bundle.py` that need no network: versions, data shapes, and the workflow's properties."""
    for package in ("fire", "ignite"):
        pytest.importorskip(package, reason=f"{package} is missing: pip install 'fedsm[bundle]'")
    scores = {"scores": {"super_model": {"per_site": {"site-1": 0.5}, "client_avg": 0.54321}}}
    path = write_super_model(tmp_path, files="pictures", policy=scores)
    assert main(["export", "bundle", str(path), "-o", str(tmp_path / "bundle")]) == 0
    bundle = tmp_path / "bundle"
    metadata = json.loads((bundle / "configs/metadata.json").read_text())
    assert metadata["version"] in metadata["changelog"] and metadata["eval_metrics"] == {"mean_dice": 0.5432}
    (bundle / "images").mkdir()
    Image.new("RGB", (40, 28)).save(bundle / "images/a.png")
    done = subprocess.run([sys.executable, "-c", _ZOO_CHECKS], cwd=bundle, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]", done.stderr[-2000:]
    assert "console" in (bundle / "configs/logging.conf").read_text()


_AS_SLICER = """
import sys
from monai.bundle import ConfigParser

bundle, images, masks = sys.argv[1:]
parser = ConfigParser()
parser.read_config(f"{bundle}/configs/inference.json")
given = {"bundle_root": bundle, "device": "cpu", "dataset_dir": images, "output_dir": masks, "window_device": "cpu"}
for key, value in given.items():
    parser[key] = value
parser["datalist"] = [f"{images}/volume.nii.gz"]
parser["dataloader"]["num_workers"] = 0
assert len(parser.get_parsed_content("dataloader")) == 1
parser.get_parsed_content("evaluator").run()
"""


@pytest.mark.process
def test_a_bundle_runs_as_slicers_extension_runs_it(tmp_path):
    """The steps of its Python code: keys of the configuration are set, loader and evaluator are asked for by name, and
    segments get their names from the mask's values."""
    for package in ("fire", "ignite"):
        pytest.importorskip(package, reason=f"{package} is missing: pip install 'fedsm[bundle]'")
    import nibabel

    path = write_super_model(tmp_path, task="prostate", files="volumes", overrides=["task.selector_net={}"])
    assert main(["export", "bundle", str(path), "-o", str(tmp_path / "bundle")]) == 0
    (tmp_path / "in").mkdir()
    volume = np.random.default_rng(0).integers(0, 900, (40, 36, 3), np.int16)
    nibabel.save(nibabel.Nifti1Image(volume, np.diag([-0.5, -0.5, 3.0, 1.0])), tmp_path / "in/volume.nii.gz")
    folders = [str(tmp_path / name) for name in ("bundle", "in", "out")]
    done = subprocess.run([sys.executable, "-c", _AS_SLICER, *folders], cwd=tmp_path, capture_output=True, text=True)
    (mask,) = (tmp_path / "out").rglob("*.nii*")
    assert done.returncode == 0 and nibabel.load(mask).shape == (40, 36, 3), done.stderr[-2000:]
    metadata = json.loads((tmp_path / "bundle/configs/metadata.json").read_text())
    names = metadata["network_data_format"]["outputs"]["pred"]["channel_def"]
    assert names == {"0": "background", "1": "prostate"}
    assert set(np.unique(nibabel.load(mask).get_fdata())) <= {float(value) for value in names}


def run_bundle(folder: Path, images: Path, masks: Path) -> subprocess.CompletedProcess:
    """`monai.bundle run` in a process that cannot see this package."""
    for package in ("fire", "ignite"):
        pytest.importorskip(package, reason=f"{package} is missing: pip install 'fedsm[bundle]'")
    command = [
        sys.executable, "-m", "monai.bundle", "run", "--config_file", "configs/inference.json", "--meta_file",
        "configs/metadata.json", "--bundle_root", ".", "--dataset_dir", str(images), "--output_dir", str(masks),
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_bundle_without_input_fails(tmp_path):
    """It used to end with exit code 0 and no mask, or in MONAI's words."""
    path = write_super_model(tmp_path, files="volumes")
    assert main(["export", "bundle", str(path), "-o", str(tmp_path / "bundle")]) == 0
    (tmp_path / "in").mkdir()
    Image.new("RGB", (40, 28)).save(tmp_path / "in/a.png")
    done = run_bundle(tmp_path / "bundle", tmp_path / "in", tmp_path / "out")
    assert done.returncode != 0 and "holds no file that ends with .nii or .nii.gz" in done.stderr
    done = run_bundle(tmp_path / "bundle", tmp_path / "nowhere", tmp_path / "out")
    assert done.returncode != 0 and done.stderr.splitlines()[-1] == f"no input: {tmp_path / 'nowhere'} is no folder"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pictures", "volumes", "percentiles"])
def test_bundle_runs_without_us(tmp_path, kind):
    """`monai.bundle run` gives the masks of `fedsm predict`; `percentiles`: pictures of a task that scales so."""
    import nibabel

    from fedsm.data.readers import read

    volumes = kind == "volumes"
    overrides = ["task.selector_net={}", *(["task.intensity=percentiles"] if kind == "percentiles" else [])]
    task, files = ("prostate", "volumes") if volumes else ("retinal", "pictures")
    path = write_super_model(tmp_path, task=task, files=files, overrides=overrides)
    (tmp_path / "in").mkdir()
    rng = np.random.default_rng(0)
    if volumes:
        affine = np.diag([-0.5, -0.5, 3.0, 1.0])  # LPS, as most MR is stored
        nibabel.save(nibabel.Nifti1Image(rng.integers(0, 900, (40, 36, 5), np.int16), affine), tmp_path / "in/a.nii.gz")
    else:
        Image.fromarray(rng.integers(0, 256, (40, 28, 3), np.uint8)).save(tmp_path / "in/a.png")
        Image.fromarray(rng.integers(0, 256, (50, 50), np.uint8)).save(tmp_path / "in/grey.png")
    assert main(["export", "bundle", str(path), "-o", str(tmp_path / "bundle")]) == 0
    assert main(["predict", str(path), str(tmp_path / "in"), "-o", str(tmp_path / "ours")]) == 0
    done = run_bundle(tmp_path / "bundle", tmp_path / "in", tmp_path / "theirs")
    assert done.returncode == 0, done.stderr
    for file in (tmp_path / "in").iterdir():
        ours, theirs = (read(Path(tmp_path, who, file.name), mask=True) for who in ("ours/masks", "theirs"))
        assert ours.shape == theirs.shape
        assert (ours != theirs).mean() < 1e-3, "rounding at the threshold"
        if volumes:
            assert np.allclose(nibabel.load(tmp_path / "theirs" / file.name).affine, nibabel.load(file).affine)


def test_that_slices_select_alone_is_said(tmp_path, capsys):
    """A bundle and an ONNX file see slices: of a super model that takes one model per volume, both say so."""
    path = write_super_model(tmp_path, policy={"majority": True})
    assert main(["export", "bundle", str(path), "-o", str(tmp_path / "bundle")]) == 0
    said = "Each slice of a volume selects its own model."
    assert said in capsys.readouterr().out and said in (tmp_path / "bundle/docs/README.md").read_text()
    assert json.loads(_properties(SuperModel.load(path, "cpu"))["majority"]) is False
