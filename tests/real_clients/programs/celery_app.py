"""A Celery application whose broker is SQS, and the ways in which tests use it.

The worker is started with `celery -A celery_app worker`; `python celery_app.py SCENARIO` plays a caller of
tasks and prints what came back as JSON. Where things are is said by environment variables.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task, chain, group

PLACE = Path(os.environ["CELERY_PLACE"])
RESULT_S = 60

app = Celery("openq", broker=os.environ["CELERY_BROKER"], backend=f"file://{PLACE / 'results'}")
app.conf.update(
    task_default_queue=os.environ["CELERY_QUEUE"],
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": False,
        "wait_time_seconds": 1,
        "polling_interval": 0.05,
        "visibility_timeout": int(os.environ["CELERY_VISIBILITY_S"]),
    },
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    task_publish_retry=False,
)


def note(name: str) -> None:
    """One line per run of a task, so that runs can be counted from outside."""
    with (PLACE / name).open("a") as file:
        file.write(f"{os.getpid()}\n")


def runs(name: str) -> int:
    path = PLACE / name
    return len(path.read_text().splitlines()) if path.exists() else 0


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def echo(value: Any) -> Any:
    return value


@app.task
def started_at() -> float:
    return time.time()


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
def long(name: str, seconds: float) -> str:
    """Acknowledged when it begins, as Celery does by default."""
    note(name)
    time.sleep(seconds)
    return "done"


@app.task(acks_late=True)
def careful(name: str) -> str:
    """Takes its worker with it the first time it runs."""
    note(name)
    if runs(name) == 1:
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def plain() -> Any:
    text = "über & <all> \U0001f600\n" * 100
    results = [add.delay(n, n) for n in range(20)]
    return {
        "sums": [each.get(RESULT_S) for each in results],
        "echo": echo.delay({"text": text, "list": [1, None, 2.5]}).get(RESULT_S)
        == {"text": text, "list": [1, None, 2.5]},
    }


def countdown() -> Any:
    asked = time.time()
    later = started_at.apply_async(countdown=2)
    eta = started_at.apply_async(eta=app.now().replace(microsecond=0))
    return {"waited": later.get(RESULT_S) - asked, "eta": eta.get(RESULT_S) - asked}


def retries() -> Any:
    result = flaky.delay("flaky")
    return {"retries": result.get(RESULT_S), "runs": runs("flaky")}


def failure() -> Any:
    result = failing.delay()
    result.get(RESULT_S, propagate=False)
    return {"state": result.state, "error": repr(result.result)}


def canvas() -> Any:
    return {
        "chain": chain(add.s(1, 2), add.s(3), add.s(4))().get(RESULT_S),
        "group": group(add.s(n, 1) for n in range(5))().get(RESULT_S),
    }


def long_task() -> Any:
    """Longer than the visibility timeout of the queue."""
    seconds = float(os.environ["CELERY_VISIBILITY_S"]) + 1.5
    result = long.delay("long", seconds)
    said = result.get(RESULT_S)
    # Whatever came back because of the timeout would run before this one.
    add.delay(1, 1).get(RESULT_S)
    return {"result": said, "runs": runs("long")}


def send_careful() -> Any:
    return careful.delay("careful").id


def wait_careful() -> Any:
    result = app.AsyncResult(sys.argv[2])
    return {"result": result.get(RESULT_S), "runs": runs("careful")}


if __name__ == "__main__":
    # As the worker names them, which imports this file as a module.
    import celery_app

    print(json.dumps(getattr(celery_app, sys.argv[1])()))
