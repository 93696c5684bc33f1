"""Growth with the number of waiting messages: the same requests with 10^3 to 10^7 messages in the queue."""

from __future__ import annotations

import time

from . import amqp_load, growth_amqp
from .amqp_processes import OpenQAmqp
from .growth_run import GrowthRun
from .growth_server import costs_of_pair, fill
from .server_load import Drain, Repeat, Tally, drive
from .server_rounds import started


def measure(run: GrowthRun) -> None:
    points = [1_000, 10_000, 100_000] + ([] if run.quick else [1_000_000]) + ([10_000_000] if run.big else [])
    if all(run.is_known(x) for x in points):
        return
    peer = OpenQAmqp(run.folder("server"), durable=True)
    count = run.lap_count
    many = 5 * count  # of what costs a few microseconds
    with started(peer):
        wire = peer.queue("backlog")
        sends, batches = wire.sends(), wire.batches()
        empty_bytes = peer.rss_bytes()
        waiting = 0
        for x in points:
            if run.is_late(x):
                return
            fill(peer.port, "backlog", x - waiting)
            waiting = x
            if run.is_known(x):
                continue

            def singles() -> Tally:
                return drive(peer.port, 32, Repeat(sends, limit=count))

            def tens() -> Tally:
                return drive(peer.port, 32, Repeat(batches, messages=10, limit=many // 10))

            def drained(limit: int) -> Tally:
                return drive(peer.port, 32, Drain(wire.receive(), wire.delete, limit))

            def published() -> Tally:
                return amqp_load.publish(peer.amqp_port, "backlog", 100, 60.0, many)

            def consumed() -> Tally:
                return growth_amqp.consume(peer.amqp_port, "backlog", many, 500)

            (send_us, send_rate), _ = costs_of_pair(run, peer, singles, lambda: drained(count))
            (batch_us, _), (receive_us, receive_rate) = costs_of_pair(run, peer, tens, lambda: drained(many))
            (publish_us, _), (consume_us, _) = costs_of_pair(run, peer, published, consumed)
            run.add(
                x,
                send_us=send_us,
                send_per_s=send_rate,
                batch_us=batch_us,
                receive_us=receive_us,
                receive_per_s=receive_rate,
                publish_us=publish_us,
                consume_us=consume_us,
                message_bytes=(peer.rss_bytes() - empty_bytes) / x,
            )
        began_s = time.perf_counter()
        peer.stop()
        run.log(f"an orderly stop took {time.perf_counter() - began_s:.1f} s")
