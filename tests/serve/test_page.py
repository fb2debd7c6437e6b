"""The page in a browser, by clicks, wheel and keys: nothing is asked for elsewhere, nothing is wrong on the console."""

import io

import numpy as np
import pytest
from PIL import Image

from fedsm.data.readers import read
from fedsm.serve.service import Service
from fedsm.super_model.model import SuperModel
from tests.helpers.chromium import Page
from tests.helpers.dicom_files import MR, random_volume, read_dicom, write_series
from tests.helpers.service import picture, serving, volume
from tests.helpers.small_model import write_super_model

pytestmark = pytest.mark.process
TOKEN = "a-token-that-nobody-guesses"
DONE = "document.querySelectorAll('.panel.has-result[data-shown]').length == {}"
SHOWN = "document.querySelector('.panel').dataset.shown"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    page = Page(tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


@pytest.fixture(scope="module")
def retinal(tmp_path_factory):
    folder = tmp_path_factory.mktemp("retinal")
    return SuperModel.load(write_super_model(folder, policy={"delta": [1.0, 1.0]}), "cpu")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "fundus 1.png").write_bytes(picture())
    (tmp_path / "broken.png").write_bytes(picture()[:90])
    return [tmp_path / "fundus 1.png", tmp_path / "broken.png"]


@pytest.fixture(autouse=True)
def _clean(page):
    page.requests.clear()
    page.messages.clear()


def text(page: Page, selector: str) -> str:
    return page.run(f"document.querySelector('{selector}').innerText")


def only_from(page: Page, address: str) -> bool:
    return all(r.startswith((address, "blob:", "data:")) for r in page.requests) and bool(page.requests)


def test_a_picture_by_clicks(page, retinal, files, tmp_path):
    array = np.asarray(Image.open(io.BytesIO(picture())))
    with serving(Service(retinal)) as address:
        page.look(1280)
        page.open(address)
        page.wait("!document.querySelector('#main').hidden")
        page.choose_files("#files", *files)
        page.wait(DONE.format(1))
        assert "Foreign" in text(page, ".foreign") and text(page, ".network") == "Global network"
        assert "Not for clinical use" in text(page, "header") and "the limit is 1" in text(page, ".why")
        assert page.run("document.querySelectorAll('.yhat tr').length") == 2
        assert "cup-to-disc" in text(page, ".measured") and "slice" not in text(page, "#controls").lower()
        assert page.run("document.querySelector('.overlay').naturalWidth") == 48

        page.click("#opacity")
        half = float(page.run("document.querySelector('.overlay').style.opacity"))
        assert 0.4 < half < 0.6 and text(page, "#opacity-shown") == f"{100 * half:.0f} %"

        page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path / "got"))
        for kind, name in (("png", "fundus 1_mask.png"), ("nifti", "fundus 1_mask.nii.gz")):
            page.click(f"[data-file={kind}]")
            while not (tmp_path / "got" / name).exists():
                page.run("1")
            mask = read(tmp_path / "got" / name, mask=True)[0, ..., 0]
            assert (mask == retinal.predict(array).mask).all()

        page.click("#compare")
        page.wait(DONE.format(2))
        names = page.run("[...document.querySelectorAll('.panel select')].map(s => s.value)")
        assert names[0] == "selector" and names[1].startswith("personal."), "the first one is the global network here"
        page.run("(s => { s.value = 'personal.site-2'; s.dispatchEvent(new Event('change')); })"
                 "(document.querySelectorAll('.panel select')[1])")  # fmt: skip
        page.wait("document.querySelectorAll('.network')[1].innerText == 'Network of site-2'")
        page.click("#compare")
        assert page.run("document.querySelectorAll('.panel').length") == 1

        page.press("n")
        page.wait("!document.querySelector('.panel > .problem').hidden")
        assert "cannot be read" in text(page, ".panel > .problem")
        assert only_from(page, address)
        assert [m for m in page.messages if "422" not in m] == []  # the browser logs what is refused


def test_a_volume_by_wheel_and_keys(page, tmp_path):
    path = write_super_model(tmp_path, task="prostate", overrides=["task.selector_net={}"])
    volume(tmp_path / "mr.nii.gz", (36, 40, 25))
    with serving(Service(SuperModel.load(path, "cpu"))) as address:
        page.look(1280)
        page.open(address)
        page.wait("!document.querySelector('#main').hidden")
        page.drop_files("#drop", tmp_path / "mr.nii.gz")
        page.wait(f"{SHOWN} == 13")
        assert "Slice" in text(page, "#controls") and "13 of 25" in text(page, "#slice-shown")
        first = page.run("document.querySelector('.image').src")
        page.wheel(".stage", 40)
        page.wait(f"{SHOWN} == 12")
        assert page.run("document.querySelector('.image').src") != first
        page.wheel(".stage", -40)
        page.wait(f"{SHOWN} == 13")
        page.click(".stage")
        for key, slice_ in (
            ("ArrowUp", 14),
            ("PageUp", 24),
            ("End", 25),
            ("PageUp", 25),
            ("Home", 1),
            ("ArrowDown", 1),
        ):
            page.press(key)
            page.wait(f"{SHOWN} == {slice_}")
        page.press("o")
        assert page.run("document.querySelector('.overlay').style.opacity") == "0"
        page.press("o", "[")
        assert page.run("document.querySelector('.overlay').style.opacity") == "0.6"
        page.press("c")
        page.wait(DONE.format(2))
        page.press("ArrowUp")
        page.wait("[...document.querySelectorAll('.panel')].every(p => p.dataset.shown == 2)")
        page.press("c")
        assert only_from(page, address) and page.messages == []


