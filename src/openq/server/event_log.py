"""The log of state changes (`--log-events`): one line for each event of the chosen queues.

A thread reads the events from the store after they are durable, so publishers and consumers never wait for
the log. If the reader of the log is slow, the thread falls behind and catches up later. Events are missing
only if the store no longer keeps them by then; the log says so, and `gaps` counts it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from zlib import crc32

from ..broker.events import Event, EventFilter, Events
from ..broker.interface import Broker
from ..errors import OpenQError
from ..history.property_values import trace_of
from ..logs import EVENT, LogWriter, emit
from .logs import log_kind_of, log_writer

log = logging.getLogger("openq.events")

PAGE = 500
STOP_S = 5.0  # for the last events when the server stops
RETRY_S = 1.0  # after an error of the store
MAX_TRACES = 10_000  # messages whose trace id is remembered after their publish
_MAX_DETAIL = 200
_DETAILS = ("consumer", "protocol", "delivery", "to", "why", "reason", "until_ms", "due_ms")


class EventLog:
    def __init__(self, broker: Broker) -> None:
        self._events: Events = broker.events
        self._reader: _Reader | None = None
        self.logged = 0
        self.gaps = 0

    def start(self, queues: tuple[str, ...], sample: float) -> None:
        """Log from now on, instead of what was logged before; no queues: nothing is read."""
        self.stop()
        if not queues or sample <= 0:
            return
        log.setLevel(EVENT)
        self._reader = _Reader(self, self._events, EventFilter(() if "*" in queues else queues), sample)

    def stop(self) -> None:
        """End after the events that are durable now."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.stop()


class _Reader:
    """A thread that reads pages of events and logs them."""

    def __init__(self, counts: EventLog, events: Events, wanted: EventFilter, sample: float) -> None:
        self._counts = counts
        self._events = events
        self._wanted = wanted
        self._limit = int(sample * 2**32)
        self._traces: OrderedDict[str, str] = OrderedDict()
        self._stopping = False
        self._wake = threading.Event()
        self._after = events.end()
        self._unwatch = events.watch(self._wake.set)
        self._thread = threading.Thread(target=self._run, name="openq-event-log", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._unwatch()
        self._stopping = True
        self._wake.set()
        self._thread.join(STOP_S)
        if self._thread.is_alive():  # the reader of the log is too slow
            self._counts.gaps += 1
            emit(log, logging.WARNING, "events_skipped", reason="stopped before all events were logged")

    def _run(self) -> None:
        while True:
            is_last = self._stopping
            self._wake.clear()
            try:
                is_end = self._read_page()
            except OpenQError as error:
                if is_last:
                    return
                log.error("events cannot be read now: %s", error)
                self._wake.wait(RETRY_S)
                continue
            except Exception:
                log.exception("the log of events has ended")
                return
            if is_end and is_last:
                return
            if is_end and not self._stopping:
                self._wake.wait()

    def _read_page(self) -> bool:
        """Log one page. Returns whether there are no later events now."""
        writer = log_writer()
        if writer is not None and not writer.wait_for_room(0.5):
            return False
        page = self._events.read(self._after, PAGE, self._wanted)
        if page.gap_until_ms is not None:
            self._counts.gaps += 1
            emit(log, logging.WARNING, "events_skipped", until_ms=page.gap_until_ms)
        self._log(writer, [event for event in page.events if self._is_sampled(event)])
        self._after = page.next
        return page.is_end

    def _is_sampled(self, event: Event) -> bool:
        """By the message id: of a message all events are logged or none."""
        return event.message_id is None or crc32(event.message_id.encode()) < self._limit

    def _log(self, writer: LogWriter | None, events: list[Event]) -> None:
        if not events:
            return
        self._counts.logged += len(events)
        if writer is not None and log_kind_of(writer) == "json":
            # Past the loggers: a line costs a third.
            writer.add_lines([self._line(event) for event in events])
            return
        for event in events:
            emit(log, EVENT, event.event, time=_time(event.time_ms), **self._fields(event))

    def _line(self, event: Event) -> str:
        head = {"ts": _time(event.time_ms), "level": "event", "event": event.event}
        return json.dumps(
            {**head, **self._fields(event), "logger": log.name}, ensure_ascii=False, default=str
        )

    def _fields(self, event: Event) -> dict[str, object]:
        fields: dict[str, object] = {"queue": event.queue}
        if event.message_id is not None:
            fields["message_id"] = event.message_id
        for name in _DETAILS:
            value = event.detail.get(name)
            if isinstance(value, str):
                fields[name] = value.partition("\n")[0][:_MAX_DETAIL]
            elif isinstance(value, int | float):
                fields[name] = value
        properties = None if event.message is None else event.message.properties
        if properties is not None and properties.publisher:
            fields["user"] = properties.publisher
        trace = self._trace(event)
        if trace is not None:
            fields["trace_id"] = trace
        return fields

    def _trace(self, event: Event) -> str | None:
        if event.message_id is None:
            return None
        properties = None if event.message is None else event.message.properties
        if properties is None:
            return self._traces.get(event.message_id) if self._traces else None
        trace = trace_of(properties.attributes)
        if trace is not None:
            self._traces[event.message_id] = trace
            if len(self._traces) > MAX_TRACES:
                self._traces.popitem(last=False)
        return trace


def _time(time_ms: int) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(time_ms // 1000))}.{time_ms % 1000:03d}Z"
