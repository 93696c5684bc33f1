"""`openq demo`: something to look at. Queues, a shop that sells, and a worker that fails now and then."""

from __future__ import annotations

from .parser import CommandGroup, add_confirmation, add_json, add_server, seconds
from .terminal import OK, say, styled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from random import Random
    from typing import Any

    from .api import ApiClient

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


def add(name: str, verbs: CommandGroup, help: str) -> None:
    demo = verbs.add(
        name,
        _demo,
        help,
        [
            ("openq demo", "about ten seconds; then look around"),
            ("openq demo --seconds 2m", "longer, to watch it at work"),
            ("openq demo --remove", "the queues of the demo go again"),
        ],
        "Needs a server: `openq serve --memory` in another terminal. It makes queues whose names begin with\n"
        "demo-, publishes, works, fails now and then, and leaves dead letters, delayed and waiting messages.",
    )
    demo.add_argument("--seconds", metavar="TIME", type=seconds, default=10.0, help="how long (default 10)")
    demo.add_argument("--remove", action="store_true", help="remove the queues of the demo instead")
    add_confirmation(demo)
    add_json(demo)
    add_server(demo)


def _demo(options: Namespace) -> int:
    from .api import connect

    server = connect(options)
    if options.remove:
        return _remove(server, options)
    if options.dry_run:
        print(f"dry run: this would make {', '.join(QUEUES)} and work for {options.seconds:g} s")
        return OK
    for name, settings in QUEUES.items():
        server.put(_path(name), settings)
    how_long = f"for {options.seconds:g} s" if options.seconds else "for one round"
    say(f"{len(QUEUES)} queues are there; working {how_long}")
    counts = _work(server, options.seconds)
    _leave_examples(server)
    counts["dead"] = server.get(f"{_path(DEAD)}/stats")["ready"]
    return _print_summary(options, counts)


def _path(queue: str) -> str:
    from .api import path_part

    return f"/queues/{path_part(queue)}"


def _work(server: ApiClient, seconds: float) -> dict[str, int]:
    import random
    import time

    from .progress import ProgressBar

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
        # Nobody comes back for those that failed once or twice: a last round buries the hopeless ones.
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
    """The flaky worker: some orders fail whatever one does, others only now and then."""
    messages = server.post(f"{_path(ORDERS)}/receive", {"max": 10, "consumer": "demo worker"})["messages"]
    done = []
    for message in messages:
        hopeless = message["payload"]["product"] == "kite"
        if not hopeless and rng.random() > 0.1:
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
    """Something in every state that a message can be in."""
    later = [{"payload": f"dear {name}, your order is on its way", "delay": 3600} for name in NAMES]
    now = [{"payload": f"dear {name}, thank you"} for name in NAMES]
    server.post(f"{_path(MAILS)}/messages/batch", {"messages": later + now})
    held = {"max": 2, "visibility_timeout": 3600, "consumer": "demo reader"}
    server.post(f"{_path(MAILS)}/receive", held)


def _print_summary(options: Namespace, counts: dict[str, int]) -> int:
    from .output import print_json

    if options.json:
        print_json({**counts, "queues": list(QUEUES)})
        return OK
    print(
        f"{counts['published']} published, {counts['done']} done, {counts['failed']} failed tries, "
        f"{counts['dead']} dead letters. Look around:"
    )
    for command, why in (
        ("openq queue ls demo-", "what is where"),
        (f"openq dlq groups {DEAD}", "what went wrong"),
        (f"openq dlq redrive {DEAD} --dry-run", "another try for them"),
        (f"openq search {ORDERS} --where product=tea", "find messages"),
        (f"openq peek {MAILS} --state delayed", "those that wait for their time"),
        ("openq demo --remove", "clean up"),
    ):
        print(f"  {command:<48}{styled('# ' + why, 'dim')}")
    return OK


def _remove(server: ApiClient, options: Namespace) -> int:
    from ..client.http import Refused
    from .output import NOT_CONFIRMED, confirm, count_text, print_json

    found: dict[str, int] = {}
    for name in QUEUES:
        try:
            found[name] = server.delete(_path(name), dry_run=True)["messages"]
        except Refused as error:
            if error.status != 404:
                raise
    if not found:
        say("there is nothing of the demo here")
        return OK
    total = sum(found.values())
    plan = f"remove {count_text(len(found), 'queue')} of the demo with {count_text(total, 'message')}"
    if options.dry_run:
        print(f"dry run: this would {plan}")
        return OK
    if not confirm(options, plan):
        return NOT_CONFIRMED
    for name in (ORDERS, MAILS, PAYMENTS, DEAD):
        if name in found:
            server.delete(_path(name))
    if options.json:
        print_json({"queues": list(found), "messages": total})
    else:
        print(f"{count_text(len(found), 'queue')} removed")
    return OK
