"""`openq webhook`, and `[webhooks.NAME]` in the configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from openq.config import ConfigError, load
from tests.cli.helpers import Cli, run_in_process
from tests.http_endpoint import Endpoint, answer
from tests.rest.helpers import Client
from tests.serving import Served, served
from tests.waiting import until
from tests.webhooks.helpers import publish, show, stats, until_acked


@pytest.fixture
def cli(webhook_server: Served, name: str) -> Cli:
    return Cli(webhook_server.url, name)


def test_a_webhook_is_added_tested_and_removed(
    cli: Cli, client: Client, name: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    added = cli("webhook", "add", name, f"{endpoint.url}/hook", "--queue", name, "--header", "X-Key=hush").out
    assert added.startswith(f"webhook {name} added: messages of {name} -> {endpoint.url}/hook\nwhsec_")
    secret = added.splitlines()[1].split()[0]
    again = cli("webhook", "add", name, f"{endpoint.url}/hook", "--queue", name, "--concurrency", "2").out
    assert again == f"webhook {name} declared: messages of {name} -> {endpoint.url}/hook\n"

    publish(client, name, "x")
    until_acked(client, name, 1)
    listed = cli("webhook", "ls", name).out
    assert f"messages of {name}" in listed
    assert "running" in listed
    shown = cli("webhook", "show", name).out
    assert "concurrency   2" in shown
    assert secret not in shown
    tested = cli("webhook", "test", name).out
    assert "status    200" in tested
    log = cli("webhook", "log", name).out
    assert "delivered" in log
    assert " 200 " in log

    file = tmp_path / "secret"
    file.write_text("whsec_" + "B" * 32 + "\n")
    rotated = cli("webhook", "rotate", name, "--keep", "1h", "--secret-file", str(file)).out
    assert rotated.startswith(f"webhook {name} has a new secret; the old one is valid until ")
    assert "whsec_" not in rotated
    assert "whsec_" in cli("webhook", "rotate", name).out
    replayed = cli("webhook", "replay", name, "--since", "1h").out
    assert replayed == "webhook-replay: 1 message\n"

    assert "is disabled" in cli("webhook", "disable", name, "--reason", "tea").out
    assert cli.json("webhook", "show", name)["reason"] == "tea"
    assert "is enabled" in cli("webhook", "enable", name).out
    assert cli("webhook", "rm", name).out == f"webhook {name} removed\n"
    assert name not in cli("webhook", "ls").out


def test_a_failed_test_fails_the_command(cli: Cli, name: str, endpoint: Endpoint) -> None:
    endpoint.respond = lambda handler: answer(handler, 500, b"no")
    cli("webhook", "add", name, endpoint.url, "--queue", name)
    done = cli("webhook", "test", name, code=1)
    assert "status    500" in done.out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["add", "w", "https://1.1.1.1/"], "give --queue QUEUE for messages, or --events PATTERN for events"),
        (["replay", "w"], "give --since 2h, or --id ID"),
        (["rotate", "w", "--secret-file", "/no/such/file"], "cannot read the secret"),
    ],
)
def test_what_is_missing_is_named(cli: Cli, words: list[str], error: str) -> None:
    assert error in cli("webhook", *words, code=2).err


def test_the_file_declares_webhooks(tmp_path: Path, endpoint: Endpoint) -> None:
    secret = "whsec_" + "C" * 32
    (tmp_path / "secret").write_text(secret)
    file = tmp_path / "openq.toml"
    file.write_text(
        f"""
        webhook_allow = ["127.0.0.0/8"]
        [queues.orders]
        [webhooks.shop]
        queue = "orders"
        url = "{endpoint.url}/shop"
        secret_file = "{tmp_path}/secret"
        headers = {{ "X-Key" = "hush" }}
        timeout = "5s"
        """
    )
    data = tmp_path / "data"
    for turn in (1, 2):
        with served(data, "--config", str(file)) as server:
            client = Client(server.url)
            publish(client, "orders", turn)
            until(lambda turn=turn: len(endpoint.seen) == turn)
            shown = show(client, "shop")
            assert (shown["timeout"], shown["concurrency"], len(shown["secrets"])) == (5, 8, 1)
            until(lambda client=client: stats(client, "orders")["in_flight"] == 0)
    assert endpoint.seen[0][1]["X-Key"] == "hush"
    printed = run_in_process("config", "show", "--config", str(file)).out
    assert "webhooks.shop" in printed
    assert "hush" not in printed
    assert secret not in printed
    assert "shop" in run_in_process("webhook", "ls", "--data", str(data)).out


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ('queue = "q"', "the URL is missing"),
        ('url = "https://example.com"', "give either queue or events"),
        ('url = "example.com"\nqueue = "q"', "a URL such as"),
        ('url = "https://example.com"\nqueue = "q"\nmode = "xml"', "must be raw, json"),
        ('url = "https://example.com"\nqueue = "q"\ncolour = "red"', "a webhook has no key 'colour'"),
        ('url = "https://example.com"\nqueue = "q"\nsecret = "hush-hush"', "must be whsec_"),
        ('url = "https://example.com"\nevents = { colour = 1 }', "a table with queues"),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, table: str, error: str) -> None:
    file = tmp_path / "openq.toml"
    file.write_text(f"[webhooks.shop]\n{table}\n")
    with pytest.raises(ConfigError, match=r"webhooks\.shop") as raised:
        load(file=file)
    assert error in str(raised.value)
    assert "hush" not in str(raised.value)


def test_networks_to_allow_are_checked() -> None:
    assert load({"webhook_allow": "10.0.0.0/8,Inside"}).webhook_allow == ("10.0.0.0/8", "inside")
    with pytest.raises(ConfigError, match="webhook-allow"):
        load({"webhook_allow": "10.0.0.0/33"})
