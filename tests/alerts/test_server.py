"""Alerts of real servers at real receivers: one notification, with the command, and one when it is over."""

from __future__ import annotations

import base64
import datetime
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from openq.auth.store import UserStore
from tests.alerts.receivers import CANARIES, ROUTING_KEY, Receivers, receivers, verify
from tests.cli.helpers import run_in_process
from tests.rest.helpers import Client
from tests.serving import served
from tests.waiting import until

QUICK = """
[alerts.rules.dead-letters]
window = "2s"
keep = "0.2s"
[alerts.rules.login-attack]
window = "2s"
keep = "0.2s"
[alerts.rules.certificate-expiring]
keep = "0.2s"
[alerts.rules.many]
expression = "queue.ready >= n and total.ready >= n"
n = 3
keep = "0.2s"
severity = "critical"
summary = "{queue} has {value:count} messages"
queues = ["many*"]
command = "openq queue purge {queue}"
"""


@pytest.fixture
def receiving() -> Iterator[Receivers]:
    with receivers() as found:
        yield found


def poison(client: Client, queue: str) -> None:
    """A message that every consumer fails on."""
    client.put(f"/queues/{queue}-dead", {})
    client.put(f"/queues/{queue}", {"dlq": f"{queue}-dead", "max_receives": 1})
    client.post(f"/queues/{queue}/messages", {"payload": "x"})
    [message] = client.post(f"/queues/{queue}/receive", {}).value["messages"]
    client.post(f"/queues/{queue}/nack", {"receipts": [message["receipt_id"]], "reason": "cannot parse"})


def alerts(client: Client, **query: str) -> list[dict[str, Any]]:
    text = "&".join(f"{name}={value}" for name, value in query.items())
    found: list[dict[str, Any]] = client.get(f"/alerts?{text}").value["alerts"]
    return found


def test_poison_messages_reach_every_destination_once_and_are_over_by_themselves(
    tmp_path: Path, receiving: Receivers
) -> None:
    with served(tmp_path / "data", "--config", str(receiving.write(tmp_path, QUICK))) as server:
        client = Client(server.url)
        poison(client, "orders")
        firing = receiving.until_notified("dead-letters", "firing")
        [shown] = alerts(client, state="firing")
        receiving.until_notified("dead-letters", "resolved")
        until(lambda: len(receiving.requests("/chat")) == 2)
        until(lambda: len(receiving.requests("/pager")) == 2)
        until(lambda: len(receiving.requests("/manager/api/v2/alerts")) == 2)
        page = server.get("/metrics")[1].decode()
        history = client.get("/alerts/history").value["entries"]
        events = client.get("/events?follow=0&events=alert&from=oldest")

    receiving.notified_once("dead-letters", "openq dlq redrive orders-dead --rate 50")
    assert all(verify(headers, body) for headers, body in receiving.requests("/hook"))
    assert firing["labels"] == {"alertname": "dead-letters", "severity": "warning", "queue": "orders"}
    assert firing["figures"]["letters"] == 1
    assert firing["runbook"] == "RUNBOOK.md#dead-letters"
    assert (shown["subject"], shown["kind"], shown["alert"]) == ("orders", "queue", "dead-letters")
    pages = [json.loads(body) for _, body in receiving.requests("/pager")]
    assert [each["event_action"] for each in pages] == ["trigger", "resolve"]
    assert len({each["dedup_key"] for each in pages}) == 1
    assert {each["routing_key"] for each in pages} == {ROUTING_KEY}
    managed = [json.loads(body)[0] for _, body in receiving.requests("/manager")]
    assert managed[0]["labels"] == firing["labels"]
    assert managed[0]["startsAt"] < managed[1]["endsAt"] < managed[0]["endsAt"]
    assert 'openq_alert_notifications_total{destination="mail",outcome="accepted"} 2' in page
    assert [each["state"] for each in history] == ["resolved", "firing"]
    assert b"dead-letters firing" in events.data
    receiving.no_secrets(page, *server.log, json.dumps(history))


