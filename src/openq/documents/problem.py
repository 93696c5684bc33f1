"""Errors of requests that are not exceptions of OpenQ, and the error of one item of a batch."""

from __future__ import annotations

import msgspec

from ..errors import OpenQError, public_text


class Problem(Exception):
    """Raised by a handler for an error that is not one of OpenQ's exceptions."""

    def __init__(self, code: str, detail: str = "", headers: bytes = b"", **facts: object) -> None:
        super().__init__(detail or code)
        self.code = code
        self.detail = detail
        self.headers = headers
        self.facts = facts


class Failure(msgspec.Struct, omit_defaults=True):
    """The error of one item of a batch."""

    code: str
    detail: str = ""


def failure(error: OpenQError) -> Failure:
    return Failure(error.code, public_text(error))
