"""With `--log-format json` the last line of a server that does not start is a log line too."""

from __future__ import annotations

import logging

from ..config import Config
from ..logs import emit
from ..server.logs import set_up_logging


def log_not_started(text: str) -> None:
    writer = set_up_logging(Config(log_format="json"))
    emit(logging.getLogger("openq.server"), logging.CRITICAL, "not_started", reason=text)
    writer.flush()
