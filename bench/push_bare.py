"""`python -m bench.push_bare PORT`: writes given bytes to all of its connections, and does nothing else.

What a fan-out costs at least: one `send` per socket. The first connection controls: a length and the bytes
once, then a byte for every round. `e` is the last round, which adds `END`.
"""

from __future__ import annotations

import selectors
import socket
import struct
import sys

SIZE = struct.Struct(">I")
END = b"id: end\n\n"


def main() -> int:
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=1024)
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    control, _ = listener.accept()
    waiting.register(control, selectors.EVENT_READ)
    readers: list[socket.socket] = []
    data = b""
    while True:
        for key, _ in waiting.select():
            if key.fileobj is listener:
                reader, _ = listener.accept()
                reader.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                readers.append(reader)
                continue
            command = control.recv(1)
            if not command:
                return 0
            if command == b"d":
                (size,) = SIZE.unpack(control.recv(SIZE.size, socket.MSG_WAITALL))
                data = control.recv(size, socket.MSG_WAITALL)
                continue
            round = data + END if command == b"e" else data
            for reader in readers:
                reader.sendall(round)


if __name__ == "__main__":
    sys.exit(main())
