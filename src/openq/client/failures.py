"""Why a handler failed, as the queue keeps it: type and text of the exception, the end of its traceback."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidSetting
from ..model import failure_text
from . import checks

MAX_REASON = 4096  # characters of an exception's text
_OWN_MODULES = ("openq.client.consumer", "openq.aio.consumer")


def reason_of(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = "<its text could not be made>"
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return _encodable(text if len(text) <= MAX_REASON else text[: MAX_REASON - 3] + "...")


def trace_of(error: BaseException) -> str | None:
    """The traceback as Python prints it, from the handler on; None of an exception that was never raised."""
    import traceback  # not at the top: a program whose handlers never fail does not need it

    where = error.__traceback__
    while where is not None and where.tb_frame.f_globals.get("__name__") in _OWN_MODULES:
        where = where.tb_next
    where = where or error.__traceback__
    if where is None:
        return None
    try:
        lines = traceback.format_exception(type(error), error, where)
    except Exception:
        return None  # of an exception that breaks even that, the reason must do
    return _encodable("".join(lines).rstrip())


def failure_of(reason: str | BaseException | None) -> str | None:
    """What `nack` and `reject` are given, as one text: a reason, or the exception itself."""
    if isinstance(reason, BaseException):
        return failure_text(reason_of(reason), trace_of(reason))
    if reason is not None and not isinstance(reason, str):
        raise InvalidSetting(f"reason must be text or an exception, not {reason!r}")
    return checks.text_or_none(reason, "reason")


def retry_delay(error: BaseException) -> float | None:
    """A failure is tried again as the queue says. Work that was cut off did not fail: it returns at once."""
    return None if isinstance(error, Exception) else 0


def describe_attempt(message: Any, queue: str) -> str:
    return f"message {message.id} of queue {queue!r}, attempt {message.receive_count}"


def _encodable(text: str) -> str:
    """Half a surrogate pair, which an exception may well hold, is written as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()
