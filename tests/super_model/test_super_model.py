"""Algorithm 2 by hand; the artefact loads as it was saved, or says why not."""

import json

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.selectors.inference import select
from fedsm.super_model import artefact
from fedsm.super_model.artefact import load_super_model, save_super_model
from tests.helpers.small_jobs import small_settings


def test_select_by_hand():
    """0.9 > 0.5: site 2's model. 0.5 is not > 0.5 and 0.4 is not: the global one. 0 is global, k + 1 is site k."""
    yhat = torch.tensor([[0.1, 0.9, 0.0], [0.5, 0.3, 0.2], [0.4, 0.3, 0.3]])
    assert select(yhat, 0.5).tolist() == [2, 0, 0]
    assert select(yhat, 0.0).tolist() == [2, 1, 1]
    assert select(torch.eye(3), 1.0).tolist() == [0, 0, 0], "gamma 1 is always the global model, even when sure"


@pytest.fixture
def folder(tmp_path):
    networks = {"global": {"w": torch.arange(3.0)}, "personal.site-1": {"w": torch.ones(3)}}
    manifest = {"task": "retinal", "method": "fedsm", "selector": "none", "sites": ["site-1"], "gamma": 0.5}
    save_super_model(tmp_path / "super_model", small_settings(), manifest, networks, {"global": {"round": 7}})
    return tmp_path / "super_model"


def test_round_trip(folder):
    loaded = load_super_model(folder)
    assert loaded.settings == small_settings()
    assert loaded.networks["global"]["w"].tolist() == [0, 1, 2]
    assert loaded.manifest["networks"]["global"]["round"] == 7
    assert sorted(p.name for p in folder.iterdir()) == [
        "MODEL_CARD.md", "global.safetensors", "manifest.json", "personal.site-1.safetensors",
    ]  # fmt: skip


def edit(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "manifest.json").unlink(), "cannot be read"),
        (lambda f: (f / "manifest.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "global.safetensors").unlink(), "global.safetensors"),
        (lambda f: (f / "global.safetensors").write_bytes(b"x"), "checksum"),
        (lambda f: edit(f, lambda m: m.update(format="other")), "format"),
        (lambda f: edit(f, lambda m: m["networks"]["global"].update(file="../../secret")), "plain file name"),
    ],
)
def test_damage_is_one_line(folder, damage, words):
    damage(folder)
    with pytest.raises(UserError, match=words) as caught:
        load_super_model(folder)
    assert "\n" not in str(caught.value)


MANY = [f"site-{i}" for i in range(1, 20)]


@pytest.fixture
def many(tmp_path):
    """A super model of 20 networks."""
    networks = {"global": {"w": torch.arange(3.0)}}
    networks |= {f"personal.{site}": {"w": torch.full((3,), float(i))} for i, site in enumerate(MANY)}
    manifest = {"task": "retinal", "method": "fedsm", "selector": "none", "sites": MANY, "gamma": 0.5}
    save_super_model(tmp_path / "many", small_settings(), manifest, networks, {})
    return tmp_path / "many"


def test_of_many_networks_only_those_that_are_used_are_read(many, monkeypatch):
    read, real = [], artefact.load_file
    monkeypatch.setattr(artefact, "load_file", lambda path: read.append(path.stem) or real(path))
    networks = load_super_model(many).networks
    assert len(networks) == 20 == len(list(networks)) and "personal.site-3" in networks and "other" not in networks
    assert not read
    for _ in range(2):
        assert networks["personal.site-3"]["w"].tolist() == [2, 2, 2]
    assert read == ["personal.site-3"]
    with pytest.raises(KeyError):
        networks["other"]


def test_of_many_networks_what_is_used_is_verified(many):
    """The damaged one is found when it is used, and every time; a missing or a short one at once."""
    damaged = many / "personal.site-3.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    networks = load_super_model(many).networks
    assert networks["global"]["w"].tolist() == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(UserError, match=r"personal.site-3.*checksum"):
            networks["personal.site-3"]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"personal.site-3.*cannot be read"):
        load_super_model(many)
    damaged.unlink()
    with pytest.raises(UserError, match=r"personal.site-3.*cannot be read"):
        load_super_model(many)
