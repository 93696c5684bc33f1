"""The log of a worker service: text, or JSON lines with --json. Every line names its process."""

from __future__ import annotations

import logging
import os
import sys
import time

from ..logs import JsonLines
from .options import ServiceOptions


def set_up_logging(options: ServiceOptions, name: str) -> None:
    """On stderr, for the logger `openq`, and for the root logger unless the application has set it up."""
    handler = logging.StreamHandler(sys.stderr)
    lines: logging.Formatter = TextLines(name)
    if options.as_json:
        lines = JsonLines({"worker": name, "pid": os.getpid()})
    handler.setFormatter(lines)
    level = options.log_level.upper()
    ours = logging.getLogger("openq")
    ours.handlers[:] = [handler]
    ours.setLevel(level)
    ours.propagate = False
    root = logging.getLogger()
    if not root.handlers or all(isinstance(each.formatter, TextLines | JsonLines) for each in root.handlers):
        root.handlers[:] = [handler]
        root.setLevel(max(logging.INFO, ours.level))


class TextLines(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{clock} {record.levelname:<7} {self.process}[{record.process}] "
        text = head + record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text
