"""Workers that fail: retries with growing pauses, then the dead-letter queue, then a second chance."""

import logging

from openq import Consumer, Message, OpenQ

logging.getLogger("openq").setLevel(logging.CRITICAL)  # failures are expected here

dead = OpenQ("emails.dead")
emails = OpenQ(
    "emails",
    dlq=dead,
    max_receives=3,
    retry={"kind": "exponential", "base": 0.05, "factor": 2},
)
addresses = {"ann": "ann@example.com", "bob": None, "cy": "cy@example.com"}


def send(message: Message) -> None:
    name = message.body["to"]
    if addresses[name] is None:
        print(f"  {name}: no address (try {message.receive_count})")
        raise LookupError(f"no address for {name}")
    print(f"  {name}: sent")


for name in addresses:
    emails.publish({"to": name})

workers = [Consumer(emails, send, idle_timeout=0.5) for _ in range(2)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()

for message in dead.queue:
    print("dead letter:", message.body, "because of", message.deaths[0]["reason"])
    for step in dead.timeline(message.id):
        print("   ", step.what, step.detail)

addresses["bob"] = "bob@example.com"
print("back to work:", dead.redrive())
worker = Consumer(emails, send, idle_timeout=0.1)
worker.start()
worker.join()
print("left:", len(emails), "dead:", len(dead))
