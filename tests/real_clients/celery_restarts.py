"""A Celery worker and a sender of tasks that see their broker stop and start again, many times.

    python -m tests.real_clients.celery_restarts --count 100

Nobody helps them: the same worker process must find the way back each time, every task that was accepted
must run, and nothing may be left over. Every other restart is a kill.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.real_clients.celery_amqp import Application, counts_of
from tests.serving import Served, free_port, start
from tests.waiting import until


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

    def run_server() -> Served:
        return start(data, "--amqp-port", str(amqp_port), port=http_port).wait()

    server = run_server()
    try:
        with Application(amqp_port, place) as application:
            worker = application.start_worker()
            feeder = application.start("feed")
            with feeder:
                for restart in range(count):
                    _wait_for_runs(application)
                    server.kill() if restart % 2 else server.stop()
                    server = run_server()
                _wait_for_runs(application)
                said, _ = feeder.communicate("\n", timeout=120)
            fed = json.loads(said)
            accepted = set(fed["accepted"])
            until(lambda: counts_of(server, application.queue) == (0, 0), seconds=300)
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


def _wait_for_runs(application: Application) -> None:
    """Until some more tasks ran: then others wait, and others are being sent."""
    before = len(application.notes("fed"))
    until(lambda: len(application.notes("fed")) > before + 10, seconds=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    place = Path(tempfile.mkdtemp(prefix="celery-restarts-"))
    print(f"logs are in {place} until all went well", file=sys.stderr)
    print(json.dumps(asdict(survive(parser.parse_args().count, place))))
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
