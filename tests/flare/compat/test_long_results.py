"""Workaround: `communication_timeout` in `app_fedsm/provisioning/kit/site_resources.yaml`.

Symptom: a site waits 300 s for the answer to its result, and the server answers only when it has fetched all of it. A
result of 500 MB on a slow line is sent again and again. FLARE 2.9.0.
With the workaround: `tests/app/test_provision.py`.
"""

from unittest.mock import Mock

import pytest
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import Shareable
from nvflare.private.fed.client.fed_client import FederatedClient


class Sent(Exception):
    """In the place of a sent result."""


def test_a_site_waits_300_seconds_for_the_answer_to_its_result():
    """With what a kit says of its client; `test_provisioned.py` shows that it says no more."""
    settings = {"retry_timeout": 30, "compression": "Gzip"}
    cell = Mock()
    cell.send_request.side_effect = Sent
    link = FederatedClient("site-1", settings, secure_train=False, cell=cell).communicator
    fl_ctx = FLContextManager(identity_name="site-1", job_id="job").new_context()
    with pytest.raises(Sent):
        link.submit_update("project", "token", None, fl_ctx, "site-1", Shareable(), "train")
    assert cell.send_request.call_args.kwargs["timeout"] == 300
