"""The files in deploy/: every metric in them exists, every command too, and Prometheus itself takes them.

Prometheus is used where `prometheus` and `promtool` are on the PATH, as Debian's package `prometheus`
installs them, where `make prometheus-if-apt` unpacked them, or where OPENQ_TEST_PROMETHEUS names a directory
with both.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openq import OpenQ
from openq.cli.commands import INDEX, load
from tests.isolation import ROOT
from tests.references import METRICS
from tests.serving import Served, free_port, served_amqp
from tests.waiting import until

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "openq-alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "openq.json"
# They appear with a Redis store, a schedule, a worker or a webhook; METRICS.md, which is generated, has them.
ELSEWHERE = re.compile(r"openq_(store|redis|schedule|worker|webhook)_")


def metric_names(text: str) -> set[str]:
    """The metrics that expressions name, without the suffixes of histograms."""
    without_values = re.sub(r'"[^"]*"', "", text)  # of labels
    found = set(re.findall(r"\b((?:openq|process)_[a-z_]+)\b", without_values))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


def expressions() -> list[str]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    of_panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    folded = re.sub(
        r">-\n((?: {10}.*\n)+)", lambda found: " ".join(found[1].split()) + "\n", RULES.read_text()
    )
    return [*of_panels, *re.findall(r"^ +expr: (.+)$", folded, re.MULTILINE)]


def test_every_metric_of_the_dashboard_and_the_rules_is_one_that_the_server_has(tmp_path: Path) -> None:
    with served_amqp(tmp_path) as (server, _):
        text = (server.get("/metrics")[1] + server.get("/metrics/queues")[1]).decode()
    exposed = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    documented = set(re.findall(r"^\| `(\w+)` \|", METRICS.read_text(), re.MULTILINE))

    named = set().union(*map(metric_names, expressions()))

    assert len(named) > 40
    assert sorted(named - exposed - {name for name in documented if ELSEWHERE.match(name)}) == []


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_rule_says_what_is_wrong_and_names_a_command_that_exists() -> None:
    text = RULES.read_text()
    alerts = re.findall(r"^ +- alert: (\w+)$", text, re.MULTILINE)
    actions = re.findall(r'^ +action: "(.+)"$', text, re.MULTILINE)

    assert len(set(alerts)) == len(alerts) == len(actions) == text.count("summary:")
    for action in actions:
        words = shlex.split(action)
        assert words[0] == "openq"
        command = load(words[1])
        if command.commands:
            assert words[2] in command.commands, action
        assert words[1] in INDEX, action


# -- with Prometheus itself -------------------------------------------------------------------------------


def binary(name: str) -> str:
    unpacked = str(ROOT / ".venv" / "prometheus" / "usr" / "bin")
    places = (os.environ.get("OPENQ_TEST_PROMETHEUS"), os.environ.get("PATH"), unpacked)
    path = os.pathsep.join(filter(None, places))
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"{name} is not installed: Debian's package prometheus has it")
    return found


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Served]:
    with served_amqp(tmp_path / "data") as (server, _):
        with OpenQ("orders", url=server.url) as queue:
            for number in range(5):
                queue.publish(number)
            queue.ack(queue.receive(timeout=0))
        yield server


def test_promtool_finds_nothing_wrong_with_the_metrics(busy: Served) -> None:
    for path in ("/metrics", "/metrics/queues"):
        done = subprocess.run(
            [binary("promtool"), "check", "metrics"],
            input=busy.get(path)[1],
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()


def test_promtool_takes_the_rules_and_the_configuration() -> None:
    for kind, path in (("rules", RULES), ("config", RULES.with_name("prometheus.yml"))):
        done = subprocess.run(
            [binary("promtool"), "check", kind, str(path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_prometheus_scrapes_both_pages_and_evaluates_the_rules(busy: Served, tmp_path: Path) -> None:
    port = free_port()
    text = RULES.with_name("prometheus.yml").read_text()
    config = tmp_path / "prometheus.yml"
    config.write_text(text.replace("127.0.0.1:9324", f"127.0.0.1:{busy.port}").replace("15s", "1s"))
    shutil.copy(RULES, tmp_path)
    process = subprocess.Popen(
        [
            binary("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def value(name: str) -> float | None:
        found = ask(f"query?query={name}")["result"]
        return float(found[0]["value"][1]) if found else None

    try:
        until(lambda: value("openq_messages_sent_total") == 5, ignoring=(OSError,))
        until(lambda: value("openq_queue_messages_acked_total") == 1)
        assert value("openq_message_publish_to_ack_seconds_count") is not None
        until(lambda: all(rule["health"] == "ok" for rule in ask("rules")["groups"][0]["rules"]))
        assert [target["health"] for target in ask("targets")["activeTargets"]] == ["up", "up"]
    finally:
        process.terminate()
        process.wait(30)
