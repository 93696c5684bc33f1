"""A wire to a server that breaks at the worst moment: the request has arrived, its answer gets lost."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from urllib.parse import urlsplit

from tests.serving import free_port


class LossyProxy:
    """Passes everything on between clients and one server. `lose` is how many answers get lost.

    With `instead`, the client gets that in place of a lost answer, as from a gateway.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lose = 0
        self.instead = b""
        self.requests: list[bytes] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: object, *args: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)
        return thread

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._pass_on, client)

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server, suppress(OSError):
            back = self._start(self._back, server, client)
            while data := client.recv(1 << 20):
                if data[:5] in (b"POST ", b"GET /", b"PUT /", b"PATCH", b"DELET"):
                    self.requests.append(data.partition(b" HTTP")[0])
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)
            # The other direction ends when the server hangs up in turn.
            back.join(10)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 20):
                if self.lose > 0:
                    self.lose -= 1
                    client.sendall(self.instead)
                    break
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> "LossyProxy":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
