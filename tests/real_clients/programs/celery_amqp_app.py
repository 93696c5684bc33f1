"""A Celery application whose broker is AMQP, and the ways in which tests use it.

The worker is started with `celery -A celery_amqp_app worker`; `python celery_amqp_app.py SCENARIO` plays a
caller of tasks and prints what came back as JSON. Where things are is said by environment variables, and
`CELERY_KIND` says how the queue is declared: plain, quorum (Celery then delays tasks in the broker) or
priority.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task, chain, chord, group
from celery.exceptions import TaskRevokedError
from kombu import Exchange, Queue
from kombu.common import Broadcast

PLACE = Path(os.environ["CELERY_PLACE"])
QUEUE = os.environ["CELERY_QUEUE"]
KIND = os.environ.get("CELERY_KIND", "plain")
RESULT_S = 60
HOURS_S = 3 * 3600
# Who sends a task waits for a broker that is away.
PATIENCE = {"max_retries": 200, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.5}

app = Celery("openq", broker=os.environ["CELERY_BROKER"], backend=os.environ["CELERY_BACKEND"])
arguments: dict[str, dict[str, Any]] = {
    "plain": {},
    "quorum": {"x-queue-type": "quorum"},
    "priority": {"x-max-priority": 10},
}
app.conf.update(
    task_default_queue=QUEUE,
    task_queues=[
        Queue(QUEUE, Exchange(QUEUE, type="topic"), routing_key=QUEUE, queue_arguments=arguments[KIND]),
        Broadcast(f"{QUEUE}.everyone"),
    ],
    task_default_exchange=QUEUE,
    task_default_exchange_type="topic",
    task_default_routing_key=QUEUE,
    task_routes={"celery_amqp_app.everywhere": {"queue": f"{QUEUE}.everyone"}},
    broker_transport_options={
        # An accepted task is one that the broker confirmed.
        "confirm_publish": True,
        **PATIENCE,
        "connect_retries_timeout": RESULT_S,
    },
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    # A lost connection is normal here; a task is never given up because of it.
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_connection_max_retries=None,
    task_publish_retry_policy=PATIENCE,
)


def note(name: str, line: object = None) -> None:
    """One line per run of a task, so that runs can be counted from outside."""
    with (PLACE / name).open("a") as file:
        file.write(f"{os.getpid() if line is None else line}\n")


def lines(name: str) -> list[str]:
    path = PLACE / name
    return path.read_text().splitlines() if path.exists() else []


def wait_for(condition: Any) -> None:
    end = time.monotonic() + RESULT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not come true")
        time.sleep(0.02)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def echo(value: Any) -> Any:
    return value


@app.task(bind=True)
def arrival(self: Task) -> dict[str, Any]:
    return {"at": time.time(), "key": self.request.delivery_info["routing_key"]}


@app.task(bind=True, max_retries=3)
def flaky(self: Task, name: str) -> int:
    note(name)
    if self.request.retries < 2:
        raise self.retry(countdown=1)
    return int(self.request.retries)


@app.task
def failing() -> None:
    raise ValueError("no")


@app.task
def record(name: str, line: object) -> None:
    note(name, line)


@app.task(acks_late=True, ignore_result=True)
def record_late(name: str, line: object) -> None:
    note(name, line)


@app.task
def endless(name: str) -> None:
    note(name)
    while True:
        time.sleep(1)


@app.task(acks_late=True)
def careful(name: str) -> str:
    """Takes its worker with it the first time it runs."""
    note(name)
    if len(lines(name)) == 1:
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


@app.task(ignore_result=True)
def everywhere(name: str) -> None:
    # Each worker's children have one parent.
    note(name, os.getppid())


def plain() -> Any:
    value = {"text": "über & <all> \U0001f600\n" * 30_000, "list": [1, None, 2.5]}
    results = [add.delay(n, n) for n in range(20)]
    return {
        "sums": [each.get(RESULT_S) for each in results],
        "echo": echo.delay(value).get(RESULT_S) == value,
    }


def countdown() -> Any:
    asked = time.time()
    return {"waited": arrival.apply_async(countdown=2).get(RESULT_S)["at"] - asked}


def retries() -> Any:
    return {"retries": flaky.delay("flaky").get(RESULT_S), "runs": len(lines("flaky"))}


def failure() -> Any:
    result = failing.delay()
    result.get(RESULT_S, propagate=False)
    return {"state": result.state, "error": repr(result.result)}


def canvas() -> Any:
    return {
        "chain": chain(add.s(1, 2), add.s(3), add.s(4))().get(RESULT_S),
        "group": group(add.s(n, 1) for n in range(5))().get(RESULT_S),
        "chord": chord((add.s(n, n) for n in range(20)), total.s())().get(RESULT_S),
        "after a chord": chain(group(add.s(n, 1) for n in range(4)), total.s(), add.s(5))().get(RESULT_S),
    }


def hours_ahead() -> Any:
    """Many more than the worker prefetches: it raises its prefetch by one for each that it holds."""
    held = [record.apply_async(("hours", n), countdown=HOURS_S) for n in range(25)]

    def scheduled() -> set[str]:
        said = app.control.inspect(timeout=2).scheduled() or {}
        return {task["request"]["id"] for tasks in said.values() for task in tasks}

    wait_for(lambda: scheduled() == {result.id for result in held})
    return {"sum": add.delay(1, 2).get(RESULT_S), "ran": len(lines("hours"))}


def revoked() -> Any:
    later = record.apply_async(("revoked", 1), countdown=2)
    later.revoke()
    running = endless.delay("endless")
    wait_for(lambda: lines("endless"))
    running.revoke(terminate=True)
    said = []
    for result in (later, running):
        try:
            result.get(RESULT_S)
        except TaskRevokedError:
            said.append(result.state)
    return {"states": said, "ran": len(lines("revoked"))}


def remote_control() -> Any:
    inspect = app.control.inspect(timeout=10, limit=1)
    answers = {
        "ping": inspect.ping(),
        "queues": inspect.active_queues(),
        "registered": inspect.registered(),
        "stats": inspect.stats(),
    }
    app.control.add_consumer(f"{QUEUE}.extra", reply=True, limit=1)
    extra = add.apply_async((20, 22), queue=f"{QUEUE}.extra").get(RESULT_S)
    app.control.cancel_consumer(f"{QUEUE}.extra", reply=True, limit=1)
    [[worker, pong]] = answers["ping"].items()
    return {
        "pong": pong,
        "queue": answers["queues"][worker][0]["name"],
        "knows add": "celery_amqp_app.add" in answers["registered"][worker],
        "transport": answers["stats"][worker]["broker"]["transport"],
        "extra": extra,
        "queues left": [queue["name"] for queue in inspect.active_queues()[worker][:1]],
    }


def events() -> Any:
    """What a monitor such as Flower sees of one task."""
    seen: list[str] = []
    task: str | None = None

    def saw(event: dict[str, Any]) -> None:
        nonlocal task
        if task is None and event["type"] == "worker-heartbeat":
            # Now events surely come here.
            task = add.delay(1, 1).id
        elif task is not None and event.get("uuid") == task:
            seen.append(event["type"])
            receiver.should_stop = event["type"] == "task-succeeded"

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": saw})
        receiver.capture(limit=None, timeout=RESULT_S, wakeup=False)
    return seen


def broadcast() -> Any:
    """To the queues of all workers; the argument says how many there are."""
    workers = int(sys.argv[2])
    everywhere.delay("everywhere")
    wait_for(lambda: len(lines("everywhere")) >= workers)
    add.delay(1, 1).get(RESULT_S)
    return {"runs": len(lines("everywhere")), "workers": len(set(lines("everywhere")))}


def prioritised() -> Any:
    """Before any worker is there to take them."""
    for n, priority in enumerate([0, 5, 9, 1, 5, 9]):
        record.apply_async(("order", f"{priority}:{n}"), priority=priority)


def delayed_in_the_broker() -> Any:
    asked = time.time()
    short = arrival.apply_async(countdown=3)
    record.apply_async(("native", 1), countdown=HOURS_S)
    now = add.delay(1, 2).get(RESULT_S)
    said = short.get(RESULT_S)
    return {"now": now, "waited": said["at"] - asked, "key": said["key"]}


def careful_sent() -> Any:
    return careful.delay("careful").id


def careful_done() -> Any:
    return {"result": app.AsyncResult(sys.argv[2]).get(RESULT_S), "runs": len(lines("careful"))}


def feed() -> Any:
    """Send numbered tasks until a line comes in; which were accepted, and of which nobody knows."""
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), is_over.set()), daemon=True).start()
    accepted, unknown, n = [], [], 0
    while not is_over.wait(0.05):
        try:
            record_late.delay("fed", n)
            accepted.append(n)
        except Exception as error:
            unknown.append(f"{n}: {error!r}")
        note("sent", n)
        n += 1
    return {"accepted": accepted, "unknown": unknown}


if __name__ == "__main__":
    # As the worker names them, which imports this file as a module.
    import celery_amqp_app

    print(json.dumps(getattr(celery_amqp_app, sys.argv[1])()))
