"""What tracing costs: CPU of the server per message, on at a share of 1 % against off, in turns.

    python -m bench.trace_cost [--rounds 9]
    python -m bench.trace_cost --instructions

Both servers have all their metrics. The collector is a process of its own that throws everything away; the
thread that exports is in the figure. CPU time, not wall clock: others may share the machine. With
`--instructions` valgrind counts instead, in memory and without sockets: off, on at a share of 0 and of 1. The
cost at 1 % is between the two, in proportion. One line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile

from tests.serving import free_port

from .metrics_cost import Server, instructions, microseconds, publish_all, send_all

SHARE = 0.01
COLLECTOR = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *_): pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--instructions", action="store_true")
    options = parser.parse_args()
    rounds = options.rounds
    port = free_port()
    collector = subprocess.Popen([sys.executable, "-c", COLLECTOR, str(port)])
    if options.instructions:
        try:
            print(json.dumps(count_instructions(f"http://127.0.0.1:{port}")))
        finally:
            collector.terminate()
            collector.wait(30)
        return
    flags = ["--tracing", "--otlp-endpoint", f"http://127.0.0.1:{port}", "--trace-sample", str(SHARE)]
    found: dict[str, list[float]] = {}
    servers: dict[str, Server] = {}
    try:
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            servers = {"on": Server(one, more=flags), "off": Server(other)}
            for number in range(rounds):
                order = list(servers.items())[:: 1 if number % 2 else -1]
                for name, work in (("sqs_send", send_all), ("amqp_publish", publish_all)):
                    for state, server in order:
                        found.setdefault(f"{name}_{state}", []).append(microseconds(server, work))
            for server in servers.values():
                server.stop()
    finally:
        collector.terminate()
        collector.wait(30)
    cost = {
        name: {
            "least": _percent(min(found[f"{name}_on"]), min(found[f"{name}_off"])),
            "median": _percent(*(statistics.median(found[f"{name}_{state}"]) for state in ("on", "off"))),
        }
        for name in ("sqs_send", "amqp_publish")
    }
    shown = {name: [round(each, 2) for each in sorted(values)] for name, values in found.items()}
    print(json.dumps({"bench": "trace_cost", "share": SHARE, "cost_percent": cost, "us": shown}))


def count_instructions(url: str) -> dict[str, object]:
    found: dict[str, object] = {"bench": "trace_cost", "share": SHARE}
    for name, module, work, few, many in (
        ("sqs_send", "server_profile", "send", 640, 5_760),
        ("sqs_receive_delete", "server_profile", "drain1", 640, 5_760),  # half of the requests each
        ("amqp_publish", "amqp_profile", "publish", 10_000, 60_000),
        ("amqp_confirm", "amqp_profile", "confirm", 10_000, 60_000),
        ("amqp_consume", "amqp_profile", "consume", 10_000, 60_000),  # with the publishes before it
    ):
        counts: dict[str, float] = {}
        for state, flags in (
            ("off", {}),
            ("on_0", {"tracing": True, "otlp_endpoint": url, "trace_sample": 0}),
            ("on_1", {"tracing": True, "otlp_endpoint": url, "trace_sample": 1}),
        ):
            runs = [_instructions(module, work, count, json.dumps(flags)) for count in (few, many)]
            counts[state] = round((runs[1] - runs[0]) / (many - few))
        counts["on_share"] = round(counts["on_0"] + (counts["on_1"] - counts["on_0"]) * SHARE)
        counts["cost_percent"] = _percent(counts["on_share"], counts["off"])
        found[name] = counts
    return found


def _instructions(module: str, work: str, count: int, flags: str) -> int:
    return instructions(["-m", f"bench.{module}", work, "--once", "--count", str(count), "--flags", flags])


def _percent(on: float, off: float) -> float:
    return round((on / off - 1) * 100, 1)


if __name__ == "__main__":
    main()
