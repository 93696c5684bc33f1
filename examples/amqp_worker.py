"""A worker on RabbitMQ's own client, pika: retries after a pause, by way of dead letters.

With an address it uses the broker there, OpenQ or RabbitMQ alike: python amqp_worker.py amqp://127.0.0.1:5672
"""

import re
import subprocess
import sys

import pika


def start_server() -> tuple[subprocess.Popen[str], str]:
    """A server of our own, in memory, on free ports; and its AMQP address."""
    command = [sys.executable, "-m", "openq", "serve", "--memory", "--port", "0", "--amqp-port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"amqp://\S+", line):
            return server, found[0]
    raise SystemExit("the server did not start")


def work(url: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()  # a publish returns when the message is on disk
        again = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "resize", "x-message-ttl": 50}
        failed = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "resize.retry"}
        channel.queue_declare("resize.retry", durable=True, arguments=again)
        channel.queue_declare("resize", durable=True, arguments=failed)
        for picture in ("cat.png", "dog.png", "broken.png"):
            channel.basic_publish("", "resize", picture, pika.BasicProperties(type="picture"))

        channel.basic_qos(prefetch_count=10)
        left = 3
        for method, properties, body in channel.consume("resize"):
            tries = 1 + sum(death["count"] for death in (properties.headers or {}).get("x-death", [])) // 2
            if body == b"broken.png" and tries < 3:
                print(f"{body.decode()}: try {tries} failed")
                channel.basic_reject(method.delivery_tag, requeue=False)  # by way of resize.retry
                continue
            print(f"{body.decode()}: " + ("given up" if tries == 3 else "done"))
            channel.basic_ack(method.delivery_tag)
            left -= 1
            if not left:
                break
        channel.cancel()


if len(sys.argv) > 1:
    work(sys.argv[1])
else:
    server, url = start_server()
    try:
        work(url)
    finally:
        server.terminate()
        server.communicate()
