"""A worker process for `test_kills.py`, which kills it: `python killed_program.py URL FILE`."""

from __future__ import annotations

import sys
import time

from openq.worker import App, Worker, once

url, notes = sys.argv[1:]
app = App(url=url, lease=1, retries=50)


def note(line: str) -> None:
    with open(notes, "a") as file:
        file.write(f"{line}\n")


@app.task(result_ttl=600)
def step(number: int) -> int:
    time.sleep(0.002)
    note(f"step {number}")
    return number


@app.task(queue="other")
async def double(number: int) -> int:
    note(f"double {number}")
    return number * 2


@app.task
def total(numbers: list[int], name: str) -> int:
    with once(f"total-{name}", claim=5) as first:
        if first:
            note(f"total {name}")
    return sum(numbers)


if __name__ == "__main__":
    print("ready", flush=True)
    Worker(app, threads=4).run()
