"""A dataset of nnU-Net becomes sites, and sites become one: the same tensors and splits, whatever the layout."""

import csv
import json
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from app_fedsm.cli.main import main
from app_fedsm.config.build import build_settings
from fedsm.core.task_settings import TaskSettings
from fedsm.data.dataset import load_site
from fedsm.data.formats.nnunet_labels import classes_of
from tests.helpers.small_jobs import write_site

AFFINE = np.array([[-0.5, 0, 0, 10], [0, 0, 0.8, 0], [0, 3.0, 0, -5], [0, 0, 0, 1]])  # slices along the second axis


def write_dataset(folder: Path, tests: bool = False) -> Path:
    """Two-channel volumes of the sites north (6 cases) and south (4), with two labels."""
    rng = np.random.default_rng(0)
    parts = {"Tr": [f"north_{i}" for i in range(6)] + [f"south_{i}" for i in range(4)]}
    parts |= {"Ts": ["north_t0", "south_t0"]} if tests else {}
    for part, names in parts.items():
        for kind in ("images", "labels"):
            (folder / f"{kind}{part}").mkdir(parents=True)
        for name in names:
            for channel, top in enumerate((100, 3000)):
                voxels = rng.integers(0, top, (12, 4, 10), np.int16)
                file = folder / f"images{part}" / f"{name}_{channel:04d}.nii.gz"
                nibabel.save(nibabel.Nifti1Image(voxels, AFFINE), file)
            labels = rng.integers(0, 3, (12, 4, 10), np.uint8)
            nibabel.save(nibabel.Nifti1Image(labels, AFFINE), folder / f"labels{part}" / f"{name}.nii.gz")
    described = {
        "channel_names": {"0": "T2", "1": "ADC"}, "labels": {"background": 0, "gland": [1, 2], "tumour": 2},
        "regions_class_order": [1, 2], "numTraining": 10, "file_ending": ".nii.gz",
    }  # fmt: skip
    (folder / "dataset.json").write_text(json.dumps(described))
    rows = [f"{n},{n.split('_')[0]},{part}{i // 2}" for part, names in parts.items() for i, n in enumerate(names)]
    (folder / "sites.csv").write_text("\n".join(["case,hospital,patient", *rows]) + "\n")
    folds = [{"train": parts["Tr"][1:], "val": parts["Tr"][:1]}] * 2
    folds[1] = {"train": ["north_0", "north_1", "south_0", "south_1"]}
    folds[1]["val"] = [name for name in parts["Tr"] if name not in folds[1]["train"]]
    (folder / "splits_final.json").write_text(json.dumps(folds))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("raw") / "Dataset007_Gland", tests=True)


@pytest.fixture
def dataset(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "Dataset007_Gland"))


def bring(dataset, out, *options, by="sites.csv:hospital"):
    return main(["data", "import", "nnunet", str(dataset), str(out), "--site-by", by, *options])


def test_channels_sites_patients_and_a_fold(dataset, tmp_path, capsys):
    """Both channels are one volume; masks are links; our parts are the fold's, and imagesTs is the test part."""
    out = tmp_path / "data"
    assert bring(dataset, out, "--patient-by", "sites.csv:patient", "--fold", "1") == 0
    said = capsys.readouterr().out
    assert f"fedsm run --task {out}/task.yaml --data {out}" in said and "north 7, south 5" in said
    assert "12 linked, 0 copied, 12 stacked" in said
    image = nibabel.load(out / "north" / "images" / "north_3.nii.gz")
    for channel in range(2):
        source = nibabel.load(dataset / "imagesTr" / f"north_3_{channel:04d}.nii.gz")
        assert np.array_equal(np.asarray(image.dataobj)[..., channel], np.asarray(source.dataobj))
    assert np.array_equal(image.affine, source.affine) and image.get_data_dtype() == np.int16
    assert (out / "north/masks/north_3.nii.gz").samefile(dataset / "labelsTr/north_3.nii.gz")
    assert (out / "north/images/north_3.nii.gz").stat().st_mode & 0o77 == 0 and out.stat().st_mode & 0o77 == 0
    assert json.loads((out / "south/splits.json").read_text()) == {
        "train": ["south_0", "south_1"], "validation": ["south_2", "south_3"], "test": ["south_t0"],
    }  # fmt: skip
    assert "south_3,Tr4" in (out / "south/patients.csv").read_text()
    settings = build_settings(str(out / "task.yaml"), "fedsm", size=32)
    task = settings.task
    assert (task.name, task.channels, task.intensity) == ("gland", 2, "channel_percentiles")
    assert task.labels == {"gland": [1, 2], "tumour": [2]}
    parts = load_site(out / "north", "north", settings)
    assert parts["test"].images.shape == (4, 2, 32, 32) and len(parts["train"]) == 8


