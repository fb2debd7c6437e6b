"""Workaround: `fedsm.flare.compat.memory`.

Symptoms: in the simulator answers pile up in the server's memory, because FLARE's switch for receiving to disk reaches
the engine's cell, and the server's job cell receives; the files go to the system's temporary folder, where they stay if
the server is killed. FLARE 2.9.0. With the workaround: `tests/flare/test_memory.py`.
"""

import tempfile
from pathlib import Path
from types import SimpleNamespace

from nvflare.app_common.utils.tensor_disk_offload_context import cleanup_tensor_disk_offload, setup_tensor_disk_offload
from nvflare.fuel.utils.fobs import FOBSContextKey

from tests.helpers.cells import Cell


def test_flares_own_switch_misses_the_job_cell_and_uses_the_temporary_folder():
    cell, job_cell = Cell(), Cell()
    engine = SimpleNamespace(get_cell=lambda: cell, server=SimpleNamespace(job_cell=job_cell), run_manager=None)
    context = setup_tensor_disk_offload(engine, enabled=True, job_id="job")
    try:
        assert cell.context[FOBSContextKey.TENSOR_DISK_OFFLOAD] and not job_cell.context
        assert Path(context.root_dir).parent == Path(tempfile.gettempdir())
    finally:
        cleanup_tensor_disk_offload(engine, context)
