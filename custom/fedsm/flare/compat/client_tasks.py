"""A task that a client may fetch twice."""

from __future__ import annotations

from nvflare.apis.controller_spec import ClientTask


class ClientTasks(list):
    """A task's record of whom it was sent to, which holds each entry once.

    FLARE 2.9 appends the entry again when a client fetches again after a lost reply while several tasks are open. Its
    monitor thread then dies of a KeyError, and the job hangs for ever: no timeout ends it.
    """

    def append(self, item: ClientTask) -> None:
        if item not in self:
            super().append(item)
