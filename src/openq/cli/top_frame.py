"""What `openq top` shows at one moment: read from the server, and put in order. No terminal here."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..client.http import Refused
from .api import ApiClient

Json = dict[str, Any]

RATES = {"in": "published", "out": "delivered", "done": "acked", "failed": "nacked"}
MAX_CONSUMERS = 10_000  # that are counted
TREND_S = 120  # of the rates of all queues together
TREND_STEP_S = 4


@dataclass
class Frame:
    time: float
    server: Json
    queues: list[Json]
    workers: list[Json]
    consumers: Counter[str] = field(default_factory=Counter)  # by queue
    alerts: list[Json] | None = None  # None: the server has none, or the caller may not see them
    trend: Json | None = None  # of all queues together; None: the caller is no administrator
    rates: dict[str, dict[str, float]] = field(default_factory=dict)  # queue -> name -> per second

    def to_json(self) -> Json:
        queues = [
            {**each, "rates": self.rates.get(each["name"]), "consumers": self.consumers[each["name"]]}
            for each in self.queues
        ]
        return {
            "time": self.time,
            "server": self.server,
            "queues": queues,
            "workers": self.workers,
            "alerts": self.alerts,
            "trend": self.trend,
        }


class TopFrameReader:
    """Reads frames. A part that the server refuses is not asked for again."""

    def __init__(self, server: ApiClient) -> None:
        self._server = server
        self._refused: set[str] = set()

    def read(self, previous: Frame | None) -> Frame:
        server = self._server
        frame = Frame(
            time.time(),
            server.get("/server"),
            list(server.pages("/queues", "queues", "next")),
            server.get("/workers")["workers"],
            self._optional("consumers", self._consumers) or Counter(),
            self._optional("alerts", self._alerts),
            self._optional("trend", self._trend),
        )
        if previous is not None:
            frame.rates = rates_between(previous, frame)
        return frame

    def _optional(self, part: str, read: Callable[[], Any]) -> Any:
        if part in self._refused:
            return None
        try:
            return read()
        except Refused as error:
            if error.status not in (403, 404):
                raise
            self._refused.add(part)  # an older server, or not for this caller
            return None

    def _consumers(self) -> Counter[str]:
        found = islice(self._server.pages("/consumers", "consumers", "next"), MAX_CONSUMERS)
        return Counter(each["queue"] for each in found)

    def _alerts(self) -> list[Json]:
        found: list[Json] = self._server.get("/alerts", state="active")["alerts"]
        return found

    def _trend(self) -> Json:
        found = self._server.get(
            "/series",
            name=",".join(RATES.values()),
            **{"from": round(time.time()) - TREND_S},
            step=TREND_STEP_S,
        )
        values = found["values"]
        return {
            "step": found["step"],
            "per_second": {
                name: [None if each is None else each / found["step"] for each in values[name]]
                for name in RATES.values()
            },
        }


def rates_between(before: Frame, now: Frame) -> dict[str, dict[str, float]]:
    """By the counters of the queues. A queue that was created again starts anew."""
    seconds = max(now.time - before.time, 0.001)
    old = {queue["name"]: queue["stats"]["counters"] for queue in before.queues}
    found = {}
    for queue in now.queues:
        counters = queue["stats"]["counters"]
        known = old.get(queue["name"], {})
        found[queue["name"]] = {
            name: max(0.0, (counters.get(name, 0) - known.get(name, counters.get(name, 0))) / seconds)
            for name in RATES.values()
        }
    return found


# -- order --------------------------------------------------------------------------------------


def _load(frame: Frame, queue: Json) -> float:
    stats, rates = queue["stats"], frame.rates.get(queue["name"], {})
    return float(sum(rates.values()) + stats["ready"] + stats["in_flight"])


def _rate(name: str) -> Callable[[Frame, Json], float]:
    return lambda frame, queue: frame.rates.get(queue["name"], {}).get(name, 0.0)


# The greatest value first; equal ones by name.
ORDERS: dict[str, Callable[[Frame, Json], float]] = {
    "load": _load,
    "name": lambda frame, queue: 0.0,
    "ready": lambda frame, queue: queue["stats"]["ready"],
    "flight": lambda frame, queue: queue["stats"]["in_flight"],
    "age": lambda frame, queue: queue["stats"]["oldest_age"] or 0.0,
    "in": _rate("published"),
    "out": _rate("delivered"),
    "done": _rate("acked"),
    "errors": _rate("nacked"),
    "consumers": lambda frame, queue: frame.consumers[queue["name"]],
}


def ordered(frame: Frame, order: str) -> list[Json]:
    value = ORDERS[order]
    return sorted(frame.queues, key=lambda queue: (-value(frame, queue), queue["name"]))
