"""What is uploaded comes back as the super model segments it, and nothing of it touches the disk."""

import gzip
import io
import os
import stat
import sys

import nibabel
import numpy as np
import pytest
import requests
import torch
from PIL import Image

from fedsm.data.readers import read
from fedsm.serve.choices import why
from fedsm.serve.limits import ServeLimits
from fedsm.serve.service import Service
from fedsm.super_model.model import SuperModel
from fedsm.super_model.volumes import predict_volumes
from tests.helpers.service import picture, send, serving, volume
from tests.helpers.small_model import SITES, site_images, write_super_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    policy = {"delta": [1e6, 1e6], "share": 0.25}
    return SuperModel.load(write_super_model(tmp_path_factory.mktemp("model"), policy=policy), "cpu")


@pytest.fixture(scope="module")
def address(model):
    with serving(Service(model)) as address:
        yield address


def test_a_picture(model, address, tmp_path):
    (tmp_path / "a.png").write_bytes(picture())
    expected = model.predict(tmp_path / "a.png")
    answer = send(address, picture()).json()
    (only,) = answer["slices"]
    assert (answer["kind"], answer["width"], answer["height"]) == ("picture", 48, 40)
    assert only["model"] == expected.model and only["foreign"] is False
    assert only["confidence"] == pytest.approx(expected.confidence)
    assert only["distance"] == pytest.approx(expected.distance) and list(only["yhat"]) == SITES
    assert only["measures"]["disc_pixels"] == (expected.mask > 0).sum() and only["measures"]["disc_mm2"] is None
    assert "with a share of 25 % of the global one" in answer["summary"] and "Not for clinical use" in answer["notice"]

    def get(what: str) -> bytes:
        return requests.get(f"{address}/api/results/{answer['id']}/{what}").content

    assert (np.asarray(Image.open(io.BytesIO(get("mask/1.png")))) == expected.mask).all()
    (tmp_path / "m.nii.gz").write_bytes(get("mask.nii.gz"))
    assert (read(tmp_path / "m.nii.gz", mask=True)[0, ..., 0] == expected.mask).all()
    assert Image.open(io.BytesIO(get("image/1.png"))).size == (48, 40)
    overlay = np.asarray(Image.open(io.BytesIO(get("overlay/1.png"))).convert("RGBA"))
    assert ((overlay[..., 3] > 0) == (expected.mask > 0)).all()


def test_another_network(model, address):
    """Side by side: the same upload, and the network that was asked for."""
    array = np.asarray(Image.open(io.BytesIO(picture())))
    for choice, options in (("global", {"use_global": True}), ("personal.site-1", {"site": "site-1"})):
        answer = send(address, picture(), model=choice).json()
        assert answer["model"] == choice and answer["summary"].startswith("You asked for")
        mask = requests.get(f"{address}/api/results/{answer['id']}/mask/1.png").content
        assert (np.asarray(Image.open(io.BytesIO(mask))) == model.predict(array, **options).mask).all()
    refused = send(address, picture(), model="personal.nobody")
    assert refused.status_code == 422 and "it has selector, global" in refused.json()["remedy"]


def test_a_volume(tmp_path):
    path = write_super_model(tmp_path, task="prostate", overrides=["task.selector_net={}"])
    model, content = SuperModel.load(path, "cpu"), volume(tmp_path / "a.nii.gz")
    expected = model.predict(tmp_path / "a.nii.gz")
    with serving(Service(model)) as address:
        for upload in (content, gzip.decompress(content)):
            answer = send(address, upload).json()
            assert answer["kind"] == "volume" and len(answer["slices"]) == 5
            assert [s["model"] for s in answer["slices"]] == [s.model for s in expected.slices]
            name = next(iter(model.settings.task.labels))
            measured = answer["slices"][0]["measures"]
            assert measured[f"{name}_mm2"] == pytest.approx(measured[f"{name}_pixels"] * 0.25)
            mask = requests.get(f"{address}/api/results/{answer['id']}/mask.nii.gz").content
            (tmp_path / "m.nii.gz").write_bytes(mask)
            assert (read(tmp_path / "m.nii.gz", mask=True)[..., 0] == expected.mask).all()
            affines = [nibabel.load(tmp_path / name).affine for name in ("a.nii.gz", "m.nii.gz")]
            assert (affines[0] == affines[1]).all()
            last, beyond = (requests.get(f"{address}/api/results/{answer['id']}/image/{i}.png") for i in (5, 6))
            assert last.status_code == 200 and beyond.status_code == 404


