"""The log of a worker service: text, or JSON lines with --json. Every line names its process."""

from __future__ import annotations

import json
import logging
import sys
import time

from .options import ServiceOptions


def set_up_logging(options: ServiceOptions, name: str) -> None:
    """On stderr, for the logger `openq`, and for the root logger unless the application has set it up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(name) if options.as_json else TextLines(name))
    level = options.log_level.upper()
    ours = logging.getLogger("openq")
    ours.handlers[:] = [handler]
    ours.setLevel(level)
    ours.propagate = False
    root = logging.getLogger()
    if not root.handlers or all(isinstance(each.formatter, _Lines) for each in root.handlers):
        root.handlers[:] = [handler]
        root.setLevel(max(logging.INFO, ours.level))


class _Lines(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process


class TextLines(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{clock} {record.levelname:<7} {self.process}[{record.process}] "
        text = head + record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class JsonLines(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, object] = {
            "ts": f"{when}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            "worker": self.process,
            "pid": record.process,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)
