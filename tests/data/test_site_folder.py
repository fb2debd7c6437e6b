"""What is wrong with a site's folder is said in one line that names site, file and remedy."""

import shutil

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from app_fedsm.config.build import build_settings
from fedsm.core.errors import UserError
from fedsm.data.dataset import load_site, to_tensors
from fedsm.data.intensity import IntensityError, scale_intensity
from fedsm.data.site_folder import list_images, list_pairs, list_sites, read_pair
from fedsm.data.split import derive_seed, split_by_patient
from tests.helpers.small_jobs import small_settings, write_site

TASK = small_settings().task


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "hospital-a"
    write_site(folder, 5, seed=0)
    return folder


def damage(folder, how: str) -> str:
    """Damages a site; returns the name of the file that the error must name."""
    image, mask = folder / "images" / "case_01.png", folder / "masks" / "case_01.png"
    if how == "no mask":
        mask.unlink()
    elif how == "no image":
        image.unlink()
        return mask.name
    elif how == "truncated":
        image.write_bytes(image.read_bytes()[:200])
    elif how == "text":
        mask.write_text("this is no picture")
        return mask.name
    elif how == "empty file":
        image.write_bytes(b"")
    elif how == "other size":
        Image.fromarray(np.zeros((10, 20), np.uint8)).save(mask)
        return image.name
    elif how == "other value":
        Image.fromarray(np.full((40, 40), 7, np.uint8)).save(mask)
        return mask.name
    elif how == "colour mask":
        Image.fromarray(np.random.default_rng(0).integers(0, 2, (40, 40, 3), np.uint8)).save(mask)
        return mask.name
    elif how == "two of a name":
        Image.open(image).save(image.with_suffix(".bmp"))
        return "case_01.png"
    return image.name


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("no mask", "has no mask"), ("no image", "has no image"), ("truncated", "cannot be read"),
        ("text", "cannot be read"), ("empty file", "cannot be read"), ("other size", "both must have the same size"),
        ("other value", "holds the value 7"), ("colour mask", "one grey channel"),
        ("two of a name", "have the same name"),
    ],
)  # fmt: skip
def test_damage_is_named(site, how, words):
    name = damage(site, how)
    with pytest.raises(UserError) as caught:
        load_site(site, "hospital-a", small_settings())
    message = str(caught.value)
    assert words in message
    assert "'hospital-a'" in message
    assert name in message
    assert "\n" not in message
    assert name not in caught.value.public, "file names stay at the site"