def test_a_dicom_series_by_its_files_and_its_folder(page, tmp_path):
    """All its files are one image, and its mask can be had as DICOM-SEG; a picture beside it is another image."""
    write_series(tmp_path / "study" / "se1", random_volume(2), sop_class=MR)
    (tmp_path / "a.png").write_bytes(picture())
    model = SuperModel.load(write_super_model(tmp_path, task="prostate", overrides=["task.selector_net={}"]), "cpu")
    with serving(Service(model)) as address:
        page.open(address)
        page.wait("!document.querySelector('#main').hidden")
        page.choose_files("#files", *(tmp_path / "study/se1").iterdir(), tmp_path / "a.png")
        page.wait(f"{SHOWN} == 3")
        names = "[...document.querySelectorAll('#cases button')].map(b => b.innerText)"
        assert page.run(names) == ["6 DICOM files", "a.png"]
        page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path / "got"))
        page.click("[data-file=dicom]")
        while not (tmp_path / "got/6 DICOM files_mask.dcm").exists():
            page.run("1")
        assert read_dicom(tmp_path / "got/6 DICOM files_mask.dcm").Modality == "SEG"
        page.press("n")
        page.wait(f"{SHOWN} == 1")
        assert page.run("document.querySelector('[data-file=dicom]').hidden")
        page.drop_files("#drop", tmp_path / "study")
        page.wait("document.querySelectorAll('#cases button').length == 3")
        page.wait(f"{SHOWN} == 3")
        assert page.run(names)[2] == "6 DICOM files"
        assert only_from(page, address) and page.messages == []


def test_by_keyboard_alone(page, retinal, files):
    """Tab reaches everything that a mouse can use, in the order of the page, and shows where it is."""
    with serving(Service(retinal)) as address:
        page.open(address)
        page.wait("!document.querySelector('#main').hidden")
        page.choose_files("#files", files[0])
        page.wait(DONE.format(1))
        page.run("document.activeElement.blur()")
        reached = []
        for _ in range(10):
            page.press("Tab")
            reached.append(
                page.run("(e => e.id || e.dataset.file || e.className || e.tagName)(document.activeElement)")
            )
            style = "getComputedStyle(document.activeElement.id == 'files' ? document.querySelector('#drop label')"
            assert page.run(f"{style} : document.activeElement).outlineStyle") != "none", reached
        wanted = ["files", "BUTTON", "opacity", "compare", "SELECT", "stage", "png", "nifti", "SUMMARY", "A"]
        assert reached == wanted
        page.run("document.querySelector('#compare').focus()")
        page.press(" ")
        page.wait(DONE.format(2))


def test_a_token(page, retinal, files):
    with serving(Service(retinal), TOKEN) as address:
        page.open(address)
        page.wait("!document.querySelector('#login').hidden")
        assert page.run("document.querySelector('#main').hidden")
        page.press(*"wrong-token", "Enter")
        page.wait("document.querySelector('#status').innerText == 'This is not the token.'")
        assert page.run("document.querySelector('#main').hidden")
        page.run("document.querySelector('#token').focus()")
        page.press(*TOKEN, "Enter")
        page.wait("!document.querySelector('#main').hidden")
        page.open("about:blank")
        page.open(f"{address}/#token={TOKEN}")
        page.wait("!document.querySelector('#main').hidden")
        assert page.run("location.href") == f"{address}/" and page.run("document.cookie") == ""
        page.choose_files("#files", files[0])
        page.wait(DONE.format(1))
        assert not any(TOKEN in request for request in page.requests if "#" not in request)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [420, 1280])
def test_it_fits(page, retinal, files, width, dark):
    """Nothing is wider than a phone, with one network and with two; colours follow the reader's scheme."""
    with serving(Service(retinal)) as address:
        page.look(width, dark)
        page.open(address)
        page.wait("!document.querySelector('#main').hidden")
        page.choose_files("#files", files[0])
        page.wait(DONE.format(1))
        for panels in (1, 2):
            assert page.run("document.documentElement.scrollWidth") <= width
            assert page.run("document.querySelector('.image').getBoundingClientRect().width") > width / 3 / panels
            if panels == 1:
                page.click("#compare")
                page.wait(DONE.format(2))
        ink = page.run("getComputedStyle(document.body).color.match(/\\d+/g).map(Number).reduce((a, b) => a + b)")
        assert (ink > 400) == dark
    page.look(1280)
