"""The rounds that the benchmarks of aggregation play."""

import torch

from benchmarks.models_on_disk import play
from benchmarks.server_rounds import ServerRounds, on_disk
from fedsm.core.model_store import OnDisk
from tests.helpers.small_jobs import small_settings


def test_answers_on_disk_and_models_on_disk_give_the_same_weights(tmp_path):
    settings = small_settings(selector="statistics")
    memory, disk = ServerRounds(settings, 3), ServerRounds(settings, 3, OnDisk(tmp_path / "models"))
    update = memory.update()
    memory.aggregate(memory.answers([update]))
    assert disk.aggregate(disk.answers([on_disk(update, tmp_path / "incoming")])) > 0
    kept, files = memory.tracks["personal"].files(), disk.tracks["personal"].files()
    for stem, tensors in kept.items():
        assert all(torch.equal(files[stem][key], value) for key, value in tensors.items()), stem


def test_figures_of_a_server_with_models_on_disk(tmp_path):
    figures = play(small_settings(selector="statistics"), "disk", 3, tmp_path)
    assert figures["sites"] == 3 and figures["checkpoint_seconds"] > 0 and figures["aggregation_seconds"] > 0
    assert len(list((tmp_path / "models").iterdir())) == 3
