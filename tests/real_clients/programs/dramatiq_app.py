"""A Dramatiq application over AMQP: `python -m dramatiq dramatiq_app` works, this file as a program sends."""

from __future__ import annotations

import os
import time
from pathlib import Path

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

PLACE = Path(os.environ["DRAMATIQ_PLACE"])
DELAY_MS = 1_500

broker = RabbitmqBroker(url=os.environ["DRAMATIQ_BROKER"], confirm_delivery=True, max_priority=10)
dramatiq.set_broker(broker)


def note(line: object) -> None:
    with (PLACE / "notes").open("a") as file:
        file.write(f"{line}\n")


@dramatiq.actor(queue_name="dramatiq-test")
def greet(name: str) -> None:
    note(f"hello {name}")


@dramatiq.actor(queue_name="dramatiq-test")
def arrive(asked: float) -> None:
    note("early" if time.time() - asked < DELAY_MS / 1000 else "on time")


@dramatiq.actor(queue_name="dramatiq-test", max_retries=2, min_backoff=100, max_backoff=200)
def fail() -> None:
    note("failed")
    raise ValueError("no")


if __name__ == "__main__":
    # As the worker names them, which imports this file as a module.
    import dramatiq_app

    for name in ("ä", "b", "c"):
        dramatiq_app.greet.send(name)
    dramatiq_app.arrive.send_with_options(args=(time.time(),), delay=DELAY_MS)
    dramatiq_app.fail.send()
