"""The keys of a `[webhooks.NAME]` table in `openq.toml`: the field of the webhook, and its reader.

A webhook is declared over REST or on the command line too; `openq.webhooks.model` has the rules that it must
keep. Secrets are never shown: `shown_webhook` is what `openq config show` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .model import MessageFilter, check_name
from .parsing import one_of, read_flag, read_int, read_ms, read_text, within, without_password

_HIDDEN = "..."


def _read_url(value: object) -> str:
    text = read_text(value)
    if not text.startswith(("http://", "https://")):
        raise ValueError("a URL such as https://example.com/hook")
    return text


def _read_queue(value: object) -> str:
    return check_name(read_text(value))


def _read_texts(value: object) -> list[str]:
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list) and all(isinstance(each, str) and each for each in value):
        return value
    raise ValueError("a list of texts")


def _read_headers(value: object) -> dict[str, str]:
    if isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values()):
        return dict(value)
    raise ValueError('a table of texts, such as { "X-Team" = "orders" }')


def _read_attributes(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError('a table of values, or of lists of values, such as { region = ["eu", "us"] }')
    MessageFilter.of(attributes=value)  # raises InvalidSetting
    return dict(value)


_EVENT_KEYS: dict[str, Callable[[object], Any]] = {
    "queues": _read_texts,
    "events": _read_texts,
    "types": _read_texts,
    "attributes": _read_attributes,
    "bodies": read_flag,
}


def _read_events(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value.keys() <= _EVENT_KEYS.keys():
        raise ValueError('a table with queues, events, types and bodies, such as { queues = ["orders*"] }')
    return {key: _EVENT_KEYS[key](each) for key, each in value.items()}


def _read_secret(value: object) -> str:
    if isinstance(value, str) and value.startswith("whsec_"):
        return value
    raise ValueError("whsec_ and the base64 of 24 to 64 random bytes")


def _read_secret_file(value: object) -> str:
    try:
        with open(read_text(value), encoding="utf-8") as source:
            return _read_secret(source.read().strip())
    except (OSError, UnicodeDecodeError):
        raise ValueError("a file that can be read, with a secret: whsec_...") from None


WEBHOOK_KEYS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "url": ("url", _read_url),
    "queue": ("queue", _read_queue),
    "types": ("types", _read_texts),
    "attributes": ("attributes", _read_attributes),
    "events": ("events", _read_events),
    "mode": ("mode", one_of("raw", "json", "cloudevents-binary", "cloudevents-structured")),
    "batch": ("batch", within(read_int, 1, 1000, "a number of messages, 1 to 1000")),
    "headers": ("headers", _read_headers),
    "secret": ("secret", _read_secret),
    "secret_file": ("secret", _read_secret_file),
    "concurrency": ("concurrency", within(read_int, 1, 256, "a number of requests, 1 to 256")),
    "rate": ("rate", read_text),
    "timeout": ("timeout_ms", read_ms),
    "failures": ("failures", within(read_int, 1, 1_000_000, "a number of failures, 1 to 1000000")),
    "max_attempts": ("max_attempts", within(read_int, 1, 1_000_000, "a number of attempts, 1 to 1000000")),
}


def shown_webhook(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a webhook that may be shown: without secrets, passwords and values of headers."""
    shown = dict(fields)
    if "secret" in shown:
        shown["secret"] = _HIDDEN
    if "headers" in shown:
        shown["headers"] = dict.fromkeys(shown["headers"], _HIDDEN)
    if "url" in shown:
        shown["url"] = without_password(shown["url"])
    return shown
