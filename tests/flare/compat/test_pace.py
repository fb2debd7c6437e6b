"""Workaround: `POLL_SECONDS` in `app_fedsm.recipes`.

Symptom: a site that has answered is told to ask again in 2 s, which doubles a short round. FLARE 2.9.0.
"""

from types import SimpleNamespace
from unittest.mock import Mock

from nvflare.private.fed.server.server_json_config import ServerJsonConfigurator


def test_flare_lets_sites_ask_every_two_seconds(tmp_path):
    (tmp_path / "config_fed_server.json").write_text('{"format_version": 2, "workflows": []}')
    args = SimpleNamespace(job_id="job", workspace=str(tmp_path))
    path = str(tmp_path / "config_fed_server.json")
    assert ServerJsonConfigurator(Mock(), path, args, str(tmp_path)).task_request_interval == 2