def test_nothing_touches_the_disk(address):
    """Every file that is opened for writing while an upload is segmented is one of the kernel's memory."""
    written: list[str] = []

    def note(event: str, args: tuple) -> None:
        if watching and event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
            written.append(str(args[0]))

    watching = True
    sys.addaudithook(note)
    for name in ("a.png", "b.nii"):
        assert send(address, picture((800, 800)), name=name).status_code == 200  # 2 MB
    watching = False
    assert all(name.isdecimal() or name == "-1" for name in written), written  # descriptors: sockets, memfd


def test_keep(model, tmp_path):
    with serving(Service(model, keep=tmp_path / "kept")) as address:
        answer = send(address, picture(), name="Erika Mustermann.png").json()
    (folder,) = (tmp_path / "kept").iterdir()
    assert answer["id"] in folder.name and {f.name for f in folder.iterdir()} == {
        "image", "mask.png", "mask.nii.gz", "answer.json",
    }  # fmt: skip
    assert (folder / "image").read_bytes() == picture()
    assert all(not stat.S_IMODE(f.stat().st_mode) & 0o077 for f in (folder, *folder.iterdir()))


def test_results_are_forgotten(model):
    with serving(Service(model, ServeLimits(results=2))) as address:
        names = [send(address, picture(seed=i)).json()["id"] for i in range(3)]
        assert [requests.get(f"{address}/api/results/{n}").status_code for n in names] == [404, 200, 200]
        assert requests.delete(f"{address}/api/results/{names[2]}").status_code == 204
        assert requests.get(f"{address}/api/results/{names[2]}").status_code == 404


def test_no_place_and_no_time(model):
    with serving(Service(model, ServeLimits(jobs=0))) as address:
        refused = send(address, picture())
        assert refused.status_code == 503 and refused.headers["retry-after"] == "3"
    with serving(Service(model, ServeLimits(seconds=0.001))) as address:
        refused = send(address, picture((1500, 1500)))
        assert refused.status_code in (408, 503) and "took" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("kind", "first"), [("fedavg", "global"), ("local", "personal.site-1"), ("ensemble", "selector")]
)
def test_super_models_without_a_threshold(tmp_path, kind, first):
    model = SuperModel.load(write_super_model(tmp_path, kind), "cpu")
    with serving(Service(model)) as address:
        assert requests.get(f"{address}/api/model").json()["choices"][0] == first
        answer = send(address, picture()).json()
        assert answer["choice"] == first and answer["slices"][0]["distance"] is None and answer["summary"]


def test_a_volume_with_one_network(tmp_path):
    """Most of the slices are like site-2's, and so is what is said of each."""
    model = SuperModel.load(write_super_model(tmp_path, policy={"majority": True}), "cpu")
    slices = torch.cat([site_images(model.settings, k, n) for k, n in ((0, 2), (1, 3))])
    batch = predict_volumes(model, slices, [5], 2)
    told = [why(model, "selector", batch, row) for row in range(5)]
    assert all(text.startswith("Most slices of this volume select the network of site-2, so all") for text in told)
    assert ["most like those of site-1" in text for text in told] == [True] * 2 + [False] * 3
    assert "You asked for" in why(model, "global", batch, 0)
    far = batch._replace(selection=batch.selection._replace(foreign=torch.ones(5, dtype=torch.bool)))
    assert "Foreign: most slices" in why(model, "selector", far, 0) and "times the usual one" in told[0]