def test_a_login_attack_raises_an_alert_that_names_its_source(tmp_path: Path, receiving: Receivers) -> None:
    data = tmp_path / "data"
    data.mkdir()
    store = UserStore(data / "users.json")
    store.add_user("admin", role="admin", password="a-good-password")
    with served(data, "--config", str(receiving.write(tmp_path, QUICK))) as server:
        guess = base64.b64encode(b"admin:canary-guess").decode()
        for _ in range(12):
            Client(server.url, headers={"authorization": f"Basic {guess}"}).get("/queues")
        firing = receiving.until_notified("login-attack", "firing")
        receiving.until_notified("login-attack", "resolved")

    receiving.notified_once("login-attack", "openq audit ls --action login --outcome refused")
    assert "from 127.0.0.1" in firing["summary"]
    receiving.no_secrets(*server.log)
    assert not [body for body in receiving.endpoint.bodies if b"canary-guess" in body]


def test_a_certificate_near_its_end_raises_an_alert_until_it_is_renewed(
    tmp_path: Path, receiving: Receivers
) -> None:
    authority = trustme.CA()

    def issue(days: int) -> None:
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        issued = authority.issue_cert("127.0.0.1", not_after=end)
        (tmp_path / "cert.pem").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        (tmp_path / "key.pem").write_bytes(issued.private_key_pem.bytes())

    issue(5)
    tls = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    with served(None, *tls, "--config", str(receiving.write(tmp_path, QUICK))) as server:
        firing = receiving.until_notified("certificate-expiring", "firing")
        issue(100)
        server.process.send_signal(signal.SIGHUP)
        receiving.until_notified("certificate-expiring", "resolved")

    receiving.notified_once("certificate-expiring", "openq config reload")
    assert 3 < firing["figures"]["days"] < 5


def test_an_alert_survives_a_restart_and_is_not_sent_again(tmp_path: Path, receiving: Receivers) -> None:
    config = str(receiving.write(tmp_path, QUICK))
    with served(tmp_path / "data", "--config", config) as server:
        client = Client(server.url)
        client.put("/queues/many-1", {})
        for number in range(3):
            client.post("/queues/many-1/messages", {"payload": number})
        first = receiving.until_notified("many", "firing")
        until(lambda: len(alerts(client, state="firing")[0]["notified"]) == 5)
    with served(tmp_path / "data", "--config", config) as server:
        client = Client(server.url)
        until(lambda: alerts(client, state="firing"))
        [again] = alerts(client, state="firing")
        client.post("/queues/many-1/purge")
        receiving.until_notified("many", "resolved")

    receiving.notified_once("many", "openq queue purge many-1")
    assert (again["id"], again["since"]) == (first["id"], first["since"])


def test_an_alert_waits_for_a_destination_that_is_down(tmp_path: Path, receiving: Receivers) -> None:
    receiving.mail.reply_to_mail = "451 try later"
    with served(None, "--config", str(receiving.write(tmp_path, QUICK))) as server:
        client = Client(server.url)
        client.put("/queues/many", {})
        for number in range(3):
            client.post("/queues/many/messages", {"payload": number})

        def mail() -> dict[str, Any]:
            found = client.get("/alerts/destinations").value["destinations"]
            return {each["name"]: each for each in found}["mail"]

        until(lambda: mail()["failed"])
        assert mail()["error"] == "the mail server answered 451"
        receiving.mail.reply_to_mail = "250 ok"
        receiving.until_notified("many", "firing")
        until(lambda: mail()["error"] is None)

    assert len(receiving.mails("many", "firing")) == len(receiving.hooks("many", "firing")) == 1


