"""BIDS with masks in derivatives: subjects are patients, sessions and runs find their masks, sites are a column."""

import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest

from app_fedsm.cli.main import main
from app_fedsm.config.build import build_settings
from fedsm.data.dataset import load_site


def volume(path: Path, top: int, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    voxels = np.random.default_rng(seed).integers(0, top, (10, 9, 3), np.int16)
    nibabel.save(nibabel.Nifti1Image(voxels, np.diag([0.6, 0.6, 3, 1])), path)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Six subjects at two sites. Subject 02 has two runs, 03 two sessions; 06 has no mask."""
    root = tmp_path_factory.mktemp("bids") / "ds000123"
    images = ["sub-01/anat/sub-01", "sub-02/anat/sub-02_run-1", "sub-02/anat/sub-02_run-2"]
    images += ["sub-03/ses-a/anat/sub-03_ses-a", "sub-03/ses-b/anat/sub-03_ses-b"]
    images += [f"sub-{i:02d}/anat/sub-{i:02d}" for i in (4, 5)]
    for seed, name in enumerate(images):
        volume(root / f"{name}_T2w.nii.gz", 500, seed)
        volume(root / f"{name}_ADC.nii.gz", 3000, 100 + seed)
        volume(root / "derivatives/manual" / f"{name}_space-orig_label-gland_mask.nii.gz", 2, seed)
    volume(root / "sub-06/anat/sub-06_T2w.nii.gz", 500)
    volume(root / "sub-01/func/sub-01_bold.nii.gz", 500)
    rows = [f"sub-{i:02d}\t{'uk' if i < 4 else 'nl'}\t{50 + i}" for i in range(1, 7)]
    (root / "participants.tsv").write_text("\n".join(["participant_id\tsite\tage", *rows]) + "\n")
    return root


@pytest.fixture
def dataset(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "ds000123"))


def bring(dataset, out, *options):
    site_by = ["--site-by", "participants.tsv:site"]
    return main(["data", "import", "bids", str(dataset), str(out), *site_by, *options])


def test_subjects_are_patients_and_runs_find_their_masks(dataset, tmp_path, capsys):
    out = tmp_path / "data"
    assert bring(dataset, out, "--image", "T2w") == 0
    said = capsys.readouterr().out
    assert "uk 5, nl 2" in said and "left out: 1 image without a mask" in said and "14 linked, 0 copied" in said
    for name, where in (("sub-02_run-2", "sub-02/anat"), ("sub-03_ses-b", "sub-03/ses-b/anat")):
        assert (out / f"uk/images/{name}.nii.gz").samefile(dataset / where / f"{name}_T2w.nii.gz")
        mask = dataset / "derivatives/manual" / where / f"{name}_space-orig_label-gland_mask.nii.gz"
        assert (out / f"uk/masks/{name}.nii.gz").samefile(mask)
    assert (out / "uk/patients.csv").read_text().split() == [
        "file,patient", "sub-01,sub-01", "sub-02_run-1,sub-02", "sub-02_run-2,sub-02", "sub-03_ses-a,sub-03",
        "sub-03_ses-b,sub-03",
    ]  # fmt: skip
    settings = build_settings(str(out / "task.yaml"), "fedsm", size=32)
    assert settings.task.labels == {"gland": [1]} and settings.task.intensity == "percentiles"
    assert load_site(out / "uk", "uk", settings)["train"].patients == 1


def test_two_kinds_of_images_are_channels(dataset, tmp_path):
    out = tmp_path / "data"
    assert bring(dataset, out, "--image", "T2w", "ADC") == 0
    settings = build_settings(str(out / "task.yaml"), "fedsm", size=32)
    assert (settings.task.channels, settings.task.intensity) == (2, "channel_percentiles")
    voxels = np.asarray(nibabel.load(out / "nl/images/sub-04.nii.gz").dataobj)
    adc = nibabel.load(dataset / "sub-04/anat/sub-04_ADC.nii.gz")
    assert np.array_equal(voxels[..., 1], np.asarray(adc.dataobj))


def test_segmentations_have_the_names_of_their_table(dataset, tmp_path):
    """Values 1 and 2 from the derivative's table; 3, which it does not name, gets its number."""
    for mask in (dataset / "derivatives/manual").glob("**/*_mask.nii.gz"):
        volume(mask.with_name(mask.name.replace("label-gland_mask", "dseg")), 4)
        mask.unlink()
    (dataset / "derivatives/manual/desc-x_dseg.tsv").write_text("index\tname\n1\tperipheral\n2\ttransition\n")
    assert bring(dataset, tmp_path / "data", "--image", "T2w") == 0
    task = build_settings(str(tmp_path / "data/task.yaml"), "fedsm").task
    assert task.labels == {"peripheral": [1], "transition": [2], "label 3": [3]}


def second_mask(root):
    volume(root / "derivatives/manual/sub-01/anat/sub-01_label-tumour_mask.nii.gz", 2)


def unfetched(root):
    """As DataLad leaves a file whose content is elsewhere."""
    file = root / "derivatives/manual/sub-04/anat/sub-04_space-orig_label-gland_mask.nii.gz"
    file.unlink()
    file.symlink_to(root / ".git/annex/objects/mask.nii.gz")


def second_derivative(root):
    volume(root / "derivatives/auto/sub-01/anat/sub-01_mask.nii.gz", 2)


@pytest.mark.parametrize(
    ("spoil", "options", "words"),
    [
        (lambda d: None, [], "has images of 2 kinds; choose with --image"),
        (lambda d: None, ["--image", "FLAIR"], "no image 'FLAIR' with a mask"),
        (lambda d: None, ["--image", "T2w", "FLAIR"], "has no FLAIR beside it"),
        (lambda d: None, ["--image", "T2w", "--derivative", "../.."], "no *_mask or *_dseg volume"),
        (lambda d: None, ["--image", "T2w", "--mask", "gland"], "--mask 'gland' is no entity"),
        (second_mask, ["--image", "T2w"], "has 2 masks"),
        (second_derivative, ["--image", "T2w"], "auto, manual in"),
        (unfetched, ["--image", "T2w"], "not a regular file"),
        (lambda d: shutil.rmtree(d / "derivatives"), ["--image", "T2w"], "no *_mask or *_dseg volume"),
        (lambda d: volume(d / "derivatives/manual/sub-04/anat/sub-04_space-orig_label-gland_mask.nii.gz", 900),
         ["--image", "T2w"], "the site 'n/a'"),
    ],
)  # fmt: skip
def test_what_is_ambiguous_or_missing_is_one_line(dataset, tmp_path, capsys, spoil, options, words):
    spoil(dataset)
    if "n/a" in words:
        table = dataset / "participants.tsv"
        table.write_text(table.read_text().replace("nl", "n/a"))
    assert bring(dataset, tmp_path / "data", *options) == 2
    error = capsys.readouterr().err
    assert words in error and len(error.strip().splitlines()) == 1, error
    assert not (tmp_path / "data").exists()


def test_a_choice_settles_it(dataset, tmp_path):
    second_mask(dataset)
    second_derivative(dataset)
    options = ["--image", "T2w", "--derivative", "manual", "--mask", "label-gland"]
    assert bring(dataset, tmp_path / "data", *options) == 0
