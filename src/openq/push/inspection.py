"""Describes a stream and its subscriptions, for lists of connections."""

from __future__ import annotations

from collections import Counter

from ..server.connection_info import MAX_ERROR, ConnectionInfo, ConsumerInfo, IdOf, SubscriptionInfo
from .connection import StreamConnection
from .subscription import QueueConsumer, Subscription


def describe_stream(connection: StreamConnection, unsent_bytes: int, id_of: IdOf) -> ConnectionInfo:
    """In a thread: what the loop may change meanwhile is copied."""
    access = connection.access
    unsettled = list(connection.unsettled.values())
    in_flight = Counter(consumer for consumer, _, _ in unsettled)
    subscriptions = list(connection.subscriptions.values())
    return ConnectionInfo(
        id=id_of(connection),
        protocol="ws",
        user=access.principal.user,
        account=access.account,
        peer=connection.peer,
        port=connection.port,
        tls=access.is_tls,
        since_ms=connection.opened_ms,
        state="running" if connection.can_write else "blocked",
        client=connection.client,
        name=connection.session,
        in_flight=len(unsettled),
        unsent_bytes=unsent_bytes,
        published=connection.published,
        delivered=connection.delivered,
        received_bytes=connection.received_bytes,
        sent_bytes=connection.sent_bytes,
        last_error=connection.last_error[:MAX_ERROR],
        subscriptions=[_describe_subscription(each) for each in subscriptions],
        consumers=[
            _describe_consumer(subscription, consumer, in_flight[consumer])
            for subscription in subscriptions
            for consumer in list(subscription.consumers.values())
        ],
    )


def _describe_subscription(subscription: Subscription) -> SubscriptionInfo:
    queues = [each.dispatcher.queue for each in list(subscription.consumers.values())]
    is_pattern = subscription.pattern is not None
    return SubscriptionInfo(
        id=str(subscription.id),
        queue=queues[0] if queues and not is_pattern else None,
        pattern=subscription.pattern,
        queues=len(queues),
        credit=subscription.credit.messages,
        credit_bytes=subscription.credit.bytes,
        in_flight=subscription.in_flight,
    )


def _describe_consumer(subscription: Subscription, consumer: QueueConsumer, in_flight: int) -> ConsumerInfo:
    return ConsumerInfo(
        queue_key=consumer.dispatcher.queue_key,
        name=consumer.label,
        since_ms=consumer.since_ms,
        in_flight=in_flight,
        credit=subscription.credit.messages,
    )
