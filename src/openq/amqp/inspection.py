"""Connections, channels and consumers as RabbitMQ's management API shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..amqp_fields import decode_table
from ..server.connection_info import MAX_ERROR, ChannelInfo, ConnectionInfo, ConsumerInfo, IdOf
from .consumer import AmqpConsumer

if TYPE_CHECKING:
    from .channel import AmqpChannel
    from .connection import AmqpConnection

Json = dict[str, Any]


def connection_name(connection: AmqpConnection) -> str:
    return f"{_endpoint(connection.peer, connection.port)} -> {_endpoint(*connection.local)}"


def _endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def connection_info(connection: AmqpConnection) -> Json:
    name = connection.client_properties.get("connection_name")
    return {
        "name": connection_name(connection),
        **({"user_provided_name": name} if isinstance(name, str) else {}),
        "host": connection.local[0],
        "port": connection.local[1],
        "user": connection.user,
        "vhost": connection.vhost,
        "state": "blocked" if connection.is_blocked else "running",
        "protocol": "AMQP 0-9-1",
        "auth_mechanism": connection.mechanism,
        "ssl": connection.is_tls,
        "peer_host": connection.peer,
        "peer_port": connection.port,
        "channels": len(connection.channels),
        "channel_max": connection.max_channels,
        "frame_max": connection.max_frame,
        "timeout": connection.heartbeat_s,
        "connected_at": connection.opened_ms,
        "client_properties": connection.client_properties,
    }


def _channel_details(channel: AmqpChannel) -> Json:
    connection = channel.connection
    return {
        "name": f"{connection_name(connection)} ({channel.number})",
        "number": channel.number,
        "user": connection.user,
        "connection_name": connection_name(connection),
        "peer_host": connection.peer,
        "peer_port": connection.port,
    }


def channel_info(channel: AmqpChannel) -> Json:
    connection = channel.connection
    publisher, consumers = channel.publisher, channel.consumers
    return {
        **_channel_details(channel),
        "connection_details": {
            "name": connection_name(connection),
            "peer_host": connection.peer,
            "peer_port": connection.port,
        },
        "vhost": connection.vhost,
        "state": "running" if consumers.is_flowing else "flow",
        "confirm": publisher.is_confirming,
        "transactional": channel.transaction.is_selected,
        "consumer_count": len(consumers.by_tag),
        "messages_unacknowledged": len(channel.unacked),
        "messages_unconfirmed": publisher.published - publisher.confirmed,
        "prefetch_count": consumers.prefetch,
        "global_prefetch_count": consumers.shared_prefetch,
    }


def consumer_info(channel: AmqpChannel, consumer: AmqpConsumer) -> Json:
    dispatcher = consumer.dispatcher
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": dispatcher.queue, "vhost": channel.connection.vhost},
        "channel_details": _channel_details(channel),
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "active": dispatcher.is_active(consumer),
        "arguments": decode_table(consumer.arguments)[0] if consumer.arguments else {},
    }


# -- the same for all protocols -----------------------------------------------------------------


def describe_connection(connection: AmqpConnection, unsent_bytes: int, id_of: IdOf) -> ConnectionInfo:
    """In a thread: what the loop may change meanwhile is copied."""
    properties = connection.client_properties
    name = properties.get("connection_name")
    channels = list(connection.channels.values())
    return ConnectionInfo(
        id=id_of(connection),
        protocol="amqp",
        user=connection.user,
        account=connection.account,
        peer=connection.peer,
        port=connection.port,
        tls=connection.is_tls,
        since_ms=connection.opened_ms,
        state="blocked" if connection.is_blocked else "running",
        client=" ".join(str(properties[key]) for key in ("product", "version") if key in properties)[:200],
        name=name[:200] if isinstance(name, str) else "",
        in_flight=sum(len(each.unacked) for each in channels),
        unsent_bytes=unsent_bytes,
        published=connection.published,
        delivered=connection.delivered,
        received_bytes=connection.received_bytes,
        sent_bytes=connection.sent_bytes,
        last_error=connection.last_error[:MAX_ERROR],
        channels=[_describe_channel(each) for each in channels],
        consumers=[
            _describe_consumer(channel, consumer)
            for channel in channels
            for consumer in list(channel.consumers.by_tag.values())
        ],
    )


def _describe_channel(channel: AmqpChannel) -> ChannelInfo:
    publisher, consumers = channel.publisher, channel.consumers
    return ChannelInfo(
        number=channel.number,
        prefetch=consumers.prefetch,
        shared_prefetch=consumers.shared_prefetch,
        unacked=len(channel.unacked),
        unconfirmed=max(0, publisher.published - publisher.confirmed),
        consumers=len(consumers.by_tag),
        confirms=publisher.is_confirming,
        transactional=channel.transaction.is_selected,
    )


def _describe_consumer(channel: AmqpChannel, consumer: AmqpConsumer) -> ConsumerInfo:
    return ConsumerInfo(
        queue_key=consumer.dispatcher.queue_key,
        name=consumer.tag,
        since_ms=consumer.since_ms,
        in_flight=consumer.unacked,
        credit=consumer.prefetch or None,
        channel=channel.number,
        active=consumer.dispatcher.is_active(consumer),
    )
