"""Workaround: `fedsm.flare.identity`.

Symptom: a site answers under another's name. FLARE knows from the token who sent an answer, but hands on the name in
the peer context as the client wrote it. FLARE 2.9.0. With the workaround: `tests/attacks/test_identity.py`.
"""

import threading
from types import SimpleNamespace
from unittest.mock import Mock

from nvflare.apis.client import Client
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ServerCommandNames
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.private.defs import CellMessageHeaderKeys, new_cell_message
from nvflare.private.fed.server import server_runner
from nvflare.private.fed.server.server_command_agent import ServerCommandAgent

from tests.helpers.pristine import pristine


def test_flare_takes_the_name_that_an_answer_gives_itself():
    """The message comes with the token of site 3 and says that it is site 1's; the workflow gets it so."""
    runner = object.__new__(pristine(server_runner).ServerRunner)
    runner.job_id, runner.status, runner.wf_lock, runner.abort_signal = "job", "started", threading.RLock(), None
    runner.config = SimpleNamespace(task_result_filters={})
    runner.current_wf = Mock(id="workflow")
    runner.fire_event = runner.log_info = runner.log_debug = lambda *args: None

    server = Mock(client_manager=Mock(clients={"token of site 3": Client("site-3", "token of site 3")}))
    server.authentication_check.return_value = None
    engine = Mock(server=server)
    contexts = FLContextManager(engine, identity_name="server", job_id="job")
    engine.new_context = contexts.new_context
    contexts.public_stickers, contexts.private_stickers = {}, {FLContextKey.RUNNER: runner}

    answer = Shareable()
    answer.set_header(FLContextKey.TASK_NAME, "train")
    answer.set_peer_context(FLContextManager(identity_name="site-1", job_id="job").new_context())
    headers = {MessageHeaderKey.TOPIC: ServerCommandNames.SUBMIT_UPDATE, CellMessageHeaderKeys.TOKEN: "token of site 3"}
    ServerCommandAgent(engine, Mock()).execute_command(new_cell_message(headers, answer))

    given = runner.current_wf.controller.communicator.process_submission.call_args.kwargs
    assert given["client"].name == "site-3"
    assert given["fl_ctx"].get_peer_context().get_identity_name() == "site-1"
    assert given["result"].get_peer_prop(ReservedKey.IDENTITY_NAME, None) == "site-1"
