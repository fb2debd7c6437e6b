"""What sites send goes to the server's disk, in a deployment and in the simulator."""

import os
from types import SimpleNamespace

import torch
from nvflare.fuel.utils import fobs

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
