"""The thread that records the built-in history, one sample per second."""

from __future__ import annotations

import logging
import threading
import time

from ..broker.interface import Broker
from ..broker.series import SeriesReader
from ..broker.series_recorder import SeriesRecorder
from ..errors import OpenQError
from ..metrics import Family

log = logging.getLogger("openq.server")

INTERVAL_S = 1.0
STOP_S = 5.0
_LEAST_WAIT_S = 0.2  # after a sample that took long


class SeriesThread:
    def __init__(self, broker: Broker) -> None:
        self._pages = broker.statistics.pages
        self._recorder = SeriesRecorder(broker, self._pages)
        self.reader = SeriesReader(self._pages)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples = 0
        self._errors = 0
        self._failing = ""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="openq-series", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Blocking, and before the broker is closed."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_S)
        try:
            self._pages.close()
        except (OSError, OpenQError):
            pass  # the lock of a store that is unreachable ends by itself

    def _run(self) -> None:
        while not self._stopping.wait(max(_LEAST_WAIT_S, INTERVAL_S - time.time() % INTERVAL_S)):
            self.sample()

    def sample(self) -> None:
        try:
            self._samples += self._recorder.sample()
        except (OSError, OpenQError) as error:
            # A full disk or an unreachable store: seconds of history are missing, and nothing else.
            self._errors += 1
            if self._failing != str(error):
                self._failing = str(error)
                log.warning("the history of counts has a gap: %s", error)
        except Exception:
            self._errors += 1
            log.exception("the history of counts has a gap")
        else:
            self._failing = ""

    def families(self) -> list[Family]:
        return [
            Family(
                "openq_series_samples_total",
                "counter",
                "Samples of the built-in history that this server recorded; one server of a store records.",
                [({}, self._samples)],
            ),
            Family(
                "openq_series_errors_total",
                "counter",
                "Samples of the built-in history that could not be recorded.",
                [({}, self._errors)],
            ),
        ]
