"""Bodies around the frame limit through AMQPStorm, there and back. Prints the sizes that came back whole."""

from __future__ import annotations

import json
import os

import amqpstorm

FRAME_MAX = 131_072  # AMQPStorm fills a body frame with this many bytes of payload
AROUND = [limit + more for limit in (FRAME_MAX, 2 * FRAME_MAX) for more in (-9, -8, -7, -1, 0, 1, 8, 9)]


def main() -> None:
    returned = []
    port = int(os.environ["AMQP_PORT"])
    with amqpstorm.Connection("127.0.0.1", "guest", "guest", port=port) as connection:
        channel = connection.channel()
        channel.confirm_deliveries()
        channel.queue.declare("storm", durable=True)
        for size in AROUND:
            body = os.urandom(size // 2).hex().ljust(size, "x")
            assert channel.basic.publish(body, "storm")
            message = channel.basic.get("storm", no_ack=True)
            if message.body == body:
                returned.append(size)
        channel.close()
    print(json.dumps({"sent": AROUND, "returned": returned}))


if __name__ == "__main__":
    main()
