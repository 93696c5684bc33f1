"""A topology over a broker of its own, with a clock that the test moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openq.broker.local import LocalBroker
from openq.config import Config
from openq.model import QueueSettings
from openq.protocols.amqp.topology import Topology
from openq.protocols.site import Site
from openq.security.guard import Guard
from openq.security.store import Store


class Loop:
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
    def __init__(self, loop: Loop, timer: Any) -> None:
        self.loop, self.timer = loop, timer

    def cancel(self) -> None:
        if self.timer in self.loop.timers:
            self.loop.timers.remove(self.timer)


class Place:
    """A topology over a broker that can be left and opened again."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.loop = Loop()
        self.store = Store(None)
        self.open()

    def open(self) -> None:
        self.broker = LocalBroker(None if self.path is None else str(self.path))
        config = Config(memory=True) if self.path is None else Config(data=str(self.path))
        loop: Any = self.loop
        self.site = Site(self.broker, loop, config, Guard(self.store, lambda: 0.0))
        self.topology = Topology(self.site)
        self.topology.startup()

    def close(self) -> None:
        self.topology.close()
        self.site.close()
        self.broker.close()

    def settings(self, full: str = "q") -> QueueSettings:
        return self.broker.settings(full)
