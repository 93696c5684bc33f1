"""`python -m bench [name...] [--quick] [--json FILE]`: measure, one line of JSON per row, then a table."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shutil
import sys
import time
from pathlib import Path

from .harness import Row, Run, refuse_memory_disk, table

BENCHES = ["memory", "commit", "batch", "cycle", "ram", "backlog", "limits", "restart", "pause", "embedded"]
BENCHES += ["server", "amqp", "spark", "redis", "worker", "push"]
PARTS = [
    "server_send",
    "server_rivals",
    "server_backlog",
    "server_footprint",
    "server_connections",
    "server_client",
]  # of "server"
PARTS += ["embedded_latency", "embedded_batches", "large_bodies"]  # of "embedded"
PARTS += ["amqp_flow", "amqp_pika", "amqp_cost", "amqp_footprint"]  # of "amqp"
PARTS += ["spark_read", "spark_write", "spark_jobs", "spark_stream"]  # of "spark"
PARTS += ["redis_cycle", "redis_rivals", "redis_server", "redis_amqp", "redis_memory"]  # of "redis"
PARTS += ["worker_jobs", "worker_enqueue", "worker_latency", "worker_memory"]  # of "worker"
PARTS += [
    "push_cost",
    "push_clients",
    "push_latency",
    "push_events",
    "push_wake",
    "push_footprint",
    "webhooks",
]  # of "push"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", nargs="*", help=f"which ones: {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="less work, fewer rounds: under six minutes")
    parser.add_argument("--json", metavar="FILE", help="write the lines of JSON there too")
    parser.add_argument("--dir", metavar="DIR", help="a folder on the disk to measure (default: build/bench)")
    options = parser.parse_args()
    for name in options.name:
        if name not in BENCHES + PARTS:
            parser.error(f"unknown bench {name!r}; known: {', '.join(BENCHES + PARTS)}")

    base = os.path.abspath(options.dir or Path(__file__).parent.parent / "build" / "bench")
    refuse_memory_disk(base)
    directory = os.path.join(base, f"run-{os.getpid()}")
    os.makedirs(directory)
    rows: list[Row] = []

    def emit(row: Row) -> None:
        rows.append(row)
        print(row.to_json(), flush=True)

    def log(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    started = time.monotonic()
    try:
        for name in options.name or BENCHES:
            importlib.import_module(f"bench.{name}").run(Run(directory, options.quick, emit, log))
            for left in os.scandir(directory):
                shutil.rmtree(left.path)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if options.json:
            Path(options.json).write_text("".join(row.to_json() + "\n" for row in rows), encoding="utf-8")
    print()
    print(table(rows))
    print()
    print(
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, "
        f"{time.monotonic() - started:.0f} s{', quick' if options.quick else ''}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