def test_without_a_fold_the_split_is_drawn_later(dataset, tmp_path, capsys):
    assert bring(dataset, tmp_path / "data", by="(?P<site>[a-z]+)_.*") == 0
    assert "left out: the cases of" in capsys.readouterr().out
    assert not list((tmp_path / "data").glob("*/*.*")), "neither splits.json nor patients.csv"
    assert len(list((tmp_path / "data/north/images").iterdir())) == 6


def test_without_test_cases_half_of_the_validation_patients_are_drawn(dataset, tmp_path):
    """South validates with one patient only, if south_2 and south_3 are of one: too few."""
    for part in ("imagesTs", "labelsTs"):
        shutil.rmtree(dataset / part)
    assert bring(dataset, tmp_path / "a", "--fold", "1") == 0
    parts = json.loads((tmp_path / "a/north/splits.json").read_text())
    assert sorted(parts["validation"] + parts["test"]) == [f"north_{i}" for i in range(2, 6)]
    assert len(parts["test"]) == 2 and parts["train"] == ["north_0", "north_1"]
    assert bring(dataset, tmp_path / "b", "--fold", "1") == 0
    assert json.loads((tmp_path / "b/north/splits.json").read_text()) == parts, "the same each time"
    assert bring(dataset, tmp_path / "c", "--fold", "1", "--patient-by", "sites.csv:patient") == 2


def rename(dataset, old, new):
    (dataset / old).rename(dataset / new)


def change(folder, **values):
    file = folder / "dataset.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def other_grid(dataset):
    file = dataset / "imagesTr/north_2_0001.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.zeros((12, 4, 10), np.int16), AFFINE @ np.diag([-1, 1, 1, 1])), file)


def leave(dataset, name):
    (dataset / name).unlink()
    (dataset / name).symlink_to("/etc/passwd")


WRONG = {
    "no dataset.json": (lambda d: (d / "dataset.json").unlink(), "cannot be read"),
    "v1": (lambda d: (d / "dataset.json").write_text('{"modality": {}}'), "is of nnU-Net v1"),
    "no JSON": (lambda d: (d / "dataset.json").write_text("[" * 100_000), "cannot be read"),
    "channels": (lambda d: change(d, channel_names={"0": "T2", "2": "ADC"}), "must number the channels from 0"),
    "ending": (lambda d: change(d, file_ending=".nrrd"), "file_ending is '.nrrd'"),
    "ignore": (lambda d: change(d, labels={"background": 0, "a": 1, "ignore": 2}), "`ignore`"),
    "label": (lambda d: change(d, labels={"background": 0, "a/b": 1}), "is no name of a label"),
    "value": (lambda d: change(d, labels={"background": 0, "a": 1}), "holds the value 2"),
    "missing channel": (lambda d: (d / "imagesTr/north_1_0000.nii.gz").unlink(), "channel 0 of this case is missing"),
    "one channel": (lambda d: (d / "imagesTr/north_1_0001.nii.gz").unlink(), "has 1 file, but"),
    "no labels": (lambda d: (d / "labelsTr/north_1.nii.gz").unlink(), "has no labelsTr/north_1.nii.gz"),
    "no image": (lambda d: shutil.copy(d / "labelsTr/north_1.nii.gz", d / "labelsTr/x.nii.gz"), "has no image in"),
    "no number": (lambda d: rename(d, "imagesTr/north_1_0000.nii.gz", "imagesTr/north.nii.gz"), "a channel's number"),
    "grid of a channel": (other_grid, "is not on"),
    "link": (lambda d: leave(d, "labelsTr/north_1.nii.gz"), "leads out of"),
    "path in JSON": (
        lambda d: change(d, dataset={"a": {"images": ["../../etc/passwd"], "label": "b"}}), "leads out of",
    ),
    "name in JSON": (
        lambda d: change(d, dataset={"../a": {"images": ["x.nii.gz"], "label": "y.nii.gz"}}), "cannot be a file's name",
    ),
    "kind in JSON": (
        lambda d: change(d, dataset={"a": {"images": ["x.png"], "label": "y.nii.gz"}}), "does not end with .nii.gz",
    ),
    "null byte": (lambda d: change(d, dataset={"a": {"images": ["x\0"], "label": "y"}}), "must give each case"),
    "unknown site": (lambda d: (d / "sites.csv").write_text("case,hospital\nnorth_0,a\n"), "does not say the site of"),
    "site's name": (lambda d: (d / "sites.csv").write_text("case,hospital\nnorth_0,../a\n"), "the site '../a'"),
    "two sites": (lambda d: (d / "sites.csv").write_text("case,hospital\nx,a\nx,b\n"), "line 3: gives 'x' a second"),
    "no column": (lambda d: (d / "sites.csv").write_text("case,place\nnorth_0,a\n"), "lacks the column 'hospital'"),
    "no cases": (lambda d: (d / "sites.csv").write_text("id,hospital\nnorth_0,a\n"), "lacks a column 'case'"),
}  # fmt: skip