def test_missing_and_empty_folders(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        list_sites(tmp_path / "nowhere")
    with pytest.raises(UserError, match="at least 2 sites"):
        list_sites(tmp_path)
    write_site(tmp_path / "one", 3, 0)
    with pytest.raises(UserError, match="only 'one'"):
        list_sites(tmp_path)
    (tmp_path / "two").mkdir()
    assert list_sites(tmp_path) == ["one", "two"], "every sub-folder is a site: none is left out in silence"
    with pytest.raises(UserError, match="images: the folder is missing"):
        list_pairs(tmp_path / "two", "two")
    (tmp_path / "two" / "images").mkdir()
    with pytest.raises(UserError, match="masks: the folder is missing"):
        list_pairs(tmp_path / "two", "two")
    (tmp_path / "two" / "masks").mkdir()
    with pytest.raises(UserError, match="no images in"):
        list_pairs(tmp_path / "two", "two")
    for name in ("bad name", "hospital.a", "server"):
        write_site(tmp_path / name, 3, 0)
        with pytest.raises(UserError, match="rename the folder"):
            list_sites(tmp_path)
        shutil.rmtree(tmp_path / name)


def test_sites_are_in_natural_order(tmp_path):
    for name in ("site-10", "site-2", "site-1"):
        write_site(tmp_path / name, 1, 0)
    assert list_sites(tmp_path) == ["site-1", "site-2", "site-10"]


def test_hidden_and_other_files_are_passed_over(site):
    (site / "images" / ".DS_Store").write_text("x")
    (site / "images" / "notes.txt").write_text("x")
    assert len(list_pairs(site, "hospital-a")) == 5


def test_labels_overlap_and_masks_stay_masks():
    """Values 0, 1, 2: disc is 1 and 2, cup is 2. 0/1 masks must not be divided by 255."""
    mask = np.array([[[0, 1], [2, 2]]], np.uint8).repeat(16, 1).repeat(16, 2)
    image = np.zeros((1, 32, 32, 3), np.uint8)
    _, labels = to_tensors(image, mask, TASK, 32)
    assert labels.shape == (1, 2, 32, 32)
    assert labels[0, 0].float().mean() == 0.75
    assert labels[0, 1].float().mean() == 0.5


def test_intensity():
    assert scale_intensity(np.array([0, 255], np.uint8), "unit").tolist() == [0, 1]
    assert scale_intensity(np.array([0, 65535], np.uint16), "unit").tolist() == [0, 1]
    assert scale_intensity(np.array([0, 65535], np.int32), "unit").tolist() == [0, 1]
    assert scale_intensity(np.array([0.0, 0.5]), "unit").tolist() == [0, 0.5]
    assert scale_intensity(np.array([0.0, 127.5]), "unit").tolist() == [0, 0.5]
    assert scale_intensity(np.array([0, 255], np.int16), "unit").tolist() == [0, 1], "a NIfTI of 8-bit values"
    for odd in (np.array([-1.0, 0.5]), np.array([0.0, 4095.0])):
        with pytest.raises(IntensityError, match="percentiles"):
            scale_intensity(odd, "unit")
    ramp = scale_intensity(np.arange(0, 1001, dtype=np.float32) * 3, "percentiles")
    assert ramp[0] == 0 and ramp[-1] == 1
    assert ramp[500] == pytest.approx(0.5, abs=1e-3)


def test_grey_where_colour_is_expected_and_the_reverse(tmp_path):
    folder = tmp_path / "grey"
    write_site(folder, 3, 0)
    for path in (folder / "images").iterdir():
        Image.open(path).convert("L").save(path)
    assert load_site(folder, "grey", small_settings())["train"].images.shape[1] == 3
    prostate = build_settings("prostate", "fedsm", size=32)
    colour = tmp_path / "colour"
    write_site(colour, 3, 0)
    for path in (colour / "masks").iterdir():
        Image.fromarray((np.asarray(Image.open(path)) > 0).astype(np.uint8)).save(path)
    assert load_site(colour, "colour", prostate)["train"].images.shape[1] == 1


def test_channels_of_volumes_are_images_of_their_own(tmp_path):
    """T2 of 0 to 100 and ADC of 0 to 3000, each between its own percentiles; neither is dropped as if it were alpha."""
    rng = np.random.default_rng(0)
    t2, adc = rng.integers(0, 100, (8, 8, 3), np.int16), rng.integers(0, 3000, (8, 8, 3), np.int16)
    for part, voxels in (("images", np.stack([t2, adc], -1)), ("masks", (t2 > 50).astype(np.uint8))):
        (tmp_path / part).mkdir()
        nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), tmp_path / part / "p1.nii.gz")
    task = build_settings("prostate", "fedsm", size=32).task
    (pair,) = list_pairs(tmp_path, "mr")
    with pytest.raises(UserError, match="has 2 channels, but task 'prostate' needs 1"):
        read_pair(pair, "mr", task)
    image, _ = read_pair(pair, "mr", task.replace(channels=2))
    assert image.shape == (3, 8, 8, 2)
    apart, joint = (scale_intensity(image, how) for how in ("channel_percentiles", "percentiles"))
    for channel in range(2):
        assert np.array_equal(
            apart[..., channel], scale_intensity(image[..., channel : channel + 1], "percentiles")[..., 0]
        )
        assert apart[..., channel].max() == 1
    assert joint[..., 0].max() < 0.1, "of one scale, T2 is black"


def test_split_sizes_and_patients():
    """20 patients: 10, 5, 5. Two images of a patient stay together, and the seed fixes the split."""
    patients = [f"p{i // 2:02d}" for i in range(40)]
    split = split_by_patient(patients, 0, "a")
    assert [len(split[p]) for p in ("train", "validation", "test")] == [20, 10, 10]
    owners = [{patients[i] for i in rows} for rows in split.values()]
    assert not owners[0] & owners[1] and not owners[0] & owners[2] and not owners[1] & owners[2]
    assert split == split_by_patient(patients, 0, "a")
    assert split != split_by_patient(patients, 1, "a")
    assert split != split_by_patient(patients, 0, "b")


@pytest.mark.parametrize("count", range(3, 12))
def test_small_sites_get_at_least_one_patient_each(count):
    split = split_by_patient([str(i) for i in range(count)], 0, "a")
    assert all(split.values())
    assert sorted(i for rows in split.values() for i in rows) == list(range(count))


def test_too_few_patients_are_refused():
    with pytest.raises(UserError, match="at least 3"):
        split_by_patient(["a", "a", "b"], 0, "tiny")


def test_batches_cover_everything_once_in_a_seeded_order(site):
    part = load_site(site, "hospital-a", small_settings())["train"]
    part.images = torch.arange(7.0).view(7, 1, 1, 1)
    part.labels = torch.zeros(7, 1, 1, 1, dtype=torch.uint8)
    cpu = torch.device("cpu")
    first = [x.flatten().tolist() for x, _ in part.batches(3, cpu, seed=5)]
    assert sorted(sum(first, [])) == list(range(7))
    assert [len(b) for b in first] == [3, 3, 1]
    assert first == [x.flatten().tolist() for x, _ in part.batches(3, cpu, seed=5)]
    assert first != [x.flatten().tolist() for x, _ in part.batches(3, cpu, seed=6)]


