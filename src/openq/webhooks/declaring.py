"""Declares webhooks: the same rules for REST, the command line and the configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from ..errors import InvalidSetting
from .model import JSON, RAW, EventSelection, Secret, Webhook, check, with_secret
from .service import WebhookService
from .signing import new_secret

MAX_WEBHOOKS = 1_000  # in one store


class Declared(NamedTuple):
    webhook: Webhook
    is_new: bool
    secret: str | None  # that was made for it


def declare_webhook(service: WebhookService, name: str, fields: Mapping[str, Any]) -> Declared:
    """Create or replace a webhook, in a thread. `fields` are those of `Webhook`, and `secret`.

    The secrets of an existing webhook stay, unless a secret is given; so does being disabled. A new webhook
    without a secret gets one. Raises InvalidSetting.
    """
    given = dict(fields)
    secret = given.pop("secret", None)
    if isinstance(given.get("events"), Mapping):
        given["events"] = EventSelection(**given["events"])
    given.setdefault("declared_by", "")
    given.setdefault("mode", JSON if given.get("events") is not None else RAW)
    wanted = check(Webhook(name=name, **given), service.rules)
    if wanted.queue is not None:
        service.context.broker.get_queue(wanted.queue)  # raises QueueNotFound
    if service.store.find(name) is None and len(service.store.list()) >= MAX_WEBHOOKS:
        raise InvalidSetting(f"there are {MAX_WEBHOOKS} webhooks: delete one first")
    now_ms = service.context.now_ms()
    made = new_secret() if secret is None else None
    is_new = False
    # A new webhook for events begins now.
    first = service.context.broker.events.end() if wanted.events is not None else None

    def change(known: Webhook | None) -> Webhook:
        nonlocal is_new
        is_new = known is None
        secrets: list[Secret] = []
        if secret is not None:
            is_known = known is not None and known.secrets and known.secrets[0].text == secret
            secrets = known.secrets if known is not None and is_known else with_secret([], secret, now_ms, 0)
        elif known is not None:
            secrets = known.secrets
        else:
            assert made is not None
            secrets = with_secret([], made, now_ms, 0)
        return msgspec.structs.replace(
            wanted,
            secrets=secrets,
            enabled=known is None or known.enabled,
            reason=None if known is None else known.reason,
            is_gone=known is not None and known.is_gone,
            created_ms=now_ms if known is None else known.created_ms,
            position=first if known is None or known.events is None else known.position,
        )

    stored = service.store.change(name, change)
    service.changed()
    return Declared(stored, is_new, made if is_new else None)


def rotate_secret(service: WebhookService, name: str, secret: str | None, keep_ms: int) -> Declared:
    """Add a secret; older ones stay valid for `keep_ms`. In a thread."""
    text = new_secret() if secret is None else secret
    now_ms = service.context.now_ms()

    def change(known: Webhook | None) -> Webhook:
        if known is None:
            known = service.store.get(name)  # raises WebhookNotFound
        return msgspec.structs.replace(known, secrets=with_secret(known.secrets, text, now_ms, keep_ms))

    stored = service.store.change(name, change)
    service.changed()
    return Declared(stored, False, text if secret is None else None)
