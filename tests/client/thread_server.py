"""A server with all its protocols in a thread of this process: on a clock that a test can move."""

import threading
from types import TracebackType

from openq.config import Config
from openq.local.broker import LocalBroker
from openq.server.app import Server
from openq.server.listener import new_loop
from tests.serving import free_port


class ThreadServer:
    """Serves a broker that somebody else made, and closes it at the end."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self._loop = new_loop()
        self.server = Server(Config(memory=True, port=free_port(), amqp_port=None), broker, self._loop)
        self._loop.run_until_complete(self.server.start())
        self.url = self.server.url
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self.server.drain())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def __enter__(self) -> "ThreadServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
