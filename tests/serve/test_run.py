"""The socket that the service listens on."""

from __future__ import annotations

import asyncio
import socket

from fedsm.serve.run import Listening


def test_answers_leave_at_once():
    """asyncio turns Nagle's algorithm off for sockets that say that they are TCP; else an answer takes 40 ms more."""

    async def no_delay() -> int:
        found = asyncio.get_running_loop().create_future()

        async def answer(_, writer: asyncio.StreamWriter) -> None:
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = Listening(port=0).bind()
        async with await asyncio.start_server(answer, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            value = await found
            writer.close()
        return value

    assert asyncio.run(no_delay()) == 1
