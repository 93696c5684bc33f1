"""Why a handler failed, as the queue stores it: the exception's type and text, the end of its traceback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import InvalidSetting
from ..model import failure_text
from . import checks

MAX_REASON = 4096  # characters of an exception's text
MAX_TRACE_TEXT = 500  # characters of that text in the traceback; the reason has all of it
_CONSUMER_MODULES = ("openq.client.consumer", "openq.aio.consumer")


def reason_of(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = "<str() of the exception failed>"
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return _encodable(text if len(text) <= MAX_REASON else text[: MAX_REASON - 3] + "...")


def trace_of(error: BaseException) -> str | None:
    """The traceback as Python prints it, from the handler on; None for an exception that was not raised."""
    import traceback  # imported late: a program whose handlers never fail does not need it

    where = error.__traceback__
    while where is not None and where.tb_frame.f_globals.get("__name__") in _CONSUMER_MODULES:
        where = where.tb_next
    where = where or error.__traceback__
    if where is None:
        return None
    try:
        lines = traceback.format_exception(type(error), error, where)
    except Exception:
        return None  # the exception cannot be formatted; the reason is stored alone
    return _encodable("".join(_shorten(lines)).rstrip())


_FRAMES = ("File ", "Traceback (", "Exception Group Traceback (", "The above exception", "During handling")


def _shorten(pieces: list[str]) -> Iterator[str]:
    """A printed traceback with long exception texts cut, so that its frames are kept."""
    left = MAX_TRACE_TEXT
    for piece in pieces:
        start = piece.lstrip(" |+-\n")
        if start.startswith(_FRAMES) or start.endswith("-----\n"):
            left = MAX_TRACE_TEXT
            yield piece
        elif left > 0:
            yield piece if len(piece) <= left else piece[:left].rstrip() + "...\n"
            left -= len(piece)


def failure_of(reason: str | BaseException | None) -> str | None:
    """The `reason` of `nack` and `reject` as one text: a text, or an exception with its traceback."""
    if isinstance(reason, BaseException):
        return failure_text(reason_of(reason), trace_of(reason))
    if reason is not None and not isinstance(reason, str):
        raise InvalidSetting(f"reason must be text or an exception, not {reason!r}")
    return checks.text_or_none(reason, "reason")


def was_interrupted(error: BaseException) -> bool:
    """Ctrl-C, a cancelled task, a closed generator: the work was not finished, but did not fail.

    SystemExit is not among them: a message that makes the program exit would otherwise return for ever.
    """
    return not isinstance(error, Exception | SystemExit)


def is_handler_failure(error: BaseException) -> bool:
    """Whether a consumer continues after its handler raised this.

    SystemExit would end a consumer's thread silently, or the program, for one message. A task cancelled
    within the handler is the handler's own.
    """
    # By name, so that asyncio is not imported.
    return isinstance(error, Exception | SystemExit) or type(error).__name__ == "CancelledError"


def retry_delay(error: BaseException) -> float | None:
    """After a failure the retry policy applies; a program that exits returns its message at once."""
    return None if isinstance(error, Exception) else 0


def describe_attempt(message: Any, queue: str) -> str:
    return f"message {message.id} of queue {queue!r}, attempt {message.receive_count}"


def _encodable(text: str) -> str:
    """Write lone surrogates, which exception texts may hold, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
