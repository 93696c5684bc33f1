"""A topology over a broker of its own, with a clock that the test moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openq.amqp.topology import Topology
from openq.auth.guard import Guard
from openq.auth.store import UserStore
from openq.config import Config
from openq.local.broker import LocalBroker
from openq.model import QueueSettings
from openq.server.context import ServerContext


class ManualLoop:
    """As much of an event loop as timers need, with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.timers: list[tuple[float, Any, tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, act: Any, *given: Any) -> Any:
        timer = (self.now + delay, act, given)
        self.timers.append(timer)
        return _Timer(self, timer)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer[0] <= end]:
            timer = min(due, key=lambda each: each[0])
            self.timers.remove(timer)
            self.now = max(self.now, timer[0])
            timer[1](*timer[2])
        self.now = end


class _Timer:
    def __init__(self, loop: ManualLoop, timer: Any) -> None:
        self.loop, self.timer = loop, timer

    def cancel(self) -> None:
        if self.timer in self.loop.timers:
            self.loop.timers.remove(self.timer)


class TopologyServer:
    """A topology over a broker that can be left and opened again."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.loop = ManualLoop()
        self.store = UserStore(None)
        self.open()

    def open(self) -> None:
        self.broker = LocalBroker(None if self.path is None else str(self.path))
        config = Config(memory=True) if self.path is None else Config(data=str(self.path))
        loop: Any = self.loop
        self.context = ServerContext(self.broker, loop, config, Guard(self.store, lambda: 0.0))
        try:
            self.topology = Topology(self.context)
        except BaseException:
            self.context.close()
            self.broker.close()
            raise
        self.topology.startup()

    def close(self) -> None:
        self.topology.close()
        self.context.close()
        self.broker.close()

    def settings(self, queue_key: str = "q") -> QueueSettings:
        return self.broker.settings(queue_key)
