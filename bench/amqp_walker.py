"""`python -m bench.amqp_walker PORT`: a server that reads AMQP frames by their headers and does nothing else.

What no Python server can go below: it finds where each frame ends, on the same loop that OpenQ runs on. A
heartbeat is echoed, so that a client learns when everything before it has been read.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from typing import cast

from openq.server.listener import new_loop

from .amqp_client import HEARTBEAT

_unpack = struct.Struct(">BHI").unpack_from


class Walker(asyncio.Protocol):
    def __init__(self) -> None:
        self.frames = 0
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
        at, end = 0, len(data)
        frames = self.frames
        while end - at >= 8:
            kind, _, size = _unpack(data, at)
            following = at + size + 8
            if following > end:
                break
            frames += 1
            if kind == 8:
                self._transport.write(HEARTBEAT)
            at = following
        self.frames = frames
        self._held = data[at:]


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Walker, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    new_loop().run_until_complete(_serve(int(sys.argv[1])))
