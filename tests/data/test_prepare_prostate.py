"""Prostate sources: volumes whose value tells their place in the patient, written in the format of each download."""

import locale
from pathlib import Path

import nibabel
import numpy as np
import pytest

from app_fedsm.config.build import build_settings
from fedsm.core.errors import UserError
from fedsm.data.prepare import prepare
from fedsm.data.site_folder import list_pairs, read_pair

SPACING, ORIGIN, SHAPE = (2.0, 2.0, 4.0), (-30.0, -20.0, 8.0), (32, 28, 10)  # x, y, z; LPS millimetres
CENTRE, RADIUS = (0.0, 6.0, 26.0), 14.0


@pytest.fixture
def itk():
    why = "DICOM, MetaImage and NRRD need SimpleITK: pip install '.[prepare]'"
    before = locale.setlocale(locale.LC_ALL)
    yield pytest.importorskip("SimpleITK", reason=why)
    locale.setlocale(locale.LC_ALL, before)  # its DICOM writer, which only tests use, leaves "C"


def place() -> np.ndarray:
    """(x, y, z, 3): the LPS millimetres of each voxel."""
    return np.stack(np.meshgrid(*map(np.arange, SHAPE), indexing="ij"), -1) * SPACING + ORIGIN


def values(lps: np.ndarray) -> np.ndarray:
    return (200 + lps @ (1, 2, 3)).astype(np.int16)


def gland(lps: np.ndarray) -> np.ndarray:
    return (np.linalg.norm(lps - CENTRE, axis=-1) < RADIUS).astype(np.uint8)


def zones(lps: np.ndarray) -> np.ndarray:
    """1 behind, 2 in front: both are gland."""
    return gland(lps) * (1 + (lps[..., 1] < CENTRE[1])).astype(np.uint8)


def to_itk(itk, voxels: np.ndarray, first: int = 0):
    """An ITK image of the slices from `first` on."""
    image = itk.GetImageFromArray(np.ascontiguousarray(voxels[..., first:].transpose(2, 1, 0)))
    image.SetSpacing(SPACING)
    image.SetOrigin((*ORIGIN[:2], ORIGIN[2] + first * SPACING[2]))
    return image


def write_dicom(itk, voxels: np.ndarray, folder: Path, uid: str, without: int | None = None) -> None:
    """One file a slice, named against the order of the positions."""
    folder.mkdir(parents=True)
    image = to_itk(itk, voxels.astype(np.int16))
    writer = itk.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    for i in range(image.GetSize()[2]):
        cut = image[:, :, i]
        position = "\\".join(map(str, image.TransformIndexToPhysicalPoint((0, 0, i))))
        tags = {
            "0008|0060": "MR", "0020|000d": f"1.2.{uid}", "0020|000e": f"1.2.{uid}.1", "0020|0013": str(i + 1),
            "0008|0018": f"1.2.{uid}.1.{i + 1}", "0020|0032": position, "0020|0037": "1\\0\\0\\0\\1\\0",
            "0018|0050": str(SPACING[2]),
        }  # fmt: skip
        for tag, value in tags.items():
            cut.SetMetaData(tag, value)
        if i != without:
            writer.SetFileName(str(folder / f"1-{SHAPE[2] - i:02d}.dcm"))
            writer.Execute(cut)


def assert_site(out: Path, site: str, stems: list[str]) -> None:
    """Every voxel has the value of its place, the mask is the ball, and both have one affine."""
    task = build_settings("prostate", "fedsm").task
    assert len([read_pair(pair, site, task) for pair in list_pairs(out / site, site)]) == len(stems)
    for stem in stems:
        image, mask = (nibabel.load(out / site / part / f"{stem}.nii.gz") for part in ("images", "masks"))
        assert np.array_equal(image.affine, mask.affine) and image.shape == mask.shape == SHAPE
        voxels = np.stack(np.meshgrid(*map(np.arange, SHAPE), indexing="ij"), -1)
        lps = nibabel.affines.apply_affine(image.affine, voxels) * (-1, -1, 1)
        assert np.array_equal(np.asanyarray(image.dataobj), values(lps))
        assert np.array_equal(np.asanyarray(mask.dataobj), gland(lps)) and mask.get_data_dtype() == np.uint8