@pytest.mark.parametrize("how", WRONG)
def test_what_is_wrong_is_one_line_and_nothing_is_written(dataset, tmp_path, capsys, how):
    spoil, words = WRONG[how]
    spoil(dataset)
    assert bring(dataset, tmp_path / "data") == 2
    error = capsys.readouterr().err
    assert words in error and len(error.strip().splitlines()) == 1, error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Dataset007_Gland"]


@pytest.mark.parametrize(
    ("folds", "words"),
    [
        ([{"train": ["north_0"], "val": []}], "does not name 'north_1'"),
        ([{"train": ["north_0"], "val": ["north_0"]}], "which is in both lists"),
        ([{"train": ["elsewhere"], "val": []}], "which is no case of imagesTr"),
        ([{"train": 3, "val": []}], "must hold the lists"),
        ([{"train": [["north_0"]], "val": []}], "must hold the lists"),
        ({}, "has no fold 0"),
        ([], "has no fold 0"),
    ],
)
def test_folds_that_cannot_be_used(dataset, tmp_path, capsys, folds, words):
    (tmp_path / "folds.json").write_text(json.dumps(folds))
    options = ("--fold", "0", "--splits", str(tmp_path / "folds.json"))
    assert bring(dataset, tmp_path / "data", *options) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "data").exists()


