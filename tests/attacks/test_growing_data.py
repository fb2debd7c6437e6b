"""A hospital adds one image: the sums before and after differed by exactly that image's descriptor, and both left."""

import json

import pytest
import torch
from PIL import Image

from fedsm.data.dataset import load_site
from fedsm.selectors.descriptor import describe
from fedsm.selectors.releases import _smallest_group
from tests.helpers.hostile_server import SITE, real_site, refusal, register
from tests.helpers.small_jobs import small_settings, write_site


def job(**given):
    return small_settings(selector="statistics", **given)


@pytest.fixture
def hospital(tmp_path):
    """A hospital of twelve training images, and a function that writes which images are there."""
    write_site(tmp_path / "all", 40, 0)
    data = tmp_path / "data"
    for part in ("images", "masks"):
        (data / part).mkdir(parents=True)

    def put(train: list[int]) -> None:
        for part in ("images", "masks"):
            for old in (data / part).iterdir():
                old.unlink()
            for i in [*train, 38, 39]:
                (data / part / f"case_{i:02d}.png").hardlink_to(tmp_path / "all" / part / f"case_{i:02d}.png")
        split = {"train": train, "validation": [38], "test": [39]}
        names = {part: [f"case_{i:02d}" for i in rows] for part, rows in split.items()}
        (data / "splits.json").write_text(json.dumps(names))

    put(list(range(12)))
    return data, put


def test_the_difference_of_two_sums_was_one_image(tmp_path, hospital):
    """Where the site sets min_patients to 1 it still is: so the other tests test something."""
    data, put = hospital
    place = real_site(tmp_path / "site", data, min_patients=1)
    before = register(place, job())
    put(list(range(13)))
    after = register(place, job(), run=1)
    image = describe(load_site(data, SITE, job())["train"].images[12:13])[0]
    assert torch.allclose(after["sum"] - before["sum"], image, atol=1e-9)


@pytest.mark.parametrize("size", [32, 40])
def test_a_few_new_patients_are_too_few(tmp_path, hospital, size):
    """Also where the second job resizes the images differently: they are told apart by their files."""
    data, put = hospital
    place = real_site(tmp_path / "site", data)
    assert refusal(place, job()) is None
    put(list(range(13)))
    error = refusal(place, job(size=size), run=1)
    assert "1 patient" in error.public and "5" in error.public and str(tmp_path) not in error.public
    assert "min_patients" in str(error) and "statistics_releases.json" in str(error)
    put(list(range(12)))
    assert refusal(place, job(), run=2) is None, "the images of before, as often as anybody asks"
    put(list(range(17)))
    assert refusal(place, job(), run=3) is None, "five more hide each other"


def test_an_image_that_is_taken_out_or_changed_counts_too(tmp_path, hospital):
    data, put = hospital
    place = real_site(tmp_path / "site", data)
    assert refusal(place, job()) is None
    put(list(range(11)))
    assert "1 patient" in refusal(place, job(), run=1).public
    put(list(range(12)))
    changed = data / "images" / "case_03.png"
    pixels = Image.open(changed).rotate(90)
    changed.unlink()
    pixels.save(changed)
    assert "1 patient" in refusal(place, job(), run=2).public


def test_new_names_or_new_files_of_all_images_hide_nothing(tmp_path, hospital):
    """All files written anew, or all given other names, and one image more: it is still one image more."""
    data, put = hospital
    place = real_site(tmp_path / "site", data)
    assert refusal(place, job()) is None
    put(list(range(13)))
    for image in sorted((data / "images").iterdir()):
        pixels = Image.open(image).copy()
        image.unlink()
        pixels.save(image, compress_level=1)
    assert "1 patient" in refusal(place, job(), run=1).public
    put(list(range(13)))
    split = json.loads((data / "splits.json").read_text())
    for part in ("images", "masks"):
        for file in sorted((data / part).iterdir()):
            file.rename(file.with_name(f"new_{file.name}"))
    (data / "splits.json").write_text(json.dumps({p: [f"new_{s}" for s in stems] for p, stems in split.items()}))
    assert "1 patient" in refusal(place, job(), run=2).public


def test_a_copy_of_a_file_is_an_image_more():
    """Three files and, in a later release under other names, the same three and one of them twice."""
    before = [[f"content-{i}", f"old-{i}", f"patient-{i}"] for i in range(3)]
    after = [[f"content-{i}", f"new-{number}", f"patient-{i}"] for number, i in enumerate((0, 1, 2, 2))]
    assert _smallest_group([before], 0) == _smallest_group([before, before], 0) == 3
    assert _smallest_group([before, after], 0) == 1 and _smallest_group([[]], 0) is None


def test_sums_of_several_releases_are_looked_at_together(tmp_path, hospital):
    """A: 0..5, B: 6..11, then C, all of both and one more: C - A - B is one image, though C is far from A and B."""
    data, put = hospital
    place = real_site(tmp_path / "site", data)
    for run, train in enumerate((range(6), range(6, 12))):
        put(list(train))
        assert refusal(place, job(), run=run) is None
    put(list(range(13)))
    assert "1 patient" in refusal(place, job(), run=2).public
    put(list(range(17)))
    assert refusal(place, job(), run=3) is None


def test_images_of_one_patient_do_not_hide_each_other(tmp_path, hospital):
    data, put = hospital
    place = real_site(tmp_path / "site", data)
    people = {i: f"p{min(i, 12)}" for i in range(40)} | {38: "v", 39: "t"}  # 12 and later are of one person
    (data / "patients.csv").write_text("file,patient\n" + "".join(f"case_{i:02d},{p}\n" for i, p in people.items()))
    assert refusal(place, job()) is None
    put(list(range(20)))
    assert "1 patient" in refusal(place, job(), run=1).public


def test_the_list_names_no_file_and_no_patient(tmp_path, hospital):
    data, _ = hospital
    assert refusal(real_site(tmp_path / "site", data), job()) is None
    ledger = tmp_path / "site" / "fedsm_state" / SITE / "statistics_releases.json"
    text = ledger.read_text()
    other = tmp_path / "other" / "fedsm_state" / SITE / "statistics_releases.json"
    assert "case_" not in text and refusal(real_site(tmp_path / "other", data), job()) is None
    (mine,), (theirs,) = (json.loads(f.read_text()).values() for f in (ledger, other))
    assert not {d for row in mine["files"] for d in row} & {d for row in theirs["files"] for d in row}, "salted"