def test_i2cvb_meets_by_position_and_leaves_the_defect_out(itk, tmp_path):
    lps, raw = place(), tmp_path / "raw"
    for i, patient in enumerate(("GE/Patient 383", "Siemens/Patient 1036", "Siemens/Patient 428260")):
        write_dicom(itk, values(lps), raw / patient / "T2W", f"{i}1")
        write_dicom(itk, gland(lps) * 255, raw / patient / "GT" / "prostate", f"{i}2")
        write_dicom(itk, gland(lps), raw / patient / "GT" / "cap", f"{i}3")
    assert prepare("i2cvb", raw, tmp_path / "out") == 2
    assert_site(tmp_path / "out", "i2cvb", ["GE_Patient_383", "Siemens_Patient_1036"])
    write_dicom(itk, values(lps), raw / "GE" / "Patient 9" / "T2W", "77", without=4)
    with pytest.raises(UserError, match="Patient 9/T2W has no folder GT/prostate"):
        prepare("i2cvb", raw, tmp_path / "other")
    write_dicom(itk, gland(lps), raw / "GE" / "Patient 9" / "GT" / "prostate", "78")
    with pytest.raises(UserError, match="a slice of .*Patient 9/T2W is missing"):
        prepare("i2cvb", raw, tmp_path / "other")


def test_msd_takes_t2_and_joins_the_zones(tmp_path):
    lps, affine = (
        place(),
        np.diag([-1, -1, 1, 1])
        @ np.block([[np.diag(SPACING), np.array(ORIGIN)[:, None]], [np.zeros((1, 3)), np.ones((1, 1))]]),
    )
    task = tmp_path / "raw" / "Task05_Prostate"
    for folder in ("imagesTr", "labelsTr", "imagesTs"):
        (task / folder).mkdir(parents=True)
    for number in ("00", "01", "10"):
        both = np.stack([values(lps), np.zeros(SHAPE, np.int16)], -1).astype(np.float32)
        nibabel.save(nibabel.Nifti1Image(both, affine), task / "imagesTr" / f"prostate_{number}.nii.gz")
        nibabel.save(nibabel.Nifti1Image(zones(lps), affine), task / "labelsTr" / f"prostate_{number}.nii.gz")
        (task / "imagesTr" / f"._prostate_{number}.nii.gz").touch()
    nibabel.save(nibabel.Nifti1Image(both, affine), task / "imagesTs" / "prostate_03.nii.gz")
    assert prepare("msd-task05", tmp_path / "raw", tmp_path / "out") == 3
    assert_site(tmp_path / "out", "msd-task05", ["prostate_00", "prostate_01", "prostate_10"])
    (task / "imagesTr" / "prostate_01.nii.gz").write_bytes(b"")
    with pytest.raises(UserError, match=r"prostate_01.nii.gz or its label cannot be read .*download both again"):
        prepare("msd-task05", tmp_path / "raw", tmp_path / "other")


def nci_isbi(itk, raw: Path) -> None:
    lps = place()
    for i, (case, path) in enumerate(
        [
            ("Prostate3T-01-0001", "Training/Prostate3T-01-0001"),
            ("Prostate3T-01-0031", "Test/Prostate3T-01-0031_truth"),
            ("ProstateDx-01-0006", "Training/ProstateDx-01-0006_correctedLabels"),
            ("ProstateDx-01-0055", "Training/ProstateDx-01-0055"),
        ]
    ):
        collection = "Prostate-3T" if "3T" in case else "PROSTATE-DIAGNOSIS"
        study = raw / "manifest-1" / collection / case / "03-15-2003-NA-MR prostaat-79232"
        write_dicom(itk, values(lps), study / "2.000000-t2tsetra-49698", f"{i}1")
        (raw / path).parent.mkdir(exist_ok=True)
        # The last has a mask of fewer slices, as its namesake: it starts two slices higher.
        itk.WriteImage(to_itk(itk, zones(lps), 1 if case.endswith("55") else 0), str(raw / f"{path}.nrrd"))
    extra = raw / "manifest-1" / "Prostate-3T" / "Prostate3T-03-0001" / "study" / "1.0-t2tsetra"
    write_dicom(itk, values(lps), extra, "91")  # more patients than masks


def test_nci_isbi_is_two_sites(itk, tmp_path):
    nci_isbi(itk, tmp_path / "raw")
    assert prepare("nci-isbi-3t", tmp_path / "raw", tmp_path / "out") == 2
    assert prepare("nci-isbi-dx", tmp_path / "raw", tmp_path / "out") == 2
    assert_site(tmp_path / "out", "nci-isbi-3t", ["Prostate3T-01-0001", "Prostate3T-01-0031"])
    assert_site(tmp_path / "out", "nci-isbi-dx", ["ProstateDx-01-0006", "ProstateDx-01-0055"])


