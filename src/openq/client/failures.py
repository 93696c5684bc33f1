"""Why a handler failed, as the queue keeps it: type and text of the exception, the end of its traceback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import InvalidSetting
from ..model import failure_text
from . import checks

MAX_REASON = 4096  # characters of an exception's text
MAX_TRACE_TEXT = 500  # of it where the traceback ends; the whole of it is in the reason
_CONSUMER_MODULES = ("openq.client.consumer", "openq.aio.consumer")


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
    while where is not None and where.tb_frame.f_globals.get("__name__") in _CONSUMER_MODULES:
        where = where.tb_next
    where = where or error.__traceback__
    if where is None:
        return None
    try:
        lines = traceback.format_exception(type(error), error, where)
    except Exception:
        return None  # of an exception that breaks even that, the reason must do
    return _encodable("".join(_shorten(lines)).rstrip())


_FRAMES = ("File ", "Traceback (", "Exception Group Traceback (", "The above exception", "During handling")


def _shorten(pieces: list[str]) -> Iterator[str]:
    """A printed traceback with the long texts of exceptions cut, so that they do not push out its frames."""
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
    """What `nack` and `reject` are given, as one text: a reason, or the exception itself."""
    if isinstance(reason, BaseException):
        return failure_text(reason_of(reason), trace_of(reason))
    if reason is not None and not isinstance(reason, str):
        raise InvalidSetting(f"reason must be text or an exception, not {reason!r}")
    return checks.text_or_none(reason, "reason")


def was_interrupted(error: BaseException) -> bool:
    """Ctrl-C, a cancelled task, a generator that was closed: the work did not fail, it was not finished.

    SystemExit is not among them: a message for which the program exits would otherwise come back for ever.
    """
    return not isinstance(error, Exception | SystemExit)


def is_handler_failure(error: BaseException) -> bool:
    """Whether a consumer goes on after its handler raised this.

    SystemExit would end a consumer's thread without a word, or the program, for one message. A task that was
    cancelled within the handler is the handler's own.
    """
    # By name: a program without asyncio does not import it for this.
    return isinstance(error, Exception | SystemExit) or type(error).__name__ == "CancelledError"


def retry_delay(error: BaseException) -> float | None:
    """A failure is tried again as the queue says; a program that exits gives its message back at once."""
    return None if isinstance(error, Exception) else 0


def describe_attempt(message: Any, queue: str) -> str:
    return f"message {message.id} of queue {queue!r}, attempt {message.receive_count}"


def _encodable(text: str) -> str:
    """Half a surrogate pair, which an exception may well hold, is written as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()
