"""What sites send goes to the server's disk, in a deployment and in the simulator."""

import os
from types import SimpleNamespace

import torch
from nvflare.fuel.utils import fobs
from safetensors.torch import load, save_file

from fedsm.core.mapped import map_tensors
from fedsm.flare.compat import memory
from fedsm.flare.compat import tensors as tensors_of_flare
from fedsm.flare.compat.memory import received_to_disk
from tests.helpers.cells import Cell


def engine_of(root, cell, job_cell):
    workspace = SimpleNamespace(get_root_dir=lambda: str(root))
    server = SimpleNamespace(job_cell=job_cell)
    return SimpleNamespace(get_cell=lambda: cell, server=server, get_workspace=lambda: workspace)


def test_the_simulators_job_cell_receives_to_disk_too(tmp_path):
    """In the simulator the engine's cell is not the one that receives: 48 MB of answers lay in memory."""
    engine_cell, job_cell = Cell(), Cell()
    engine = engine_of(tmp_path, engine_cell, job_cell)
    key = fobs.FOBSContextKey.TENSOR_DISK_OFFLOAD
    with received_to_disk(engine, "job"):
        folders = [cell.context["tensor_disk_offload_root_dir"] for cell in (engine_cell, job_cell)]
        assert engine_cell.context[key] and job_cell.context[key]
        assert all(map(os.path.isdir, folders))
    assert not engine_cell.context[key] and not job_cell.context[key]
    assert not any(map(os.path.isdir, folders))


def test_a_deployments_engine_has_one_cell(tmp_path):
    cell = Cell()
    engine = engine_of(tmp_path, cell, cell)
    with received_to_disk(engine, "job"):
        assert cell.context[fobs.FOBSContextKey.TENSOR_DISK_OFFLOAD]
    assert not cell.context[fobs.FOBSContextKey.TENSOR_DISK_OFFLOAD]


def test_nothing_is_kept_of_what_was_sent():
    tensors = {"a": torch.ones(3), "b": torch.zeros(2)}
    source = tensors_of_flare._LeanDownloadable(tensors, 1)
    source.num_receivers = 1
    rc, items, state = source.produce({}, "site-1")
    assert len(items) == 1 and source.cache == [(None, 0)] * 2 and not source._prefetch_futures
    assert source.produce(state, "site-1")[1] == [source.produce_item(1)]


def test_before_a_piece_is_sent_what_is_left_of_others_is_freed(monkeypatch):
    """At the server, where there is a collector; a site has none."""
    monkeypatch.setattr(memory, "_current", None)
    source = tensors_of_flare._LeanDownloadable({"a": torch.ones(3)}, 1)
    source.num_receivers = 1
    source.produce({}, "site-1")
    looks = []
    collector = memory.MessageCollector()
    monkeypatch.setattr(collector, "look", lambda: looks.append(source.base_obj is not None))
    source.produce({}, "site-1")
    assert looks == [True]


def test_a_piece_of_a_mapped_file_is_given_back_when_it_is_sent(tmp_path, monkeypatch):
    save_file({"a": torch.arange(5.0)}, tmp_path / "file")
    released = []
    monkeypatch.setattr(tensors_of_flare, "release_tensor", released.append)
    tensors = map_tensors(tmp_path / "file")
    source = tensors_of_flare._LeanDownloadable(tensors, 1)
    source.num_receivers = 1
    items = source.produce({}, "site-1")[1]
    assert load(items[0])["a"].tolist() == [0, 1, 2, 3, 4]
    assert released == [tensors["a"]]
