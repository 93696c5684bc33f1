"""AMQP's errors: a reply code, a text, and whether the channel or the connection ends."""

from __future__ import annotations

from ..errors import (
    Closed,
    ExchangeInUse,
    ExchangeNotFound,
    InvalidSetting,
    JournalFailed,
    OpenQError,
    OutOfRoom,
    QueueExists,
    QueueFull,
    QueueInUse,
    QueueNotFound,
    StoreError,
    public_text,
)

CONTENT_TOO_LARGE = 311
NO_ROUTE = 312
NO_CONSUMERS = 313
CONNECTION_FORCED = 320
INVALID_PATH = 402
ACCESS_REFUSED = 403
NOT_FOUND = 404
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
FRAME_ERROR = 501
SYNTAX_ERROR = 502
COMMAND_INVALID = 503
CHANNEL_ERROR = 504
UNEXPECTED_FRAME = 505
RESOURCE_ERROR = 506
NOT_ALLOWED = 530
NOT_IMPLEMENTED = 540
INTERNAL_ERROR = 541

NAMES = {
    CONTENT_TOO_LARGE: "CONTENT_TOO_LARGE",
    NO_ROUTE: "NO_ROUTE",
    NO_CONSUMERS: "NO_CONSUMERS",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    INVALID_PATH: "INVALID_PATH",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}
# Soft errors end the channel; every other code ends the connection.
_SOFT = frozenset(
    (
        CONTENT_TOO_LARGE,
        NO_ROUTE,
        NO_CONSUMERS,
        ACCESS_REFUSED,
        NOT_FOUND,
        RESOURCE_LOCKED,
        PRECONDITION_FAILED,
    )
)
_MAX_TEXT = 255  # bytes of a short string


class AmqpError(Exception):
    """Ends a channel or a connection. `text` does not include the name of the code."""

    def __init__(
        self, code: int, text: str, *, ends_connection: bool | None = None, payload: bytes = b""
    ) -> None:
        """`payload`: the method that failed, where the caller does not know it."""
        super().__init__(text)
        self.payload = payload
        self.code = code
        self.text = text
        self.ends_connection = code not in _SOFT if ends_connection is None else ends_connection

    @property
    def reply_text(self) -> str:
        text = f"{NAMES[self.code]} - {self.text}"
        while len(text.encode("utf-8", "replace")) > _MAX_TEXT:
            text = text[:-1]
        return text


def from_openq(error: OpenQError) -> AmqpError:
    """The AMQP error for an error of the broker. Most errors are found earlier, with RabbitMQ's texts."""
    if isinstance(error, QueueNotFound | ExchangeNotFound):
        return AmqpError(NOT_FOUND, public_text(error))
    if isinstance(error, QueueExists | QueueInUse | ExchangeInUse | InvalidSetting | QueueFull):
        return AmqpError(PRECONDITION_FAILED, public_text(error))
    if isinstance(error, OutOfRoom):
        return AmqpError(RESOURCE_ERROR, public_text(error), ends_connection=False)
    if isinstance(error, Closed):
        return AmqpError(CONNECTION_FORCED, "the server is stopping")
    if isinstance(error, JournalFailed | StoreError):
        return AmqpError(INTERNAL_ERROR, public_text(error))
    return AmqpError(PRECONDITION_FAILED, public_text(error))
