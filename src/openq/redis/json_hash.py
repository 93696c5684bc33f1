"""A hash that all clients of a store share: JSON under each name, changed by compare-and-set.

Unlike the documents of the registry it is not cached, and changes are not announced: it serves values that
change often and are read rarely.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import StoreError
from .functions import call_function

if TYPE_CHECKING:
    from .store import RedisStore

_TRIES = 100


class JsonHash:
    def __init__(self, store: RedisStore, name: str) -> None:
        self._calls = store.calls
        self._name = name
        self._key = f"{store.address.prefix}:{{meta}}:{name}".encode()

    def get(self, name: str) -> Any:
        """The value; None if it does not exist."""
        text = self._text(name)
        return json.loads(text) if text else None

    def all(self) -> dict[str, Any]:
        pairs = self._calls.call(self._key, "HGETALL", self._key, idempotent=True)
        texts = zip(pairs[::2], pairs[1::2], strict=True)
        return {name.decode(): json.loads(text) for name, text in texts}

    def count(self) -> int:
        return int(self._calls.call(self._key, "HLEN", self._key, idempotent=True))

    def update(self, name: str, change: Callable[[Any], Any]) -> Any:
        """Store the result of `change` on the value (None: absent), and return it. Repeated with the newer
        value if another client changed it meanwhile."""
        for _ in range(_TRIES):
            before = self._text(name)
            value = change(json.loads(before) if before else None)
            after = b"" if value is None else json.dumps(value, separators=(",", ":")).encode()
            if after == before or call_function(
                self._calls, self._key, "put_field", 0, name, before, after, idempotent=True
            ):
                return value
        raise StoreError(f"{self._name} {name!r} is changed by others all the time; try again")

    def _text(self, name: str) -> bytes:
        return self._calls.call(self._key, "HGET", self._key, name, idempotent=True) or b""
