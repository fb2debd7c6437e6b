"""Lets an authorized user watch a running job through FLARE's admin session: an app command that reads its progress."""

from __future__ import annotations

from typing import Any

from nvflare.apis.fl_context import FLContext

from fedsm.server.record import Progress

TOPIC = "fedsm.progress"


def serve(engine: Any, progress: Progress) -> None:
    """Answers `TOPIC` with the events of `progress.jsonl`; the command's `{"after": n}` leaves out the first n."""

    def answer(topic: str, data: Any, fl_ctx: FLContext) -> dict:
        after = data.get("after") if isinstance(data, dict) else None
        return {"events": progress.events()[after if isinstance(after, int) and after > 0 else 0 :]}

    engine.register_app_command(TOPIC, answer)
