"""Puts and deletes values until it is killed. Stdout says what it begins and what is confirmed.

`python -m tests.crash.kv_writer PATH SEED LIFE`. Each thread owns its keys, so that there is one newest value
of each. Housekeeping runs all the time, and traffic fills segments meanwhile.
"""

from __future__ import annotations

import json
import random
import sys
import threading

from openq.broker.kv import KvPut
from openq.local.broker import LocalBroker
from openq.model import QueueSettings

THREADS = 3
KEYS = 12
SEGMENT_BYTES = 1 << 14

_output = threading.Lock()


def say(**facts: object) -> None:
    with _output:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


def write(broker: LocalBroker, thread: int, chance: random.Random, life: int) -> None:
    number = 0
    while True:
        number += 1
        keys = chance.sample(range(KEYS), chance.choice((1, 1, 3)))
        names = [f"{thread}-{key}" for key in keys]
        if chance.random() < 0.2:
            say(begun=dict.fromkeys(names), thread=thread)
            broker.kv.delete_many("b", names)
        else:
            value = f"{life}.{number}." + "v" * chance.choice((0, 50, 3_000))
            say(begun=dict.fromkeys(names, value), thread=thread)
            broker.kv.put_many("b", [KvPut(name, value.encode()) for name in names])
        broker.sync()
        say(done=thread)


def fill_segments(broker: LocalBroker) -> None:
    while True:
        broker.publish_bodies("q", [b"b" * 1_000] * 10, 0)
        broker.ack("q", [(each.entry.seq, each.number) for each in broker.receive("q", 10)])
        broker.sync()


def main() -> None:
    path, seed, life = sys.argv[1], sys.argv[2], int(sys.argv[3])
    broker = LocalBroker(path, segment_bytes=SEGMENT_BYTES, history_bytes=0)
    broker.declare("q", QueueSettings(history_ms=0, dedup_window_ms=0))
    found = {entry.key: [entry.value.decode(), entry.version] for entry in broker.kv.list("b")}
    say(found=found)
    for thread in range(THREADS):
        chance = random.Random(f"{seed} {life} {thread}")
        threading.Thread(target=write, args=(broker, thread, chance, life), daemon=True).start()
    threading.Thread(target=fill_segments, args=(broker,), daemon=True).start()
    assert broker.housekeeper is not None
    while True:
        broker.housekeeper.work()


if __name__ == "__main__":
    main()
