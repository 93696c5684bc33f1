"""Each rule with a real cause: it fires once, with figures and a command, and is over when the cause is.

All causes are made on one server and their alerts proceed side by side; limits and times are short. Causes
that need a disk, worker, certificate or Redis of their own are in `test_game_day.py` and `test_server.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.alerts.receivers import Receivers, receivers
from tests.http_endpoint import answer
from tests.rest.helpers import Client
from tests.serving import Served, served
from tests.waiting import until

# A rule watches the queue of its own test: what others do is no cause for it.
RULES = """
[alerts]
interval = 0.1
[alerts.destinations.hook]
kind = "webhook"
url = "{url}/hook"
group_wait = 0
rate = "1000/s"
[alerts.rules.oldest-message]
age = "200ms"
for = 0
keep = 0.1
queues = ["old"]
[alerts.rules.backlog-grows]
backlog = 3
growth = 0.01
window = "2s"
for = 0
keep = 0.1
queues = ["backlog"]
[alerts.rules.nobody-consumes]
window = "1s"
for = 0
keep = 0.1
queues = ["alone"]
[alerts.rules.error-rate]
deliveries = 3
window = "2s"
for = 0
keep = 0.1
queues = ["errors"]
[alerts.rules.redelivery-storm]
count = 3
window = "2s"
for = 0
keep = 0.1
queues = ["storm"]
[alerts.rules.lease-losses]
count = 1
window = "2s"
keep = 0.1
queues = ["leases"]
[alerts.rules.cursor-lag]
age = "100ms"
for = 0
keep = 0.1
[alerts.rules.schedule-missed]
window = "2s"
keep = 0.1
[alerts.rules.webhook-disabled]
keep = 0.1
[alerts.rules.sync-slow]
seconds = 0
syncs = 1
for = 0
keep = 0.1
"""


@dataclass
class Running:
    client: Client
    receiving: Receivers
    server: Served
    fired: dict[str, dict[str, Any]] = field(default_factory=dict)

    def fire(self, rule: str) -> dict[str, Any]:
        """The alert as it was sent. Its cause is ended, so it will be over."""
        if rule in self.fired:
            return self.fired[rule]
        cause = CAUSES[rule]

        def fires() -> bool:
            cause.go_on(self)
            return bool(self.receiving.hooks(rule, "firing"))

        until(fires, f"{rule} fires")
        self.fired[rule] = self.receiving.hooks(rule, "firing")[0]
        cause.end(self)
        return self.fired[rule]


Step = Callable[[Running], object]


def receive(client: Client, queue: str, **fields: Any) -> str:
    found = client.post(f"/queues/{queue}/receive", fields).value["messages"]
    return str(found[0]["receipt_id"]) if found else ""


def fail(client: Client, queue: str) -> None:
    """One delivery that a consumer ends as failed."""
    receipt = receive(client, queue)
    if receipt:
        client.post(f"/queues/{queue}/nack", {"receipts": [receipt], "delay": 0})


def publish(client: Client, queue: str) -> None:
    assert client.post(f"/queues/{queue}/messages", {"payload": "x"}).status == 201


def no_queue_for_its_runs(running: Running) -> None:
    client = running.client
    client.queue("reports")
    made = client.put("/schedules/report", {"queue": "reports", "every": 1, "payload": "x"})
    assert made.status == 201, made.data
    client.delete("/queues/reports")


def answer_410(running: Running) -> None:
    running.receiving.endpoint.respond = lambda handler: (
        answer(handler, 410, b"moved") if handler.path == "/gone" else answer(handler, 200)
    )
    running.client.queue("gone")
    url = f"{running.receiving.endpoint.url}/gone"
    assert running.client.put("/webhooks/gone", {"url": url, "queue": "gone"}).status == 201
    publish(running.client, "gone")


def answer_200(running: Running) -> None:
    running.receiving.endpoint.respond = lambda handler: answer(handler, 200)
    running.client.post("/webhooks/gone/enable")


def lose_a_lease(running: Running) -> None:
    publish(running.client, "leases")
    receive(running.client, "leases", visibility_timeout=0.05)


class Cause(NamedTuple):
    """`begin` once; `go_on` again and again until the alert fires; `end` what an operator would do."""

    begin: Step
    command: str
    summary: str  # a pattern
    end: Step = lambda running: None
    go_on: Step = lambda running: None


CAUSES = {
    "oldest-message": Cause(
        lambda running: publish(running.client, "old"),
        "openq queue show old",
        r"the oldest message of old has waited [\d.]+ (ms|s); 1 ready, 0/s completed",
        end=lambda running: running.client.post("/queues/old/purge"),
    ),
    "backlog-grows": Cause(
        lambda running: None,
        "openq series backlog published acked ready --since 1h",
        r"the backlog of backlog grows by [\d.,]+/s: [\d,]+ messages ready now, [\d,]+ in an hour; "
        r"[\d.,]+/s published, 0/s completed",
        end=lambda running: running.client.post("/queues/backlog/purge"),
        go_on=lambda running: publish(running.client, "backlog"),
    ),
    "nobody-consumes": Cause(
        lambda running: publish(running.client, "alone"),
        "openq worker run MODULE:APP --queue alone",
        r"nobody consumes alone: 1 message ready, the oldest for [\d.]+ (ms|s)",
        end=lambda running: receive(running.client, "alone"),
    ),
    "error-rate": Cause(
        lambda running: publish(running.client, "errors"),
        "openq events errors --event nacked --event lease_expired",
        r"[\d.]+ % of the deliveries of errors fail: \d+ of \d+",
        go_on=lambda running: fail(running.client, "errors"),
    ),
    "redelivery-storm": Cause(
        lambda running: publish(running.client, "storm"),
        "openq queue edit storm --retry exponential --max-receives 5",
        r"\d+ of \d+ deliveries of storm are retries",
        go_on=lambda running: fail(running.client, "storm"),
    ),
    "lease-losses": Cause(
        lambda running: None,
        "openq queue edit leases --visibility-timeout 120",
        r"(1 lease|\d+ leases) of leases ended before the message was settled",
        go_on=lose_a_lease,
    ),
    "cursor-lag": Cause(
        lambda running: running.client.put("/pipeline/cursors/reader", {"position": 0}),
        "openq pipeline cursors rm reader",
        r"the cursor reader is .+ and .+ behind",
        end=lambda running: running.client.delete("/pipeline/cursors/reader"),
    ),
    "schedule-missed": Cause(
        no_queue_for_its_runs,
        "openq schedule run report",
        r"(1 run|\d+ runs) of the schedule report dropped: .*reports.*",
        end=lambda running: running.client.delete("/schedules/report"),
    ),
    "webhook-disabled": Cause(
        answer_410,
        "openq webhook enable gone",
        r"the webhook gone is disabled: its endpoint answered HTTP 410: moved",
        end=answer_200,
    ),
    "sync-slow": Cause(
        lambda running: None,
        "openq doctor --data DATA",
        r"one of a hundred syncs of .+ takes more than [\d.]+ .+",
        end=lambda running: running.client.put("/alerts/rules/sync-slow", {"limits": {"seconds": 1000}}),
        go_on=lambda running: publish(running.client, "other"),
    ),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("causes")
    with receivers() as receiving:
        file = folder / "openq.toml"
        file.write_text(RULES.format(url=receiving.endpoint.url))
        flags = ["--config", str(file), "--webhook-allow", "127.0.0.1"]
        with served(folder / "data", *flags) as server:
            client = Client(server.url)
            for queue in ("old", "backlog", "alone", "errors", "storm", "leases", "other"):
                client.queue(queue)
            found = Running(client, receiving, server)
            for cause in CAUSES.values():
                cause.begin(found)
            yield found
        assert [line for line in server.log if "Traceback" in line] == []


@pytest.mark.parametrize("rule", CAUSES)
def test_a_real_cause_fires_its_rule(rule: str, running: Running) -> None:
    firing = running.fire(rule)

    cause = CAUSES[rule]
    data = running.server.arguments[running.server.arguments.index("--data") + 1]
    assert firing["command"] == cause.command.replace("DATA", data)
    assert re.fullmatch(cause.summary, firing["summary"]), firing["summary"]
    assert firing["action"]
    assert firing["runbook"] == f"RUNBOOK.md#{rule}"


def test_a_growing_backlog_has_a_forecast(running: Running) -> None:
    figures = running.fire("backlog-grows")["figures"]

    assert figures["forecast"] > figures["ready"] > 3
    assert figures["growth"] > 0


@pytest.mark.parametrize("rule", CAUSES)
def test_an_alert_is_over_when_its_cause_is_and_was_sent_once(rule: str, running: Running) -> None:
    """After the tests above, so that all alerts have their times side by side."""
    running.fire(rule)
    until(lambda: running.receiving.hooks(rule, "resolved"), f"{rule} is over")

    assert len(running.receiving.hooks(rule, "firing")) == len(running.receiving.hooks(rule, "resolved")) == 1


def test_every_rule_has_a_test_with_a_real_cause() -> None:
    from openq.alert_rules.builtin import BY_NAME

    text = "".join(path.read_text() for path in Path(__file__).parent.glob("*.py"))
    elsewhere = set(re.findall(r'(?:until_notified|notified_once)\(\s*"([a-z-]+)"', text))
    without = {"damaged-records", "event-loop-lag", "connections-refused"}

    assert set(BY_NAME) - set(CAUSES) - elsewhere - without == set()