def test_nci_isbi_wrong_places_and_many_series_are_named(itk, tmp_path):
    raw = tmp_path / "raw"
    nci_isbi(itk, raw)
    far = to_itk(itk, zones(place()))
    far.SetOrigin((500, 0, 0))
    itk.WriteImage(far, str(raw / "Training" / "ProstateDx-01-0055.nrrd"))
    with pytest.raises(UserError, match="0055.nrrd does not lie inside its image"):
        prepare("nci-isbi-dx", raw, tmp_path / "out")
    study = raw / "manifest-1" / "Prostate-3T" / "Prostate3T-01-0001" / "again"
    write_dicom(itk, values(place()), study / "9.0-t2tsetra", "93")
    with pytest.raises(UserError, match="2 DICOM series for .*0001.nrrd .*keep the axial T2"):
        prepare("nci-isbi-3t", raw, tmp_path / "out")


def test_promise12_leaves_the_test_folder_alone(itk, tmp_path):
    lps, raw = place(), tmp_path / "raw"
    for folder, case in (("TrainingData_Part1", "Case00"), ("TrainingData_Part2", "Case17"), ("TestData", "Case00")):
        (raw / folder).mkdir(parents=True)
        itk.WriteImage(to_itk(itk, values(lps)), str(raw / folder / f"{case}.mhd"))
        if folder != "TestData":
            itk.WriteImage(to_itk(itk, gland(lps)), str(raw / folder / f"{case}_segmentation.mhd"))
    assert prepare("promise12", raw, tmp_path / "out") == 2
    assert_site(tmp_path / "out", "promise12", ["Case00", "Case17"])
    (raw / "TrainingData_Part2" / "Case17.raw").unlink()
    with pytest.raises(UserError, match=r"Case17.mhd cannot be read"):
        prepare("promise12", raw, tmp_path / "other")


def test_prostatex_dicom_of_the_listed_series_or_nifti(itk, tmp_path):
    lps, raw = place(), tmp_path / "raw"
    repository = raw / "PROSTATEx_masks" / "Files" / "prostate"
    for folder in (
        repository / "mask_prostate",
        repository / "Images",
        raw / "PROSTATEx_masks/Files/lesions/Images/T2",
    ):
        folder.mkdir(parents=True)
    for name in ("ProstateX-0000", "ProstateX-0005", "ProstateX-080"):
        itk.WriteImage(to_itk(itk, gland(lps)), str(repository / "mask_prostate" / f"{name}.nii.gz"))
    (repository / "image_list.csv").write_text(
        "T2\nProstateX-0000_t2_tse_tra_4\nProstateX-0005_t2_tse_tra_6\nProstateX-0080_t2_tse_tra_Grappa3_2\n"
    )
    study = raw / "PROSTATEx" / "ProstateX-0000" / "07-07-2011-NA-MR prostaat-05711"
    write_dicom(itk, values(lps), study / "4.000000-t2tsetra-00702", "1")
    write_dicom(itk, values(lps) * 0, study / "14.000000-t2tsetra-00703", "2")
    write_dicom(itk, values(lps), raw / "PROSTATEx" / "ProstateX-0080" / "s" / "2.000000-t2tsetraGrappa3-1", "3")
    itk.WriteImage(to_itk(itk, values(lps)), str(repository / "Images" / "ProstateX-0005_t2_tse_tra_6.nii.gz"))
    lesion = raw / "PROSTATEx_masks/Files/lesions/Images/T2" / "ProstateX-0005_t2_tse_tra_6.nii.gz"
    itk.WriteImage(to_itk(itk, values(lps) * 0), str(lesion))
    assert prepare("prostatex", raw, tmp_path / "out") == 3
    assert_site(tmp_path / "out", "prostatex", ["ProstateX-0000", "ProstateX-0005", "ProstateX-0080"])
    itk.WriteImage(to_itk(itk, gland(lps)), str(repository / "mask_prostate" / "ProstateX-0007.nii.gz"))
    with pytest.raises(UserError, match="ProstateX-0007.nii.gz has no image: .*download it or remove the mask"):
        prepare("prostatex", raw, tmp_path / "other")
