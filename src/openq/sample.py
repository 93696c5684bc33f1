"""The sample: ten messages, a consumer that sometimes fails, and what happens to each message.

    python -m openq.sample

It ends by itself after a few seconds. Nothing is written to disk.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter

from openq import Consumer, Message, OpenQ, Producer

log = logging.getLogger("openq.sample")

_FAILS_ONCE = "Message 3"  # fails once, works the second time
_RETRY = {"kind": "exponential", "base": 0.1, "on_expiry": False}
_ALWAYS_FAILS = "Message 7"  # fails at every delivery


class FlakyHandler:
    """Work that fails for some messages."""

    def __init__(self) -> None:
        self.tries: Counter[str] = Counter()

    def __call__(self, message: Message) -> None:
        self.tries[message.body] += 1
        if message.body == _ALWAYS_FAILS or (message.body == _FAILS_ONCE and self.tries[message.body] == 1):
            log.info("  failed   %s (delivery %d)", message.body, message.receive_count)
            raise RuntimeError(f"{message.body} does not work")
        log.info("  done     %s (delivery %d)", message.body, message.receive_count)


def main() -> int:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    # The consumer logs each failure; the sample prints them itself.
    logging.getLogger("openq").setLevel(logging.CRITICAL)
    try:
        return _run()
    finally:
        log.removeHandler(handler)


def _run() -> int:
    with (
        # In memory; both queues share a broker. Retries come sooner than by default.
        OpenQ(name="dead-letter-queue", visibility_timeout=30, storage="memory") as dlq,
        OpenQ(name="main-queue", visibility_timeout=1, dlq=dlq, max_receives=3, retry=_RETRY) as queue,
    ):
        log.info("1. A producer publishes ten messages.")
        producer = Producer(queue, num_tasks=10)
        producer.start()
        producer.join()
        log.info("  ready: %d", len(queue))

        log.info("2. A message is received and never acked.")
        forgotten = queue.receive()
        assert forgotten is not None
        log.info("  received %s", forgotten.body)
        log.info("  in flight: %d, ready: %d", len(queue.in_flight), len(queue))

        log.info("3. A consumer processes the queue.")
        back = threading.Event()
        stop_listening = queue.subscribe(lambda event: back.set() if event["event"] == "expired" else None)
        consumer = Consumer(queue, FlakyHandler(), idle_timeout=2.0)
        consumer.start()
        if back.wait(5.0):
            log.info("  returned %s: its visibility timeout of 1 s was over", forgotten.body)
        consumer.join()
        stop_listening()

        log.info("4. The message that failed three times is in the dead-letter queue.")
        for message in dlq.queue:
            log.info("  %s: %s", message.body, message.deaths[0]["reason"])
            log.info("  its timeline:")
            for step in dlq.timeline(message.id):
                log.info("    %-13s %-17s %s", step.what, step.queue, step.detail)

        log.info("5. The cause is fixed; the dead letter is redriven and succeeds.")
        log.info("  redriven: %d", dlq.redrive())
        with queue.processing(timeout=1.0) as again:
            log.info("  done     %s", again.body if again is not None else None)

        counters = queue.stats().counters
        log.info(
            "Published %d, acked %d, failed deliveries %d, ready %d, dead letters %d.",
            counters["published"],
            counters["acked"],
            # The failure that dead-letters a message counts too.
            counters["nacked"] + counters["lease_expired"],
            len(queue),
            len(dlq),
        )
        return 0 if len(queue) == len(dlq) == 0 and not queue.in_flight else 1


if __name__ == "__main__":
    sys.exit(main())