def test_rules_are_changed_silenced_and_tested_over_rest_and_by_command(
    tmp_path: Path, receiving: Receivers
) -> None:
    with served(tmp_path / "data", "--config", str(receiving.write(tmp_path, QUICK))) as server:
        client = Client(server.url)

        def run(*words: str) -> Any:
            return run_in_process("alert", *words, "--url", server.url)

        assert run("ls").code == 5
        made = client.put("/alerts/rules/busy", {"expression": "queue.ready > n", "limits": {"n": "1"}})
        assert made.status == 422
        text = "{queue} holds {value}"
        body = {"expression": "queue.ready > n", "limits": {"n": 1}, "summary": text, "keep": 0.1}
        assert client.put("/alerts/rules/busy", body).value["origin"] == "api"
        silenced = run("silence", "busy", "--for", "1h", "--reason", "a test")
        assert silenced.code == 0
        client.put("/queues/work", {})
        client.post("/queues/work/messages", {"payload": 1})
        client.post("/queues/work/messages", {"payload": 2})
        until(lambda: alerts(client, state="firing"))
        [alert] = alerts(client, state="firing")
        assert alert["summary"] == "work holds 2"
        [silence] = client.get("/alerts/silences").value["silences"]
        assert alert["silenced"] == silence["id"]
        assert "work holds 2" in run("show", "busy").out
        assert "work holds 2" in run("ls").out
        assert receiving.hooks("busy", "firing") == []
        assert run("unsilence", silence["id"]).code == 0
        receiving.until_notified("busy", "firing")
        assert run("set", "busy", "n=5").code == 0
        receiving.until_notified("busy", "resolved")
        assert "busy" in run("history").out
        assert client.get("/alerts/rules/busy").value["limits"] == {"n": 5}
        assert run("reset", "busy").code == 0
        assert client.get("/alerts/rules/busy").code == "alert_rule_not_found"
        for words in (
            ("show", "oldest-messag"),
            ("set", "oldest-messag", "age=1h"),
            ("reset", "oldest-messag"),
        ):
            refused = run(*words)
            assert refused.code != 0
            assert "did you mean 'oldest-message'?" in refused.err
        assert "free=2GiB share=0.1 window=1800" in run("rules").out
        assert client.put("/alerts/rules/oldest-message", {"limits": {"agee": 1}}).status == 422
        wrong = client.put("/alerts/rules/x", {"expression": "queue.redy > 1", "summary": "x"})
        assert "did you mean queue.ready" in wrong.value["detail"]
        tested = run("test", "disk-full")
        assert tested.code == 0, tested
        assert run("test", "no-rule").code == 3
        listed = run("destinations", "--json").out + run("rules").out
    assert "this is a test" in str(receiving.mail.mails[-1])
    receiving.no_secrets(listed, tested.out, *server.log)


def test_a_new_server_and_an_idle_one_are_silent(tmp_path: Path, receiving: Receivers) -> None:
    with served(tmp_path / "data", "--config", str(receiving.write(tmp_path, interval=0.1))) as server:
        client = Client(server.url)
        client.put("/queues/idle", {})
        client.post("/queues/idle/messages", {"payload": 1})

        def rounds() -> int:
            lines = server.get("/metrics")[1].decode().splitlines()
            [line] = [each for each in lines if each.startswith("openq_alert_evaluation_seconds_count")]
            return int(line.split()[1])

        until(lambda: rounds() >= 5)
        found = [each for each in alerts(client, state="firing") if each["alert"] != "disk-filling"]

    assert found == []
    assert [line for line in server.log if "Traceback" in line] == []


def test_a_wrong_configuration_does_not_replace_the_running_one(tmp_path: Path, receiving: Receivers) -> None:
    file = receiving.write(tmp_path, QUICK)
    with served(None, "--config", str(file)) as server:
        client = Client(server.url)
        before = client.get("/alerts/rules/many").value
        file.write_text(file.read_text().replace("queue.ready >= n", "queue.redy >= n"))
        refused = client.post("/server/reload")
        assert refused.status >= 400
        assert client.get("/alerts/rules/many").value == before
        file.write_text(file.read_text().replace("queue.redy >= n", "queue.ready >= 2 * n"))
        report = client.post("/server/reload").value
        until(lambda: "2 * n" in client.get("/alerts/rules/many").value["expression"])

    assert any("alerts.rules.many" in each for each in report["changed"])
    assert [each for each in CANARIES if each in json.dumps(report) + "".join(server.log)] == []
