"""What the alert rules cost with many queues: CPU time of one evaluation of all built-in rules.

    python -m bench.alert_cost [--queues 10000] [--rounds 20]

Half of the queues hold a message. The clock of the broker goes on by the interval in each round, so windows
end as they do in a server; the first rounds, until the windows of the first counts are over, are not counted.
Reported: milliseconds of a round in which nothing happens, of one in which a hundredth of the queues get a
message, of one in which each queue does, and of a quiet one soon after, while the windows hold these; and the
share of a core at the default interval. One line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

from openq.alert_rules.tables import AlertConfig
from openq.alerts.service import AlertService
from openq.auth.guard import Guard
from openq.auth.store import UserStore
from openq.clock import VirtualClock
from openq.config import Config
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from openq.server.context import ServerContext

INTERVAL_MS = 3_000
WINDOW_MS = 700_000  # longer than the longest time of a rule about queues


class Rounds:
    def __init__(self, queues: int) -> None:
        self.clock = VirtualClock()
        self.broker = LocalBroker(clock=self.clock)
        self.names = [f"queue-{number:05}" for number in range(queues)]
        for number, name in enumerate(self.names):
            self.broker.declare(name, QueueSettings())
            if number % 2:
                self.broker.publish(name, Draft(b"x"))
        self.loop = asyncio.new_event_loop()
        config = Config(memory=True)
        context = ServerContext(self.broker, self.loop, config, Guard(UserStore(), time.time))
        self.service = AlertService(context)
        self.service.configure(AlertConfig())

    def spent_ms(self, publishes_to: int = 0) -> float:
        for name in self.names[:publishes_to]:
            self.broker.publish(name, Draft(b"x"))
        self.clock.advance(INTERVAL_MS / 1000)
        began = time.thread_time()
        self.service.evaluate()
        return (time.thread_time() - began) * 1000

    def mean_ms(self, rounds: int, publishes_to: int = 0) -> float:
        return sum(self.spent_ms(publishes_to) for _ in range(rounds)) / rounds

    def settle(self) -> None:
        for _ in range(3):
            self.clock.advance(WINDOW_MS / 1000)
            self.service.evaluate()

    def close(self) -> None:
        self.broker.close()
        self.loop.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    rounds = Rounds(options.queues)
    rounds.settle()
    found = {
        "quiet": rounds.mean_ms(options.rounds),
        "a_hundredth": rounds.mean_ms(options.rounds, options.queues // 100),
        "all": rounds.mean_ms(max(3, options.rounds // 5), options.queues),
        "after": rounds.mean_ms(options.rounds),
    }
    rounds.close()
    share = {name: round(ms / INTERVAL_MS * 100, 2) for name, ms in found.items()}
    shown = {name: round(ms, 1) for name, ms in found.items()}
    print(
        json.dumps({"bench": "alert_cost", "queues": options.queues, "ms": shown, "percent_of_core": share})
    )


if __name__ == "__main__":
    main()
