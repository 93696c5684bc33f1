"""Direct reply-to: replies to `amq.rabbitmq.reply-to` go straight to the channel that asked."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .channel_consumers import ChannelConsumers

DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"
DIRECT_REPLY_PREFIX = f"{DIRECT_REPLY_TO}."


class DirectReplies:
    """Reply addresses of all connections, and the channels behind them."""

    def __init__(self) -> None:
        self._consumers: dict[str, ChannelConsumers] = {}

    def __len__(self) -> int:
        return len(self._consumers)

    def new_address(self) -> str:
        return DIRECT_REPLY_PREFIX + secrets.token_urlsafe(18)

    def add(self, address: str, consumers: ChannelConsumers) -> None:
        self._consumers[address] = consumers

    def remove(self, address: str) -> None:
        self._consumers.pop(address, None)

    def find(self, address: str) -> ChannelConsumers | None:
        return self._consumers.get(address)


def is_reply_address(name: str) -> bool:
    return name.startswith(DIRECT_REPLY_PREFIX)
