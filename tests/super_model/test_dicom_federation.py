"""A federation on DICOM sites and one on their NIfTI copies: the same weights, the same Dice, and a SEG that has it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("scipy", reason="MONAI's Hausdorff distance needs scipy: pip install 'fedsm[report]'")

from app_fedsm.cli.main import main
from fedsm.core.dice import dice_per_image
from fedsm.data.dicom.place import ImportPlace
from fedsm.data.dicom.scan import scan, walk
from fedsm.data.dicom.segmentation import LabelMasks, add_segmentation
from fedsm.data.dicom.site import import_site
from fedsm.data.patients import FILE_NAME as PATIENTS_FILE
from fedsm.data.readers import read
from fedsm.super_model.artefact import load_super_model
from tests.helpers.dicom_site import disc_mask, write_dicom_site, write_nifti_copy
from tests.helpers.federation import Federation, results_of
from tests.helpers.small_jobs import small_settings

pytestmark = pytest.mark.slow
SHAPES = {"site-1": (5, 24, 20), "site-2": (7, 20, 28)}
PATIENTS = 6


def number_of(path: Path) -> int:
    """The number of a series of `write_dicom_site`: that of its folder `SE<number>`."""
    return int(next(part for part in path.parts if part.startswith("SE"))[2:])


def write_both(root: Path, task) -> tuple[Path, Path]:
    """DICOM sites, and their NIfTI copies under the names that the import gives: training keeps the files' order."""
    for site, shape in SHAPES.items():
        write_dicom_site(root / "dicom" / site / "dicom", patients=PATIENTS, shape=shape)
        copy = root / "nifti" / site
        write_nifti_copy(copy, patients=PATIENTS, shape=shape)
        imported = import_site(root / "dicom" / site, site, task, ImportPlace(root / "import" / site))
        assert len(imported.names) == PATIENTS + 1
        for stem, shown in imported.names.items():
            for part in ("images", "masks"):
                (copy / part / f"n{number_of(Path(shown))}.nii.gz").rename(copy / part / f"{stem}.nii.gz")
        (copy / PATIENTS_FILE).write_bytes((imported.folder / PATIENTS_FILE).read_bytes())
    return root / "dicom", root / "nifti"


def dice(found: np.ndarray, truth: np.ndarray) -> float:
    """Of two volumes as a whole."""
    flat = [torch.from_numpy(np.ascontiguousarray(mask).reshape(1, 1, 1, -1)) for mask in (found, truth)]
    return dice_per_image(*flat).item()


def test_dicom_sites_and_their_nifti_copies_are_one(tmp_path):
    settings = small_settings(
        task="prostate", selection="best", shares=[0.0, 0.4], lr=1e-2, overrides=["task.lam=0.5"], rounds=4
    )
    runs, roots = {}, dict(zip(("dicom", "nifti"), write_both(tmp_path / "data", settings.task), strict=True))
    for kind, root in roots.items():
        runs[kind] = Federation(tmp_path / kind, root, settings, list(SHAPES)).run()
        assert runs[kind].panic is None
    models = {kind: load_super_model(run.run_folder / "super_model") for kind, run in runs.items()}
    for name, tensors in models["dicom"].networks.items():
        for key, tensor in tensors.items():
            assert torch.equal(tensor, models["nifti"].networks[name][key]), (name, key)
    dicom, nifti = (results_of(run) for run in runs.values())
    assert any(row["majority"] for row in dicom["policies"]), "the sites have tried one model per volume"
    for key in ("test", "policies", "gamma", "delta", "share", "flip", "majority", "images"):
        assert dicom[key] == nifti[key], f"{key}: difference 0"

    (runs["dicom"].run_folder / "run.json").write_text(json.dumps({"data": str(roots["dicom"])}))
    out = {kind: tmp_path / f"evaluation_{kind}" for kind in runs}
    for kind, root in roots.items():
        evaluate = ["evaluate", str(runs["dicom"].run_folder), str(root), "-o", str(out[kind]), "--part", "all"]
        assert main(evaluate) == 0
    scores = {kind: json.loads((folder / "evaluation.json").read_text())["volumes"] for kind, folder in out.items()}
    assert scores["dicom"] == scores["nifti"]

    for site, shape in SHAPES.items():
        predicted = {kind: tmp_path / f"predicted_{kind}" / site for kind in runs}
        for kind, part in (("dicom", "dicom"), ("nifti", "images")):
            given = ["predict", str(runs["dicom"].run_folder), str(roots[kind] / site / part), "--no-overlays"]
            assert main([*given, "-o", str(predicted[kind])]) == 0
        by_copy = {}
        for path in (predicted["nifti"] / "masks").iterdir():
            found, truth = (read(p, mask=True)[..., 0] for p in (path, roots["nifti"] / site / "masks" / path.name))
            by_copy[path.name.split(".")[0]] = dice(found > 0, truth > 0)
        by_seg = {}
        for image in scan(walk(roots["dicom"] / site)).images:
            number, masks = number_of(image.path), LabelMasks(image)
            below = image.path.parent.relative_to(roots["dicom"] / site / "dicom")
            add_segmentation(masks, predicted["dicom"] / "masks" / below / "series-3.dcm", settings.task)
            by_seg[number] = dice(masks.labels["prostate"], disc_mask(shape, number))
        assert sorted(by_seg.values()) == sorted(by_copy.values()), "difference 0"
        assert 0 < np.mean(list(by_seg.values())) < 1 and len(by_seg) == PATIENTS + 1
        told = scores["dicom"]["models"]["super_model"][site]["dice"]["prostate"]["mean"]
        assert told == pytest.approx(np.mean(list(by_seg.values())), abs=1e-6)
