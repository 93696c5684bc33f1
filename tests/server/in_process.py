"""A whole server on a loop in a thread of the test: its broker, disk and log are within reach."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from openq.config import DEFAULT_AMQP_PORT, Config
from openq.local.broker import LocalBroker
from openq.logs import JsonLines
from openq.server.app import Server
from openq.server.listener import new_loop
from tests.server.raw_http import RawHttpClient
from tests.serving import free_port


class LogRecords(logging.Handler):
    """What the server logs, as the lines that an operator would read."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def at_least(self, level: str) -> list[str]:
        worse = {"warning": ("warning", "error", "critical"), "error": ("error", "critical")}[level]
        return [line for line in self.lines if any(f'"level": "{each}"' in line for each in worse)]


class InProcessServer:
    def __init__(self, broker: LocalBroker, config: Config) -> None:
        self.port = free_port()
        self.loop = new_loop()
        self.records = LogRecords()
        if config.amqp_port == DEFAULT_AMQP_PORT:  # no test takes the port of a user's own server
            config = replace(config, amqp_port=None)
        self.server = Server(replace(config, port=self.port), broker, self.loop)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = threading.Event()

    def _run(self) -> None:
        self.loop.run_until_complete(self.server.start())
        self._started.set()
        self.loop.run_forever()

    def start(self) -> None:
        logging.getLogger("openq").addHandler(self.records)
        self._thread.start()
        assert self._started.wait(30)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.loop.run_until_complete(self.server.drain())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        logging.getLogger("openq").removeHandler(self.records)

    def wire(self) -> RawHttpClient:
        return RawHttpClient(self.port)


@contextmanager
def in_process_server(broker: LocalBroker, config: Config | None = None) -> Iterator[InProcessServer]:
    server = InProcessServer(broker, config or Config(memory=True, drain_timeout_s=1, log_level="debug"))
    server.start()
    try:
        yield server
    finally:
        server.stop()
