"""The super model predicts what its networks give by hand, whatever its selector."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.data.labels import compose, decompose, mask_table
from fedsm.nets import build_unet
from fedsm.selectors.inference import blend, mix
from fedsm.super_model.artefact import load_super_model
from fedsm.super_model.model import SuperModel
from fedsm.super_model.volumes import predict_volumes
from fedsm.tracks import build_inference_selector
from tests.helpers.small_jobs import small_settings
from tests.helpers.small_model import KINDS, SITES, site_images, write_super_model


def by_hand(path, images):
    """Logits (M, B, L, H, W) of all models and yhat, from the files."""
    files = load_super_model(path)
    nets = []
    for name in ("global", *(f"personal.{s}" for s in SITES)):
        nets.append(build_unet(files.settings.task).eval())
        nets[-1].load_state_dict(files.networks[name])
    selector = build_inference_selector(files.settings, len(SITES), files.networks["selector"], torch.device("cpu"))
    with torch.no_grad():
        return torch.stack([net(images) for net in nets]), selector.probabilities(images)


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("fedavg", "local")])
def test_every_selector(tmp_path, kind):
    path = write_super_model(tmp_path, kind)
    model = SuperModel.load(path, "cpu")
    images = torch.cat([site_images(model.settings, k, 3) for k in (0, 1)])
    logits, yhat = by_hand(path, images)
    batch = model.predict_batch(images)
    torch.testing.assert_close(batch.selection.yhat, yhat)
    if kind == "ensemble":
        expected = mix(yhat, logits.sigmoid())
    else:
        first = yhat.argmax(1)
        chosen = first if kind == "extra" else torch.where(yhat.amax(1) > 0.5, first + 1, 0)
        assert batch.selection.choices.tolist() == chosen.tolist()
        expected = logits[chosen, torch.arange(6)].sigmoid()
        assert [p.model for p in model.finish(batch, (5, 4))] == [model.models[i] for i in chosen]
    torch.testing.assert_close(batch.probabilities, expected, atol=1e-6, rtol=0)
    assert (batch.selection.distance is None) == (kind in ("gradient", "extra", "ensemble"))
    if kind == "statistics":
        assert chosen.tolist() == [1, 1, 1, 2, 2, 2]
        foreign = model.select(torch.zeros(1, 3, 32, 32)).distance
        assert foreign > 3 * batch.selection.distance.max(), "a black image is like none of the sites'"


def test_site_global_gamma_and_blend(tmp_path):
    path = write_super_model(tmp_path, "gradient", gamma=0.99)
    model = SuperModel.load(path, "cpu")
    images = site_images(model.settings, 0, 4)
    logits, yhat = by_hand(path, images)
    assert model.predict_batch(images).selection.choices.tolist() == [0] * 4
    assert 0 not in model.predict_batch(images, gamma=0.0).selection.choices.tolist()
    torch.testing.assert_close(model.predict_batch(images, site="site-2").probabilities, logits[2].sigmoid())
    torch.testing.assert_close(model.predict_batch(images, use_global=True).probabilities, logits[0].sigmoid())
    soft = model.predict_batch(images, gamma=0.0, blend=True)
    torch.testing.assert_close(soft.probabilities, mix(blend(yhat, 0.0), logits.sigmoid()), atol=1e-6, rtol=0)
    assert " + " in model.finish(soft, (8, 8))[0].model
    assert model.predict_batch(images, blend=True).weights[:, 0].tolist() == [1] * 4, "soft selection was not scored"
    files = load_super_model(path)
    own = SuperModel(files.settings, files.manifest | {"blend_gamma": 0.0}, files.networks, model.device)
    torch.testing.assert_close(own.predict_batch(images, blend=True).probabilities, soft.probabilities)
    assert own.predict_batch(images).selection.choices.tolist() == [0] * 4, "the hard choice keeps its own"
    for options, words in [
        ({"site": "site-9"}, "no site 'site-9'; known: site-1, site-2"),
        ({"gamma": 1.5}, "in \\[0, 1\\]"),
        ({"site": "site-1", "use_global": True}, "both"),
    ]:
        with pytest.raises(UserError, match=words):
            model.predict_batch(images, **options)


def test_without_a_selector(tmp_path):
    model = SuperModel.load(write_super_model(tmp_path / "a", "fedavg"), "cpu")
    prediction = model.predict(np.zeros((20, 30, 3), np.uint8))
    assert prediction.model == "global" and prediction.confidence is None and prediction.mask.shape == (20, 30)
    model = SuperModel.load(write_super_model(tmp_path / "b", "local"), "cpu")
    with pytest.raises(UserError, match="name a site: site-1, site-2"):
        model.predict(np.zeros((20, 30, 3), np.uint8))
    assert model.predict(np.zeros((20, 30), np.uint8), site="site-2").model == "personal.site-2"
    with pytest.raises(UserError, match="gamma cannot be used"):
        model.predict(np.zeros((20, 30), np.uint8), site="site-2", gamma=0.5)


def test_array_volume_and_what_is_no_image(tmp_path):
    model = SuperModel.load(write_super_model(tmp_path), "cpu")
    volume = np.random.default_rng(0).integers(0, 256, (3, 17, 23, 3), np.uint8)
    prediction = model.predict(volume)
    assert prediction.mask.shape == (3, 17, 23) and prediction.probabilities.shape == (3, 2, 17, 23)
    for bad in (np.zeros((0, 4)), np.full((4, 4), np.nan), np.zeros((4, 4, 7)), np.zeros((2, 2, 2, 2, 2))):
        with pytest.raises(UserError):
            model.predict(bad)


def test_one_model_for_a_volume(tmp_path):
    """5 slices like site-2's and 3 like site-1's, in batches of 4: all get site-2's network, if the manifest or the
    caller says so; a manifest without the entry behaves as before."""
    path = write_super_model(tmp_path)
    model, files = SuperModel.load(path, "cpu"), load_super_model(path)
    assert model.policy.majority is False and "majority" not in model.manifest
    assert model.settings.batch_size == 4
    mixed = torch.cat([site_images(model.settings, k, n) for k, n in ((0, 3), (1, 5))])
    volume = mixed.permute(0, 2, 3, 1).mul(255).round().to(torch.uint8).numpy()
    names = ["personal.site-1"] * 3 + ["personal.site-2"] * 5
    assert [s.model for s in model.predict(volume).slices] == names
    whole = model.predict(volume, majority=True)
    assert {s.model for s in whole.slices} == {whole.model} == {"personal.site-2"}
    assert (whole.mask == model.predict(volume, site="site-2").mask).all() and whole.confidence > 0
    own = SuperModel(files.settings, files.manifest | {"majority": True}, files.networks, model.device)
    assert {s.model for s in own.predict(volume).slices} == {"personal.site-2"}
    assert [s.model for s in own.predict(volume, majority=False).slices] == names
    assert own.predict(volume, site="site-1").model == "personal.site-1"
    assert own.predict(volume, blend=True, gamma=0.0).slices, "soft selection shares every slice by itself"
    assert own.predict(volume[0]).model == "personal.site-1", "a picture is on its own"
    found = predict_volumes(own, mixed[[0, 3, 4, 1, 5]], [1, 3, 1], 2)
    assert found.selection.choices.tolist() == [1, 2, 2, 2, 2]
    for options in ({"site": "site-1"}, {"use_global": True}, {"blend": True}):
        with pytest.raises(UserError, match="a volume's majority needs a selector"):
            model.predict(volume, majority=True, **options)
    with pytest.raises(UserError, match="a volume's majority needs a selector"):
        SuperModel.load(write_super_model(tmp_path / "e", "ensemble"), "cpu").predict(volume, majority=True)


def test_networks_hold_the_files_tensors(tmp_path):
    """One copy of the weights: the networks' parameters are the loaded tensors, and these are mapped."""
    model = SuperModel.load(write_super_model(tmp_path), "cpu")
    loaded = {t.data_ptr() for t in model._networks["global"].values()}
    assert {p.data_ptr() for p in model.net("global").parameters()} == loaded
    assert "global.safetensors" in Path("/proc/self/maps").read_text()