def test_options_and_places(dataset, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    for out, options, words in (
        ("full", [], "is there already"),
        ("Dataset007_Gland/data", [], "lies in"),
        ("data", ["--splits", "x"], "--splits needs --fold"),
        ("data", ["--site-by", "north"], "is neither a table nor a pattern"),
        ("data", ["--site-by", "(?P<site>["], "is no regular expression"),
        ("data", ["--site-by", "none.csv:site"], "there is no file none.csv"),
        ("data", ["--fold", "0"], "site 'south'"),
    ):
        assert bring(dataset, tmp_path / out, *options) == 2
        error = capsys.readouterr().err
        assert words in error and len(error.strip().splitlines()) == 1, error
    assert (tmp_path / "full/mine.txt").read_text() == "mine"


def same_after_a_round_trip(root: Path, task: str, size: int, tmp_path: Path) -> Path:
    """Exports the sites and imports them again: the same tensors in the same parts. Returns the dataset."""
    raw, back = tmp_path / "Dataset501_Test", tmp_path / "back"
    assert main(["data", "export", "nnunet", str(root), str(raw), "--task", task, "--seed", "3"]) == 0
    assert bring(raw, back, "--fold", "0", "--patient-by", "sites.csv:patient", by="sites.csv:site") == 0
    ours = build_settings(task, "fedsm", size=size, seed=3)
    theirs = build_settings(str(back / "task.yaml"), "fedsm", size=size)
    assert list(theirs.task.labels) == list(ours.task.labels)
    for site in sorted(path.name for path in root.iterdir() if path.is_dir()):
        before, after = load_site(root / site, site, ours), load_site(back / site, site, theirs)
        for part in before:
            assert torch.equal(before[part].images, after[part].images), (site, part)
            assert torch.equal(before[part].labels, after[part].labels), (site, part)
            assert before[part].patients == after[part].patients
    return raw


def test_pictures_there_and_back(tmp_path):
    """Disc and cup overlap: regions. A JPEG and a grey picture become RGB PNG; the others are links."""
    for seed, site in enumerate(("a", "b_2")):
        write_site(tmp_path / "root" / site, 9, seed)
    (tmp_path / "root/a/patients.csv").write_text(
        "file,patient\n" + "".join(f"case_{i:02d},=p{i // 2}\n" for i in range(9))
    )
    odd = tmp_path / "root/b_2/images/case_03.png"
    Image.open(odd).save(odd.with_suffix(".jpg"))
    odd.unlink()
    grey = tmp_path / "root/b_2/images/case_04.png"
    Image.open(grey).convert("L").save(grey)
    raw = same_after_a_round_trip(tmp_path / "root", "retinal", 32, tmp_path)
    described = json.loads((raw / "dataset.json").read_text())
    assert described["labels"] == {"background": 0, "disc": [1, 2], "cup": 2}
    assert described["regions_class_order"] == [1, 2] and described["file_ending"] == ".png"
    assert described["channel_names"] == {"0": "R", "1": "G", "2": "B"}
    assert described["numTraining"] == len(list((raw / "imagesTr").iterdir()))
    rows, copied = list(csv.DictReader((raw / "sites.csv").open())), []
    for row in rows:
        image = raw / ("imagesTs" if row["part"] == "test" else "imagesTr") / f"{row['case']}_0000.png"
        if not image.samefile(tmp_path / "root" / row["site"] / "images" / row["file"]):
            copied.append(row["file"])
    assert len(rows) == 18 and copied == ["case_03.jpg", "case_04.png"] and rows[0]["patient"] == "=p0"
    (fold,) = json.loads((raw / "splits_final.json").read_text())
    assert len(fold["train"]) + len(fold["val"]) == described["numTraining"]


def test_volumes_there_and_back(dataset, tmp_path):
    """Two channels as two files and together again; a mask's values 255 and 7 become 1 and 2."""
    assert bring(dataset, tmp_path / "root", "--fold", "1") == 0
    task = (tmp_path / "root/task.yaml").read_text().replace("- 1\n", "- 255\n").replace("- 2\n", "- 7\n")
    (tmp_path / "task.yaml").write_text(task)
    for file in (tmp_path / "root").glob("*/masks/*"):
        mask = nibabel.load(file)
        values = np.array([0, 255, 7], np.uint8)[np.asarray(mask.dataobj)]
        file.unlink()  # a link: the dataset keeps its own
        nibabel.save(nibabel.Nifti1Image(values, mask.affine), file)
    raw = same_after_a_round_trip(tmp_path / "root", str(tmp_path / "task.yaml"), 32, tmp_path)
    assert len(list((raw / "imagesTs").iterdir())) == 4 and len(list((raw / "labelsTs").iterdir())) == 2
    label = nibabel.load(next((raw / "labelsTr").iterdir()))
    assert sorted(np.unique(np.asarray(label.dataobj))) == [0, 1, 2] and np.allclose(label.affine, AFFINE)


def test_an_export_that_cannot_be(tmp_path, capsys):
    write_site(tmp_path / "root" / "a", 4, 0)
    (tmp_path / "float").mkdir()
    shutil.copytree(tmp_path / "root" / "a", tmp_path / "float" / "a")
    image = tmp_path / "float/a/images/case_01.png"
    Image.fromarray(np.random.default_rng(0).random((40, 40), np.float32)).save(image.with_suffix(".tif"))
    image.unlink()
    for root, out, options, words in (
        ("root", "nuclei", ["--task", "retinal"], "call the folder Dataset501_NAME"),
        ("root", "Dataset501_A", ["--task", "nuclei"], "holds the value"),
        ("root", "Dataset501_A", ["--task", "retinal", "--channel-names", "R"], "the task has 3 channels"),
        ("float", "Dataset501_A", ["--task", "retinal"], "do not go into PNG"),
    ):
        assert main(["data", "export", "nnunet", str(tmp_path / root), str(tmp_path / out), *options]) == 2
        error = capsys.readouterr().err
        assert words in error and len(error.strip().splitlines()) == 1, error
        assert not (tmp_path / out).exists()


def written(classes, found):
    """nnU-Net's way from regions to a mask: one after the other, in the order of the labels."""
    result = 0
    for label, number in zip(list(classes.labels)[1:], classes.order, strict=True):
        if found in np.atleast_1d(classes.labels[label]):
            result = number
    return result


@pytest.mark.parametrize(
    "labels",
    [
        {"cup": [2], "disc": [1, 2]},
        {"whole": [1, 2, 4], "core": [1, 4], "enhancing": [4]},
        {"left": [1], "right": [2], "both": [1, 2]},
        {"one": [9], "same": [9]},
    ],
)
def test_regions_come_back_as_the_classes_that_they_are_made_of(labels):
    classes = classes_of(TaskSettings.from_dict({"name": "t", "channels": 1, "labels": labels}))
    numbers = set(classes.of_value.values())
    assert numbers == set(range(1, len(numbers) + 1))
    assert all(written(classes, number) == number for number in numbers)


def test_labels_that_cross_cannot_be_one_mask(tmp_path, capsys):
    (tmp_path / "t.yaml").write_text("name: t\nchannels: 1\nlabels: {a: [1, 2], b: [2, 3]}\n")
    (tmp_path / "root").mkdir()
    root, out = tmp_path / "root", tmp_path / "Dataset501_A"
    assert main(["data", "export", "nnunet", str(root), str(out), "--task", str(tmp_path / "t.yaml")]) == 2
    assert "nnU-Net cannot write them as one mask" in capsys.readouterr().err
