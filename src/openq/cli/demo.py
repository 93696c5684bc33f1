"""`openq demo`: example queues, a producer of orders, and a consumer that sometimes fails."""

from __future__ import annotations

import random
import time
from argparse import Namespace
from random import Random
from typing import Any

from ..client.http import Refused
from .api import ApiClient, connect, path_part
from .output import NOT_CONFIRMED, confirm, count_text, print_json, print_result
from .progress import ProgressBar
from .terminal import OK, say, styled

ORDERS, DEAD, MAILS, PAYMENTS = "demo-orders", "demo-orders-dead", "demo-mails", "demo-payments.fifo"
TICK_S = 0.1

QUEUES: dict[str, dict[str, Any]] = {
    DEAD: {"retention": 14 * 86400},
    ORDERS: {"dlq": DEAD, "max_receives": 3, "visibility_timeout": 20},
    MAILS: {"retention": 86400},
    PAYMENTS: {"fifo": True, "dedup_by_content": True},
}
PRODUCTS = ("tea", "bread", "cheese", "lamp", "boots", "kite")
NAMES = ("Ada", "Ben", "Chi", "Dora", "Emil", "Fatma")
FAILURES = (
    "timeout after {} ms while asking the stock",
    "no such product: {}",
    "connection to 10.0.0.{} refused",
)


def demo(options: Namespace) -> int:
    server = connect(options)
    if options.remove:
        return _remove(server, options)
    if options.dry_run:
        print(f"dry run: this would create {', '.join(QUEUES)} and run for {options.seconds:g} s")
        return OK
    for name, settings in QUEUES.items():
        server.put(_path(name), settings)
    how_long = f"for {options.seconds:g} s" if options.seconds else "for one round"
    say(f"{len(QUEUES)} queues created; running {how_long}")
    counts = _work(server, options.seconds)
    _leave_examples(server)
    counts["dead"] = server.get(f"{_path(DEAD)}/stats")["ready"]
    return _print_summary(options, counts)


def _path(queue: str) -> str:
    return f"/queues/{path_part(queue)}"


def _work(server: ApiClient, seconds: float) -> dict[str, int]:
    rng = random.Random()
    counts = {"published": 0, "done": 0, "failed": 0}
    start = time.monotonic()
    shown = ProgressBar("demo", None)
    try:
        while True:
            counts["published"] += _publish_orders(server, rng)
            _consume_orders(server, rng, counts)
            shown.update(counts["published"])
            if time.monotonic() - start >= seconds:
                break
            time.sleep(TICK_S)
        # Messages that failed once or twice get their last deliveries, and are dead-lettered.
        for _ in range(3):
            _consume_orders(server, rng, counts)
    except KeyboardInterrupt:
        say("stopped early")
    finally:
        shown.end()
    return counts


def _publish_orders(server: ApiClient, rng: Random) -> int:
    orders = []
    for _ in range(rng.randint(1, 5)):
        product = rng.choice(PRODUCTS)
        order = {"customer": rng.choice(NAMES), "product": product, "total": rng.randint(1, 200)}
        urgent = rng.random() < 0.1
        orders.append(
            {
                "payload": order,
                "message_type": "order",
                "priority": 9 if urgent else 0,
                "attributes": {"shop": rng.choice(("eu", "us"))},
            }
        )
    server.post(f"{_path(ORDERS)}/messages/batch", {"messages": orders})
    name = rng.choice(NAMES)
    payment = {"payload": {"payer": name, "cents": rng.randint(100, 99999)}, "group": name}
    server.post(f"{_path(PAYMENTS)}/messages", payment)
    return len(orders) + 1


def _consume_orders(server: ApiClient, rng: Random, counts: dict[str, int]) -> None:
    """A consumer with failures: some orders always fail, others sometimes."""
    messages = server.post(f"{_path(ORDERS)}/receive", {"max": 10, "consumer": "demo worker"})["messages"]
    done = []
    for message in messages:
        always_fails = message["payload"]["product"] == "kite"
        if not always_fails and rng.random() > 0.1:
            done.append(message["receipt_id"])
            continue
        reason = rng.choice(FAILURES).format(rng.randint(1, 250))
        server.post(
            f"{_path(ORDERS)}/nack", {"receipt_id": message["receipt_id"], "delay": 0, "reason": reason}
        )
        counts["failed"] += 1
    if done:
        server.post(f"{_path(ORDERS)}/ack", {"receipts": done})
        counts["done"] += len(done)


def _leave_examples(server: ApiClient) -> None:
    """Leave messages in every state."""
    later = [{"payload": f"dear {name}, your order is on its way", "delay": 3600} for name in NAMES]
    now = [{"payload": f"dear {name}, thank you"} for name in NAMES]
    server.post(f"{_path(MAILS)}/messages/batch", {"messages": later + now})
    held = {"max": 2, "visibility_timeout": 3600, "consumer": "demo reader"}
    server.post(f"{_path(MAILS)}/receive", held)


def _print_summary(options: Namespace, counts: dict[str, int]) -> int:
    if options.json:
        print_json({**counts, "queues": list(QUEUES)})
        return OK
    print(
        f"{counts['published']} published, {counts['done']} done, {counts['failed']} failed deliveries, "
        f"{counts['dead']} dead letters. Look around:"
    )
    for command, why in (
        ("openq queue ls demo-", "the queues of the demo"),
        (f"openq dlq groups {DEAD}", "the reasons"),
        (f"openq dlq redrive {DEAD} --dry-run", "send them back"),
        (f"openq search {ORDERS} --where product=tea", "find messages"),
        (f"openq peek {MAILS} --state delayed", "delayed messages"),
        ("openq demo --remove", "delete the queues"),
    ):
        print(f"  {command:<48}{styled('# ' + why, 'dim')}")
    return OK


def _remove(server: ApiClient, options: Namespace) -> int:
    found: dict[str, int] = {}
    for name in QUEUES:
        try:
            found[name] = server.delete(_path(name), dry_run=True)["messages"]
        except Refused as error:
            if error.status != 404:
                raise
    if not found:
        say("no queues of the demo exist")
        return OK
    total = sum(found.values())
    plan = f"delete {count_text(len(found), 'queue')} of the demo with {count_text(total, 'message')}"
    if options.dry_run:
        print(f"dry run: this would {plan}")
        return OK
    if not confirm(options, plan):
        return NOT_CONFIRMED
    for name in (ORDERS, MAILS, PAYMENTS, DEAD):
        if name in found:
            server.delete(_path(name))
    print_result(
        options, {"queues": list(found), "messages": total}, f"{count_text(len(found), 'queue')} deleted"
    )
    return OK
