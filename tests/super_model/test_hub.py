"""`fedsm export hub`: what the hub reads is valid, what people read is there, and the folder is a super model."""

import json
import re

import numpy as np
import pytest
import yaml

from app_fedsm.cli.main import main
from fedsm.super_model.model import SuperModel
from tests.helpers.small_model import SITES, write_super_model

ROW = {"per_site": {"site-1": 0.8123456, "site-2": None}, "client_avg": 0.8123456}
MORE = {
    "delta": [1.5, None], "scores": {"super_model": ROW}, "forgotten": ["site-9"], "versions": {"fedsm": "0.2.0"},
    "images": {site: {"train": 8, "validation": 4, "test": 3} for site in SITES},
}  # fmt: skip


@pytest.fixture
def hub(tmp_path):
    path = write_super_model(tmp_path, policy=MORE)
    assert main(["export", "hub", str(path), "-o", str(tmp_path / "hub")]) == 0
    return tmp_path / "hub"


def front_matter(readme: str) -> dict:
    return yaml.safe_load(re.match(r"---\n(.*?)\n---\n", readme, re.DOTALL)[1])


def test_front_matter(hub):
    front = front_matter((hub / "README.md").read_text())
    assert front["license"] == "other" and (hub / front["license_link"]).is_file()
    assert front["pipeline_tag"] == "image-segmentation" and "federated-learning" in front["tags"]
    (result,) = front["model-index"][0]["results"]
    assert result["dataset"]["name"].startswith("site-1") and result["metrics"][0]["value"] == 0.8123


def test_the_hub_takes_it(hub):
    """As far as the hub's own package checks it without the network."""
    huggingface_hub = pytest.importorskip("huggingface_hub", reason="pip install huggingface_hub")
    card = huggingface_hub.ModelCard.load(hub / "README.md", ignore_metadata_errors=False)
    assert card.data.license == "other" and card.data.library_name == "fedsm"
    (found,) = card.data.eval_results
    assert found.metric_type == "dice" and found.metric_value == 0.8123 and found.dataset_split == "test"
    assert front_matter(str(card)) == front_matter((hub / "README.md").read_text()), "nothing is lost on the way"


def test_the_card(hub):
    text = re.sub(" +", " ", (hub / "README.md").read_text())
    for words in (
        "Not a medical device; not for clinical use", "| site-1 | 8 | 4 | 3 |", "## Intended use", "## Limits",
        "## Images from elsewhere", "Delta: site-1 1.5, site-2 no limit", "not above gamma (0.5)",
        "| super model | 0.812 |",
        "Run `0123456789ab`", "Taken out afterwards, with their networks: site-9", "SuperModel.load(",
    ):  # fmt: skip
        assert words in text, words
    assert str(hub) not in text and "/tmp" not in text
    lines = [line for line in text.splitlines() if re.match(r"\d\. ", line)]
    assert [line[0] for line in lines] == ["1", "2", "3"]


def test_the_folder_is_a_super_model(hub, tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (40, 28, 3), np.uint8)
    masks = [SuperModel.load(folder, "cpu").predict(image).mask for folder in (tmp_path / "super_model", hub)]
    assert (masks[0] == masks[1]).all()
    config = json.loads((hub / "config.json").read_text())
    assert config["image_size"] == 32 and config["labels"] == {"disc": [1, 2], "cup": [2]}
    assert all((hub / file).is_file() for file in config["networks"].values())


@pytest.mark.parametrize("kind", ["fedavg", "local", "ensemble", "gradient"])
def test_other_kinds(tmp_path, kind):
    path = write_super_model(tmp_path, kind)
    assert main(["export", "hub", str(path), "-o", str(tmp_path / "hub")]) == 0
    text = (tmp_path / "hub" / "README.md").read_text()
    assert "model-index" not in text and "Images from elsewhere" in text


def test_bad_input(tmp_path, hub, capsys):
    path = str(tmp_path / "super_model")
    assert main(["export", "hub", path, "-o", str(hub)]) == 2
    assert "exists" in capsys.readouterr().err
    for content, words in (("{}", "is no evaluation.json"), ("", "is no evaluation.json")):
        (tmp_path / "e.json").write_text(content)
        given = ["--evaluation", str(tmp_path / "e.json")]
        assert main(["export", "hub", path, "-o", str(tmp_path / "new"), *given]) == 2
        assert words in capsys.readouterr().err and not (tmp_path / "new").exists()
