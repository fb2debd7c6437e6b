"""A site of DICOM files and its NIfTI copy, for tests that compare the two ways of one image."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np

from tests.helpers.dicom_files import MR, oblique, random_volume, save, segmentation, series

PATIENTS = 4


def disc_mask(shape: tuple, seed: int) -> np.ndarray:
    """A ball in a volume (slices, H, W)."""
    grid = np.indices(shape).transpose(1, 2, 3, 0)
    middle = np.array(shape) * (0.4 + 0.02 * seed)
    return np.linalg.norm((grid - middle) / np.array(shape), axis=-1) < 0.25


def write_dicom_site(folder: Path, label: str = "prostate", patients: int = PATIENTS, shape=(5, 24, 20)) -> None:
    """Series of patients below a folder, tilted differently, with a DICOM-SEG each; patient 0 has two series."""
    for number in range(patients + 1):
        slices = series(
            random_volume(number, shape), axes=oblique(5 * number), sop_class=MR, patient=str(number % patients)
        )
        place = folder / f"ST{number % patients}" / f"SE{number}"
        for i, one in enumerate(reversed(slices)):
            save(one, place / f"I{i}")
        save(segmentation(slices, {label.upper(): disc_mask(shape, number)}), place / "segmentation")


def write_nifti_copy(out: Path, label_value: int = 1, patients: int = PATIENTS, shape=(5, 24, 20)) -> None:
    """The same images and masks as NIfTI files, stored the other way round, with a patients.csv."""
    for part in ("images", "masks"):
        (out / part).mkdir(parents=True, exist_ok=True)
    lines = ["file,patient"]
    for number in range(patients + 1):
        slices = series(random_volume(number, shape), axes=oblique(5 * number), sop_class=MR)
        first = slices[0]
        axes = np.array(first.ImageOrientationPatient, float).reshape(2, 3)
        origin = np.array(slices[-1].ImagePositionPatient, float)
        step = np.array(slices[0].ImagePositionPatient, float) - np.array(slices[1].ImagePositionPatient, float)
        affine = np.eye(4)
        affine[:3] = np.stack([axes[0] * first.PixelSpacing[1], axes[1] * first.PixelSpacing[0], step, origin], axis=1)
        affine = np.diag([-1, -1, 1, 1]) @ affine
        mask = disc_mask(shape, number).astype(np.uint8) * label_value
        for part, values in (("images", random_volume(number, shape)), ("masks", mask)):
            volume = nibabel.Nifti1Image(values[::-1].transpose(2, 1, 0), affine)
            nibabel.save(volume, out / part / f"n{number}.nii.gz")
        lines.append(f"n{number},{number % patients}")
    (out / "patients.csv").write_text("\n".join(lines))
