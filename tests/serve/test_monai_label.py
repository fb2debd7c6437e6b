"""MONAI Label's own client asks for a segmentation, as Slicer's plugin does; the answer's form is checked without it.

The client is one file of the package `monailabel`, whose other dependencies are not needed:
`pip install --no-deps monailabel`.
"""

import email
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import nibabel
import numpy as np
import pytest
import requests

from fedsm.data.labels import decompose, flat_numbers
from fedsm.data.readers import read
from fedsm.serve.service import Service
from fedsm.super_model.model import SuperModel
from tests.helpers.service import picture, send, serving, volume
from tests.helpers.small_model import write_super_model

TOKEN = "a-token-that-nobody-guesses"
OBLIQUE = np.array([[-0.5, 0.02, 0, 10], [0.02, 0.5, 0.1, -20], [0, -0.1, 3.0, 5], [0, 0, 0, 1]])


@pytest.fixture(scope="module")
def client() -> ModuleType:
    package = importlib.util.find_spec("monailabel")
    if package is None:
        pytest.skip("MONAI Label's client is missing: pip install --no-deps monailabel")
    (folder,) = package.submodule_search_locations
    spec = importlib.util.spec_from_file_location("monailabel_client", Path(folder, "client", "client.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return SuperModel.load(write_super_model(folder, task="prostate", overrides=["task.selector_net={}"]), "cpu")


@pytest.fixture
def image(tmp_path) -> Path:
    volume(tmp_path / "Erika Mustermann.nii.gz", (40, 36, 5), OBLIQUE)
    return tmp_path / "Erika Mustermann.nii.gz"


def check_labels(found: Path, image: Path, model: SuperModel, **options) -> None:
    """The numbers of the labels, on the image's grid."""
    task = model.settings.task
    expected = flat_numbers(decompose(model.predict(image, **options).mask, task), task)
    assert (read(found, mask=True)[..., 0] == expected).all() and expected.any()
    assert np.allclose(nibabel.load(found).affine, OBLIQUE, atol=1e-6)
    assert nibabel.load(found).shape == nibabel.load(image).shape


def test_their_client(client, model, image, tmp_path):
    (tmp_path / "out").mkdir()
    with serving(Service(model)) as address:
        slicer = client.MONAILabelClient(address, tmpdir=str(tmp_path / "out"), client_id="user-xyz")
        info = slicer.info()
        assert list(info["models"]) == ["selector", "global", "personal.site-1", "personal.site-2"]
        assert info["models"]["selector"]["labels"] == {"prostate": 1} and info["labels"] == ["prostate"]
        assert not slicer.auth_enabled() and slicer.train_status(check_if_running=True) is False
        # As Slicer does with a volume that is open there: a session, then one or more questions.
        session = slicer.create_session(str(image))["session_id"]
        assert slicer.get_session(session)
        for network, options in (("selector", {}), ("personal.site-2", {"site": "site-2"})):
            file, params = slicer.infer(network, "MRHead", {"a": 1}, session_id=session)
            check_labels(Path(file), image, model, **options)
            assert params["label_names"] == {"prostate": 1} and "clinical" in params["notice"]
        slicer.remove_session(session)
        with pytest.raises(client.MONAILabelClientException):
            slicer.infer("selector", "MRHead", {}, session_id=session)
        file, params = slicer.infer("selector", "MRHead", {}, file=str(image))
        check_labels(Path(file), image, model)
        for network, sent in (("nobody", str(image)), ("selector", None)):
            with pytest.raises(client.MONAILabelClientException):
                slicer.infer(network, "MRHead", {}, file=sent)


def test_their_client_with_a_token(client, model, image, tmp_path):
    (tmp_path / "out").mkdir()
    with serving(Service(model), TOKEN) as address:
        slicer = client.MONAILabelClient(address, tmpdir=str(tmp_path / "out"))
        assert slicer.auth_enabled() and not slicer.auth_valid_token()
        with pytest.raises(client.MONAILabelClientException):
            slicer.info()
        with pytest.raises(client.MONAILabelClientException):
            slicer.auth_token("anybody", "wrong")
        slicer.update_auth(slicer.auth_token("anybody", TOKEN))
        assert slicer.auth_valid_token() and slicer.info()["models"]
        check_labels(Path(slicer.infer("global", "", {}, file=str(image))[0]), image, model, use_global=True)


def test_the_form_of_the_answer(model, image, tmp_path):
    with serving(Service(model)) as address:
        answer = send(address, image.read_bytes(), "/infer/selector?image=MRHead", params='{"result_dtype": "uint16"}')
        head = f"Content-Type: {answer.headers['content-type']}\r\n\r\n".encode()
        params, labels = email.message_from_bytes(head + answer.content).get_payload()
        assert params.get_param("name", header="content-disposition") == "params"
        assert json.loads(params.get_payload())["label_names"] == {"prostate": 1}
        assert labels.get_filename() == "label.nii.gz"
        (tmp_path / "label.nii.gz").write_bytes(labels.get_payload(decode=True))
        check_labels(tmp_path / "label.nii.gz", image, model)
        only_json = send(address, image.read_bytes(), "/infer/selector?output=json").json()
        assert only_json["networks"] and only_json["label_names"] == {"prostate": 1}
        only_image = send(address, image.read_bytes(), "/infer/selector?output=image")
        assert only_image.headers["content-type"] == "application/gzip"
        assert send(address, image.read_bytes(), "/infer/selector?output=dicom_seg").status_code == 422
        assert send(address, image.read_bytes(), "/infer/selector?session_id=unknown").status_code == 404


def test_overlapping_labels_get_one_number_each(tmp_path):
    """A cup lies on its disc: the mask's values are disc 1 and cup 2, and a picture's answer is a flat NIfTI."""
    model = SuperModel.load(write_super_model(tmp_path), "cpu")
    with serving(Service(model)) as address:
        assert requests.get(f"{address}/info/").json()["models"]["global"]["labels"] == {"disc": 1, "cup": 2}
        (tmp_path / "l.nii.gz").write_bytes(send(address, picture(), "/infer/global?output=image").content)
    (tmp_path / "a.png").write_bytes(picture())
    mask = model.predict(tmp_path / "a.png", use_global=True).mask
    assert (read(tmp_path / "l.nii.gz", mask=True)[0, ..., 0] == mask).all()


def test_it_needs_no_other_package():
    assert "monailabel" not in sys.modules
