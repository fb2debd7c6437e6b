"""`fedsm predict` on files: masks on the input's grid, one line for what is bad, nothing overwritten."""

import csv
import json
import re

import nibabel
import numpy as np
import pytest
from PIL import Image

from app_fedsm.cli.main import main
from fedsm.data.readers import read
from fedsm.data.writers import pixel_area, write_mask
from fedsm.super_model.table import cup_to_disc
from tests.helpers.small_model import write_super_model

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (37, 53, 3), np.uint8)
FORMATS = ("png", "jpg", "tif", "bmp", "gif", "ppm")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_super_model(tmp_path_factory.mktemp("model"))


def rows_of(out):
    with (out / "predictions.csv").open() as f:
        return list(csv.DictReader(f))


def test_every_format(model, tmp_path, capsys):
    for ending in FORMATS:
        (tmp_path / "in" / ending).mkdir(parents=True)
        Image.fromarray(RGB).save(tmp_path / "in" / ending / f"a.{ending}")
    Image.fromarray(RGB[..., 0]).save(tmp_path / "in" / "grey.png")
    Image.fromarray(RGB[:1, :1]).save(tmp_path / "in" / "dot.png")
    (tmp_path / "in" / "notes.txt").write_text("no image")
    out = tmp_path / "out"
    assert main(["predict", str(model), str(tmp_path / "in"), "-o", str(out)]) == 0
    assert "8 images" in capsys.readouterr().out
    table = {row["file"]: row for row in rows_of(out)}
    assert set(table) == {f"{e}/a.{e}" for e in FORMATS} | {"grey.png", "dot.png"}
    assert set(table["grey.png"]) == {
        "file", "slice", "series_uid", "instance_uid", "model", "confidence", "distance", "foreign", "seconds",
        "disc_pixels", "disc_mm2", "cup_pixels", "cup_mm2", "vertical_cup_to_disc",
    }  # fmt: skip
    for ending in FORMATS:
        kept = "png" if ending == "jpg" else ending
        mask = read(out / "masks" / ending / f"a.{kept}", mask=True)
        assert mask.shape == (1, 37, 53, 1) and set(np.unique(mask)) <= {0, 1, 2}
        row = table[f"{ending}/a.{ending}"]
        assert [int(row[f"{label}_pixels"]) for label in ("disc", "cup")] == [(mask > 0).sum(), (mask == 2).sum()]
        overlay = np.asarray(Image.open(out / "overlays" / ending / "a.png"))
        assert overlay.shape == (37, 53, 3)
    same = [read(out / "masks" / e / f"a.{e}", mask=True) for e in ("png", "tif", "bmp", "ppm")]
    assert all(np.array_equal(same[0], other) for other in same), "one image, one mask, whatever the format"
    assert Image.open(out / "masks" / "dot.png").size == (1, 1)


