"""A socket that speaks WebSocket by hand, well or badly."""

from __future__ import annotations

import base64
import socket
import struct

from tests.serving import Served

KEY = base64.b64encode(bytes(16)).decode()
TEXT, BINARY, CLOSE, PING, PONG, CONT = 1, 2, 8, 9, 10, 0


def head(**changes: str | None) -> bytes:
    fields: dict[str, str | None] = {
        "Host": "127.0.0.1",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY,
    }
    fields |= {name.replace("_", "-"): value for name, value in changes.items()}
    lines = [f"{name}: {value}\r\n" for name, value in fields.items() if value is not None]
    return f"GET /api/v1/stream HTTP/1.1\r\n{''.join(lines)}\r\n".encode()


class Raw:
    """A socket that speaks WebSocket by hand."""

    def __init__(self, server: Served, request: bytes | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        self.socket.sendall(head() if request is None else request)
        self.data = b""
        while b"\r\n\r\n" not in self.data:
            self.data += self.socket.recv(65536)
        self.answer, _, self.data = self.data.partition(b"\r\n\r\n")
        self.status = int(self.answer.split()[1])

    def send(
        self, opcode: int, payload: bytes = b"", *, fin: bool = True, masked: bool = True, bits: int = 0
    ) -> None:
        self.socket.sendall(frame(opcode, payload, fin=fin, masked=masked, bits=bits))

    def exactly(self, size: int) -> bytes:
        while len(self.data) < size:
            more = self.socket.recv(65536)
            if not more:
                raise EOFError
            self.data += more
        out, self.data = self.data[:size], self.data[size:]
        return out

    def read(self) -> tuple[int, bytes]:
        first, second = self.exactly(2)
        size = second & 127
        if size > 125:
            size = int.from_bytes(self.exactly(2 if size == 126 else 8), "big")
        return first & 15, self.exactly(size)

    def until_close(self) -> int:
        """The code of the close frame; 1006 if the socket ends without one."""
        try:
            while True:
                opcode, payload = self.read()
                if opcode == CLOSE:
                    return int.from_bytes(payload[:2], "big") if payload else 1005
        except (EOFError, ConnectionError):
            return 1006

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, masked: bool = True, bits: int = 0
) -> bytes:
    size = len(payload)
    flag = 128 if masked else 0
    if size < 126:
        length = bytes([flag | size])
    else:
        length = (
            bytes([flag | 126]) + struct.pack(">H", size)
            if size < 65536
            else bytes([flag | 127]) + struct.pack(">Q", size)
        )
    mask = b"\x37\xfa\x21\x3d" if masked else b""
    if masked:
        payload = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
    return bytes([(128 if fin else 0) | bits | opcode]) + length + mask + payload
