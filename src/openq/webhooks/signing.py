"""Signatures of Standard Webhooks (standardwebhooks.com), version 1: HMAC-SHA256 over id, time and body."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Iterable

from ..errors import InvalidSetting

PREFIX = "whsec_"
_MIN_BYTES, _MAX_BYTES, _NEW_BYTES = 24, 64, 32


def new_secret() -> str:
    return PREFIX + base64.b64encode(os.urandom(_NEW_BYTES)).decode()


def key_of(secret: str) -> bytes:
    """The key in a secret such as `whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw`. Raises InvalidSetting."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not _MIN_BYTES <= len(key) <= _MAX_BYTES:
        # The text is not repeated: it may be most of a secret.
        raise InvalidSetting(
            f"a secret is {PREFIX} and the base64 of {_MIN_BYTES} to {_MAX_BYTES} random bytes; "
            "leave it out and the server makes one"
        )
    return key


def sign(keys: Iterable[bytes], message_id: bytes, timestamp: bytes, body: bytes) -> bytes:
    """The value of the header webhook-signature: one signature for each key."""
    signed = b"%b.%b.%b" % (message_id, timestamp, body)
    return b" ".join(
        [b"v1," + base64.b64encode(hmac.digest(key, signed, "sha256")) for key in keys],
    )