def test_mask_values():
    """Retinal: 1 is the rim, 2 the cup, which is disc as well. A cup alone has no value: it gets the cup's."""
    task = small_settings().task
    table = mask_table(task)
    assert table.tolist() == [0, 1, 2, 2] and table.dtype == np.uint8
    labels = np.array([[[0, 1, 1, 0]], [[0, 0, 1, 1]]], bool)
    assert compose(labels, table).tolist() == [[0, 1, 2, 2]]
    assert decompose(np.array([[0, 1, 2, 2]]), task).astype(int).tolist() == [[[0, 1, 1, 1]], [[0, 0, 1, 1]]]
    task = task.replace(labels={"a": [7, 300], "b": [5, 300]}, background=[9])
    assert mask_table(task).tolist() == [9, 7, 5, 300] and mask_table(task).dtype == np.uint16


def test_prediction_without_nvflare(tmp_path):
    """A clinic's computer needs no FLARE: here importing it is an error."""
    path = write_super_model(tmp_path)
    code = f"""
        import sys

        class Blocked:
            def find_spec(self, name, *rest):
                if name.split(".")[0] == "nvflare":
                    raise ImportError("no nvflare here")

        sys.meta_path.insert(0, Blocked())
        import numpy
        from fedsm.super_model.model import SuperModel

        prediction = SuperModel.load({str(path)!r}).predict(numpy.zeros((9, 7, 3), "uint8"))
        assert prediction.mask.shape == (9, 7)
        import fedsm.super_model.files, fedsm.super_model.bundle, fedsm.super_model.onnx_file, app_fedsm.cli.predict
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