def test_twice_the_same_and_never_overwritten(model, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for i in range(5):
        Image.fromarray(np.roll(RGB, 7 * i, axis=0)).save(tmp_path / "in" / f"{i}.png")
    arguments = ["predict", str(model), str(tmp_path / "in"), "--no-overlays", "-o"]
    assert main([*arguments, str(tmp_path / "a"), "--batch-size", "2"]) == 0
    assert main([*arguments, str(tmp_path / "b"), "--batch-size", "5"]) == 0
    for i in range(5):
        assert (tmp_path / "a/masks" / f"{i}.png").read_bytes() == (tmp_path / "b/masks" / f"{i}.png").read_bytes()
    assert not (tmp_path / "a" / "overlays").exists()
    capsys.readouterr()
    assert main([*arguments, str(tmp_path / "a")]) == 2
    assert "not empty" in capsys.readouterr().err
    assert main([*arguments, str(tmp_path / "a"), "--force"]) == 0
    assert main([*arguments, str(tmp_path / "in" / "out")]) == 2
    assert "lies among the images" in capsys.readouterr().err


def test_names_do_not_collide(model, tmp_path, capsys):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        Image.fromarray(RGB).save(tmp_path / folder / "a.png")
    inputs = [str(tmp_path / "x" / "a.png"), str(tmp_path / "y" / "*.png"), str(tmp_path / "x")]
    assert main(["predict", str(model), *inputs, "-o", str(tmp_path / "out")]) == 0
    assert sorted(row["file"] for row in rows_of(tmp_path / "out")) == ["x/a.png", "y/a.png"]
    Image.fromarray(RGB).save(tmp_path / "x" / "a.bmp")
    assert main(["predict", str(model), str(tmp_path / "x"), "-o", str(tmp_path / "out2")]) == 2
    assert "have the same name" in capsys.readouterr().err
    assert not (tmp_path / "out2").exists()


def test_masks_of_a_site_are_no_images(model, data_root, tmp_path):
    assert main(["predict", str(model), str(data_root / "site-2"), "-o", str(tmp_path / "out"), "--no-overlays"]) == 0
    assert {row["file"].split("/")[0] for row in rows_of(tmp_path / "out")} == {"images"}
    assert len(rows_of(tmp_path / "out")) == 12


@pytest.mark.parametrize("codes", ["RAS", "LPS", "PIR"])
def test_volume_masks_lie_on_their_image(tmp_path, codes):
    """What the reader turns, the writer turns back: a mask of the image's own values is the image."""
    ras = nibabel.Nifti1Image(np.arange(60, dtype=np.uint8).reshape(5, 4, 3), np.diag([1.5, 2.0, 3.0, 1.0]))
    target = nibabel.orientations.axcodes2ornt(codes)
    image = ras.as_reoriented(nibabel.orientations.ornt_transform(nibabel.io_orientation(ras.affine), target))
    image.header["descrip"] = b"scanner 7"
    nibabel.save(image, tmp_path / "a.nii.gz")
    channels = nibabel.Nifti1Image(np.stack([np.asarray(image.dataobj)] * 2, -1), image.affine, image.header)
    nibabel.save(channels, tmp_path / "c.nii.gz")
    write_mask(tmp_path / "mc.nii.gz", read(tmp_path / "c.nii.gz")[..., 1], tmp_path / "c.nii.gz")
    assert np.array_equal(np.asarray(nibabel.load(tmp_path / "mc.nii.gz").dataobj), np.asarray(image.dataobj))
    write_mask(tmp_path / "m.nii.gz", read(tmp_path / "a.nii.gz")[..., 0], tmp_path / "a.nii.gz")
    mask = nibabel.load(tmp_path / "m.nii.gz")
    assert np.array_equal(np.asarray(mask.dataobj), np.asarray(image.dataobj)) and mask.get_data_dtype() == np.uint8
    assert np.array_equal(mask.affine, image.affine) and mask.header["descrip"] == image.header["descrip"]
    assert pixel_area(tmp_path / "a.nii.gz") == pytest.approx(3.0)


def test_bad_files_are_a_line_each_and_the_rest_goes_on(model, tmp_path, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    Image.fromarray(RGB).save(folder / "good.png")
    (folder / "corrupt.png").write_bytes((folder / "good.png").read_bytes()[:90])
    (folder / "empty.jpg").write_bytes(b"")
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 3, 2), np.int16), np.eye(4)), folder / "four.nii.gz")
    nibabel.save(nibabel.Nifti1Image(np.full((4, 4, 3), np.nan, np.float32), np.eye(4)), folder / "nan.nii.gz")
    nibabel.save(nibabel.Nifti1Image(np.full((4, 4, 3), -5, np.int16), np.eye(4)), folder / "negative.nii.gz")
    (folder / "link.png").symlink_to(folder / "nowhere.png")
    assert main(["predict", str(model), str(folder), "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if line.startswith("fedsm: ")]
    for name in ("corrupt.png", "empty.jpg", "four.nii.gz", "nan.nii.gz", "negative.nii.gz", "link.png"):
        assert sum(name in line for line in lines) == 1, said.err
    assert len(lines) == 6 and "site " not in said.err and "Traceback" not in said.err
    assert "1 image or slice, 6 of 7 files could not be predicted" in said.out
    assert [row["file"] for row in rows_of(tmp_path / "out")] == ["good.png"]


def test_bad_input_is_one_line(model, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("x")
    Image.fromarray(RGB).save(tmp_path / "a.png")
    image = str(tmp_path / "a.png")
    broken = write_super_model(tmp_path)
    (broken / "personal.site-1.safetensors").unlink()
    cut = write_super_model(tmp_path / "cut")
    manifest = json.loads((cut / "manifest.json").read_text())
    del manifest["networks"]["personal.site-1"]
    (cut / "manifest.json").write_text(json.dumps(manifest))
    cases = [
        ([str(model), str(tmp_path / "empty")], "no images in"),
        ([str(model), str(tmp_path / "texts")], "no images in"),
        ([str(model), str(tmp_path / "nothing.png")], "does not exist"),
        ([str(model), str(tmp_path / "*.tif")], "no image matches"),
        ([str(broken), image], "personal.site-1.safetensors"),
        ([str(cut), image], "no network 'personal.site-1'"),
        ([str(tmp_path / "texts"), image], "give the folder of a super model"),
        ([str(model), image, "--site", "nobody"], "known: site-1, site-2"),
        ([str(model), image, "--device", "cuda:99"], "cannot be used"),
        ([str(model), image, "--batch-size", "0"], "at least 1"),
    ]
    for arguments, words in cases:
        assert main(["predict", *arguments, "-o", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert re.search(words, error), error
    assert not (tmp_path / "out").exists()


def test_cup_to_disc_by_hand():
    """The disc's tallest column has 4 pixels, the cup's 2; a stray cup pixel elsewhere changes nothing."""
    disc, cup = np.zeros((8, 8), bool), np.zeros((8, 8), bool)
    disc[2:6, 3:5], cup[3:5, 3], cup[7, 7] = True, True, True
    assert cup_to_disc(disc, cup) == 0.5
    assert cup_to_disc(np.zeros_like(disc), cup) is None


def test_nothing_could_be_predicted_leaves_nothing(model, tmp_path, capsys):
    """The same call works when the file is a picture: the folder is not in its way."""
    (tmp_path / "bad.png").write_bytes(b"no picture")
    command = ["predict", str(model), str(tmp_path / "bad.png"), "-o", str(tmp_path / "out")]
    assert main(command) == 1 and "none of 1 files" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
