"""Who sent an answer: the client that FLARE authenticated, never what the answer says of itself.

A client fills in its own peer context: a site that renames itself there would answer as another, and the other would be
refused for a second answer. FLARE passes on a task's result only if it came from the client that the task was given to,
by that client's token; so the task's client is the sender. A peer context with another name is refused, and the refusal
names the real sender.
"""

from __future__ import annotations

from nvflare.apis.fl_context import FLContext

_SENDER = "fedsm_sender"  # private: set by the server, never read from a message


def set_sender(fl_ctx: FLContext, site: str) -> None:
    """Notes in the context of an answer which client FLARE authenticated for its task."""
    fl_ctx.set_prop(_SENDER, site, private=True, sticky=False)


def sender_of(fl_ctx: FLContext) -> str:
    """The authenticated sender of an answer; empty text, which is never a site's name, where none was noted."""
    return fl_ctx.get_prop(_SENDER, "")


def sender_problem(fl_ctx: FLContext) -> str | None:
    """What is wrong with the name that an answer gives itself, or None."""
    peer = fl_ctx.get_peer_context()
    claimed = peer.get_identity_name() if peer else None
    if claimed is not None and claimed != sender_of(fl_ctx):
        return f"it answers under the name {str(claimed)[:80]!r}, which is not its own"
    return None