def test_derived_seeds_are_stable():
    """The same on every machine and Python: a changed value would change every split ever written."""
    assert derive_seed(0, "site-1", "split") == 8233345998232813117


def test_a_mask_that_lies_elsewhere_is_refused(tmp_path):
    """Image and mask of one size whose affines differ: turned to RAS they would be flipped apart."""
    task = build_settings("prostate", "fedsm", size=32).task
    for part, affine in (("images", np.diag([-1.0, -1.0, 1.0, 1.0])), ("masks", np.eye(4))):
        (tmp_path / part).mkdir()
        nibabel.save(nibabel.Nifti1Image(np.zeros((8, 8, 3), np.int16), affine), tmp_path / part / "p1.nii.gz")
    with pytest.raises(UserError, match="is not on its image"):
        read_pair(*list_pairs(tmp_path, "mr"), "mr", task)


@pytest.mark.parametrize("intensity", ["unit", "percentiles"])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("x.png", lambda a: a),
        ("x.png", lambda a: a.astype(np.uint16) * 257),
        ("x.tif", lambda a: a.astype(np.uint16) * 257),
        ("x.tif", lambda a: (a.astype(">u2") * 257).astype(">u2")),
        ("x.tif", lambda a: a.astype(np.float32) / 255),
        ("x.tif", lambda a: a.astype(np.float32)),
        ("x.png", lambda a: a[..., None].repeat(3, -1)),
        ("x.png", lambda a: np.dstack([a, a, a, np.arange(1600, dtype=np.uint8).reshape(40, 40)])),
        ("x.bmp", lambda a: a),
        ("x.gif", lambda a: a),
        ("x.pgm", lambda a: a),
        ("x.pgm", lambda a: a.astype(np.uint16) * 257),
        ("x.ppm", lambda a: a[..., None].repeat(3, -1)),
        ("x.nii.gz", lambda a: a[::-1].T.astype(np.int16)),
        ("x.nii", lambda a: a[::-1].T.astype(np.float32) / 255),
    ],
)
def test_one_picture_is_the_same_numbers_in_every_format(tmp_path, name, change, intensity):
    """8 and 16 bits, floats, grey, RGB, RGBA, 2D NIfTI: training sees the same; colour tasks repeat the grey."""
    picture = np.random.default_rng(0).integers(0, 256, (40, 40), np.uint8)
    picture[0, :2] = 0, 255
    mask = (picture > 99).astype(np.uint8)
    for part, pixels in (("images", change(picture)), ("masks", mask)):
        (tmp_path / part).mkdir()
        if ".nii" not in name:
            Image.fromarray(pixels).save(tmp_path / part / (name if part == "images" else "x.png"))
        else:
            values = pixels if part == "images" else mask[::-1].T
            nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / part / name)
    task = TASK.replace(intensity=intensity)
    images, labels = to_tensors(*read_pair(*list_pairs(tmp_path, "a"), "a", task), task, 40)
    expected = torch.from_numpy(picture / 255.0).float()
    if intensity == "percentiles":
        low, high = np.percentile(picture / 255.0, (1, 99))
        expected = ((expected - low) / (high - low)).clamp(0, 1)
    assert images.shape == (1, 3, 40, 40)
    torch.testing.assert_close(images, expected.expand(1, 3, 40, 40), atol=1e-5, rtol=0)
    assert torch.equal(labels[0, 0], torch.from_numpy(mask))


def test_infinite_pixels_are_refused(tmp_path):
    """Also where nobody ran the check: at a hospital."""
    pixels = np.zeros((8, 8), np.float32)
    pixels[3, 3] = np.nan
    for part, array in (("images", pixels), ("masks", np.zeros((8, 8), np.uint8))):
        (tmp_path / part).mkdir()
        Image.fromarray(array).save(tmp_path / part / "x.tif")
    with pytest.raises(UserError, match=r"'a'.*x.tif: holds NaN or infinite values; export it again"):
        read_pair(*list_pairs(tmp_path, "a"), "a", TASK)


def test_images_may_lack_masks_where_only_images_are_needed(tmp_path):
    """Three images, two of them with a mask; then none; a mask without an image is refused."""
    write_site(tmp_path / "a", 3, 0)
    (tmp_path / "a" / "masks" / "case_01.png").unlink()
    images, pairs = list_images(tmp_path / "a", "a")
    assert [p.name for p in images] == ["case_00.png", "case_01.png", "case_02.png"]
    assert [p.stem for p in pairs] == ["case_00", "case_02"]
    (tmp_path / "a" / "images" / "case_00.png").unlink()
    with pytest.raises(UserError, match="has no image"):
        list_images(tmp_path / "a", "a")
    shutil.rmtree(tmp_path / "a" / "masks")
    assert list_images(tmp_path / "a", "a")[1] == []
    shutil.rmtree(tmp_path / "a" / "images")
    (tmp_path / "a" / "images").mkdir()
    with pytest.raises(UserError, match="no images in"):
        list_images(tmp_path / "a", "a")
