"""Receipts as texts, and the errors of those that cannot be settled."""

from __future__ import annotations

from ..broker.interface import Receipt
from ..errors import MessageNotFoundError, OpenQError, VisibilityTimeoutExpired
from .messages import ReceiptFailure
from .problem import failure

_MAX_NUMBER = 16  # hexadecimal digits


def read_receipt(text: str, prefix: str, queue: str) -> Receipt:
    """Parse a receipt as `receive` wrote it: the id of the sequence, a slash, the number of the delivery."""
    at = len(prefix) + 12
    known = text.startswith(prefix) and text[at : at + 1] == "/" and len(text) <= at + 1 + _MAX_NUMBER
    if known and text.isascii() and text[at + 1 :].isalnum():
        try:
            return int(text[at - 12 : at], 16), int(text[at + 1 :], 16)
        except ValueError:
            pass
    raise MessageNotFoundError(text[:100], queue)


def with_receipt(text: str, queue: str, error: OpenQError) -> OpenQError:
    """The error with the text of the receipt instead of the engine's numbers."""
    if isinstance(error, MessageNotFoundError):
        return MessageNotFoundError(text, queue)
    return VisibilityTimeoutExpired(text, queue) if isinstance(error, VisibilityTimeoutExpired) else error


def receipt_failure(text: str, error: OpenQError) -> ReceiptFailure:
    shown = failure(error)
    return ReceiptFailure(receipt_id=text, code=shown.code, detail=shown.detail)
