"""A Celery worker and a sender of tasks that see their broker stop and start again, many times.

    python -m tests.clients.celery_restarts --count 100

Nobody helps them: the same worker process must find the way back each time, every task that was accepted
must run, and nothing may be left over. Every other restart is a kill.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.clients.celery_amqp import Application, counts_of
from tests.serving import free_port, start, until


@dataclass(frozen=True)
class Outcome:
    restarts: int
    accepted: int
    lost: list[int]
    run_again: int
    unknown: list[str]
    is_same_worker: bool
    left_over: tuple[int, int]


def survive(count: int, place: Path) -> Outcome:
    """Restart a durable server `count` times under a running application."""
    data = place / "data"
    http_port, amqp_port = free_port(), free_port()

    def run_server() -> None:
        nonlocal server
        server = start(data, "--amqp-port", str(amqp_port), port=http_port).wait()

    server = start(data, "--amqp-port", str(amqp_port), port=http_port).wait()
    try:
        with Application(amqp_port, place) as application:
            worker = application.start_worker()
            feeder = application.start("feed")
            with feeder:
                for restart in range(count):
                    # In the middle of the work: tasks run, tasks wait, tasks are being sent.
                    runs = len(application.notes("fed"))
                    until(lambda before=runs: len(application.notes("fed")) > before + 10, 120)  # type: ignore[misc]
                    server.kill() if restart % 2 else server.stop()
                    run_server()
                runs = len(application.notes("fed"))
                until(lambda: len(application.notes("fed")) > runs + 10, 120)
                said, _ = feeder.communicate("\n", timeout=120)
            fed = json.loads(said)
            accepted = set(fed["accepted"])
            until(lambda: accepted <= {int(n) for n in application.notes("fed")}, 60)
            until(lambda: counts_of(server, application.queue) == (0, 0), 60)
            ran = [int(n) for n in application.notes("fed")]
            return Outcome(
                restarts=count,
                accepted=len(accepted),
                lost=sorted(accepted - set(ran)),
                run_again=len(ran) - len(set(ran)),
                unknown=fed["unknown"],
                is_same_worker=worker.poll() is None,
                left_over=counts_of(server, application.queue),
            )
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(asdict(survive(parser.parse_args().count, Path(place)))))


if __name__ == "__main__":
    main()
