"""The commands that talk to a server, against a real one."""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openq import OpenQ
from openq.client.http import HttpClient
from tests.certificates import make_certificate
from tests.cli.helpers import OPENQ, CommandResult, openq, run_in_process, run_on_terminal
from tests.client.lossy_proxy import LossyProxy
from tests.serving import Served, free_port, served, until


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


class Cli:
    """`openq` with the address of a server, and queues that no other test has."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name

    def __call__(
        self, *words: str | Path, answer: str | bytes = "", code: int = 0, **environment: str
    ) -> CommandResult:
        done = run_in_process(*words, answer=answer, OPENQ_URL=self.url, **environment)
        assert done.code == code, done
        return done

    def json(self, *words: str, **options: Any) -> Any:
        return json.loads(self(*words, "--json", **options).out)

    def lines(self, *words: str, **options: Any) -> list[Any]:
        return [json.loads(line) for line in self(*words, "--json", **options).out.splitlines()]

    def counts(self, queue: str) -> tuple[int, int, int]:
        stats = self.json("queue", "show", queue)["stats"]
        return stats["ready"], stats["delayed"], stats["in_flight"]


@pytest.fixture
def cli(server: Served, request: pytest.FixtureRequest) -> Cli:
    return Cli(server.url, f"{request.node.name}-{os.urandom(3).hex()}")


@pytest.fixture
def q(cli: Cli) -> str:
    cli("queue", "create", cli.name)
    return cli.name


# -- queues -------------------------------------------------------------------------------------


def test_a_queue_is_created_once(cli: Cli) -> None:
    assert cli("queue", "create", cli.name).out == f"queue {cli.name} created\n"
    assert cli("queue", "create", cli.name).out == f"queue {cli.name} was there already\n"
    refused = cli("queue", "create", cli.name, "--delay", "5s", code=1)
    assert "exists with other settings" in refused.err
    assert "openq queue edit" in refused.err
    assert "was there" in cli("queue", "create", cli.name, "--delay", "5s", "--if-absent").out


def test_settings_are_given_with_units_and_shown_again(cli: Cli) -> None:
    words = ["--visibility-timeout", "2m", "--retention", "14d", "--max-bytes", "1MiB", "--fifo"]
    words += ["--retry", "fixed", "--overflow", "reject", "--no-relaxed"]
    made = cli.json("queue", "create", cli.name, *words)["settings"]

    assert (made["visibility_timeout"], made["retention"], made["max_bytes"]) == (120, 14 * 86400, 1 << 20)
    assert (made["fifo"], made["retry"]["kind"], made["overflow"]) == (True, "fixed", "reject")
    shown = cli("queue", "show", cli.name).out
    assert "visibility timeout    2 min" in shown
    assert "max bytes             1.0 MiB" in shown


def test_a_dead_letter_queue_is_created_with_its_queue(cli: Cli) -> None:
    done = cli("queue", "create", cli.name, "--dlq", f"{cli.name}-dead")

    assert f"queue {cli.name}-dead created for its dead letters" in done.err
    assert cli.json("queue", "show", cli.name)["settings"]["max_receives"] == 3
    assert cli.counts(f"{cli.name}-dead") == (0, 0, 0)


def test_settings_are_changed_one_by_one(cli: Cli, q: str) -> None:
    cli("queue", "edit", q, "--delay", "3s")
    changed = cli.json("queue", "edit", q, "--dlq", f"{q}-dead", "--max-receives", "7")["settings"]
    without = cli.json("queue", "edit", q, "--no-dlq")["settings"]

    assert (changed["delay"], changed["dlq"], changed["max_receives"]) == (3, f"{q}-dead", 7)
    assert (without["delay"], without["dlq"], without["max_receives"]) == (3, None, None)
    assert "name at least one setting" in cli("queue", "edit", q, code=2).err
    assert "contradicts" in cli("queue", "edit", q, "--no-dlq", "--dlq", "x", code=2).err
    assert "does not exist" in cli("queue", "edit", "nowhere", "--dlq", "other", code=3).err
    assert not cli.lines("queue", "ls", "other")


def test_an_edit_tells_what_changed_and_nothing_else(cli: Cli, q: str) -> None:
    changed = cli("queue", "edit", q, "--delay", "3s", "--dedup-by-content", "--visibility-timeout", "30")

    assert [line.split() for line in changed.out.splitlines()] == [
        ["delay", "3", "s", "(was", "0", "s)"],
        ["dedup", "by", "content", "yes", "(was", "no)"],
    ]
    again = cli("queue", "edit", q, "--delay", "3s")
    assert (again.out, "nothing changed" in again.err) == ("", True)


def test_a_queue_is_not_its_own_dead_letter_queue(cli: Cli) -> None:
    assert "its own dead-letter queue" in cli("queue", "create", cli.name, "--dlq", cli.name, code=2).err
    cli("queue", "show", cli.name, code=3)


def test_a_dry_run_tells_that_a_queue_is_not_empty(cli: Cli, q: str) -> None:
    assert "0 messages would be removed" in cli("queue", "rm", q, "--if-empty", "--dry-run").out
    cli("send", q, "x")

    told = cli("queue", "rm", q, "--if-empty", "--dry-run", code=1)
    assert "dry run: this would be refused" in told.err
    assert "it holds 1 messages" in told.err


def test_queues_are_listed_by_prefix(cli: Cli, q: str) -> None:
    cli("send", q, "x")
    cli("queue", "create", f"{q}-2", "--fifo")

    assert [row["name"] for row in cli.lines("queue", "ls", q)] == [q, f"{q}-2"]
    heads, first, second = cli("queue", "ls", q).out.splitlines()
    assert heads.split()[:2] == ["queue", "ready"]
    assert first.split()[:4] == [q, "1", "0", "0"]
    assert second.endswith("fifo")
    assert "there are no queues that begin with" in cli("queue", "ls", f"{q}-none").err


def test_more_queues_than_one_page_are_all_listed(server: Served, cli: Cli) -> None:
    with HttpClient(server.url) as connection:
        for number in range(1005):
            connection.request("PUT", f"/api/v1/queues/page-{number:04}", b"{}").raise_for_status()

    assert len(cli.lines("queue", "ls", "page-")) == 1005


def test_a_paused_queue_hands_out_nothing(cli: Cli, q: str) -> None:
    cli("send", q, "x")

    cli("queue", "pause", q)
    cli("recv", q, code=5)
    assert "paused" in cli("queue", "ls", q).out
    cli("queue", "resume", q)
    assert cli("recv", q).out == "x\n"


@pytest.mark.parametrize("verb", ["purge", "rm"])
def test_what_destroys_asks_and_without_a_terminal_does_nothing(cli: Cli, q: str, verb: str) -> None:
    cli("send", q, "--lines", answer="a\nb\n")

    assert "2 messages would be removed" in cli("queue", verb, q, "--dry-run").out
    assert cli.json("queue", verb, q, "--dry-run") == {"messages": 2, "dry_run": True}
    refused = cli("queue", verb, q, code=2)
    assert "2 messages" in refused.err
    assert "nothing was changed: give --yes" in refused.err
    assert cli.counts(q) == (2, 0, 0)
    assert cli.json("queue", verb, q, "--yes")["messages"] == 2
    assert cli("queue", "show", q, code=3 if verb == "rm" else 0)


@pytest.mark.parametrize(("typed", "left"), [("n\n", 1), ("\n", 1), ("y\n", 0)])
def test_on_a_terminal_the_question_names_the_count(cli: Cli, q: str, typed: str, left: int) -> None:
    cli("send", q, "x")
    code, seen = run_on_terminal("queue", "purge", q, typed=typed, OPENQ_URL=cli.url)

    assert f"Remove 1 message from {q}? [y/N]" in seen
    assert code == (2 if left else 0)
    assert cli.counts(q)[0] == left


def test_a_queue_that_is_not_empty_stays_if_that_was_asked(cli: Cli, q: str) -> None:
    cli("send", q, "x")

    cli("queue", "rm", q, "--if-empty", "--yes", code=1)
    assert cli.counts(q) == (1, 0, 0)


@pytest.mark.parametrize("name", ["a/b", "..", "x y?z=1&#", "ünï", "%2F", "semi;colon"])
def test_any_name_is_a_queue(cli: Cli, name: str) -> None:
    queue = f"{name}-{os.urandom(3).hex()}" if name != ".." else ".."
    cli("queue", "create", queue)
    cli("send", queue, "x")

    assert cli("recv", queue, "--ack").out == "x\n"
    cli("queue", "rm", queue, "--yes")


# -- sending and receiving ----------------------------------------------------------------------


def test_a_message_goes_in_and_comes_out_as_it_was(cli: Cli, q: str) -> None:
    sent = cli("send", q, "häl\tlo").out.strip()
    [got] = cli.lines("recv", q)

    assert (got["id"], got["payload"], got["receive_count"]) == (sent, "häl\tlo", 1)


def test_without_ack_a_message_stays_and_with_it_it_goes(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="a\nb\n")

    kept = cli("recv", q)
    assert kept.out == "a\n"
    assert "not acknowledged" in kept.err
    taken = cli("recv", q, "--ack")
    assert (taken.out, taken.err) == ("b\n", "")
    assert cli.counts(q) == (0, 0, 1)


def test_a_message_that_could_not_be_written_is_not_acknowledged(cli: Cli, q: str) -> None:
    cli("send", q, "precious")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*OPENQ, "recv", q, "--ack"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env={**os.environ, "OPENQ_URL": cli.url},
        )
    finally:
        os.close(writing)

    assert "Traceback" not in done.stderr
    assert cli.counts(q) == (0, 0, 1)


def test_nothing_to_receive_is_exit_code_5(cli: Cli, q: str) -> None:
    assert "nothing in" in cli("recv", q, code=5).err
    assert "within 0.05 s" in cli("recv", q, "--wait", "50ms", code=5).err
    cli("peek", q, code=5)


def test_where_the_messages_are_is_said_if_none_can_be_received(cli: Cli, q: str) -> None:
    cli("send", q, "a", "--delay", "1h")
    assert cli("recv", q, code=5).err == f"openq: no message of {q} is ready: 1 delayed\n"
    cli("send", q, "b")
    cli("recv", q)
    assert (
        cli("recv", q, "--wait", "50ms", code=5).err
        == f"openq: no message of {q} is ready within 0.05 s: 1 in flight and 1 delayed\n"
    )
    cli("search", q, "x", code=5)


def test_waiting_ends_when_a_message_comes(cli: Cli, q: str) -> None:
    waiting = subprocess.Popen(
        [*OPENQ, "recv", q, "--wait", "60s", "--ack"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENQ_URL": cli.url},
    )
    until(lambda: cli.json("queue", "show", q)["stats"]["waiters"] == 1)
    cli("send", q, "at last")
    out, _ = waiting.communicate(timeout=60)

    assert (waiting.returncode, out) == (0, "at last\n")


def test_many_lines_are_many_messages(cli: Cli, q: str) -> None:
    lines = "".join(f"line {number}\r\n" for number in range(2500)) + "\nlast"

    assert cli("send", q, "--lines", answer=lines).out == "2501 messages sent\n"
    got = cli("recv", q, "-n", "3000", "--ack").out.splitlines()
    assert got == [*(f"line {number}" for number in range(2500)), "last"]
    assert cli.counts(q) == (0, 0, 0)


def test_everything_that_a_message_can_be_sent_with(cli: Cli, q: str) -> None:
    words = ["--as", "json", "--type", "order", "--priority", "7", "--group", "g", "--ttl", "1h"]
    words += ["--attribute", "shop=eu", "--attribute", "n:=5"]
    cli("send", q, '{"total": 12}', *words)
    [got] = cli.lines("recv", q)

    assert got["payload"] == {"total": 12}
    assert (got["message_type"], got["priority"], got["group"]) == ("order", 7, "g")
    assert got["attributes"] == {"shop": "eu", "n": 5}


def test_a_delayed_message_waits(cli: Cli, q: str) -> None:
    identity = cli("send", q, "later", "--delay", "1h").out.strip()

    assert cli.counts(q) == (0, 1, 0)
    assert cli("why", q, identity).out.startswith("due in ")
    assert "later" in cli("peek", q, "--state", "delayed").out


def test_the_same_deduplication_id_is_one_message(cli: Cli, q: str) -> None:
    first = cli("send", q, "x", "--dedup-id", "one")
    again = cli("send", q, "x", "--dedup-id", "one")

    assert first.out == again.out
    assert "not added" in again.err
    assert cli.counts(q) == (1, 0, 0)


def test_a_body_comes_from_stdin_or_from_a_file(cli: Cli, q: str, tmp_path: Path) -> None:
    file = tmp_path / "photo"
    file.write_bytes(b"\x89PNG\xff\x00")
    cli("send", q, answer="from stdin\n")
    cli("send", q, "-", answer="dash")
    cli("send", q, "--file", file)
    cli("send", q, "AQID/w==", "--as", "base64")
    got = [row["payload"] for row in cli.lines("recv", q, "-n", "9")]

    assert got == ["from stdin\n", "dash", base64.b64encode(b"\x89PNG\xff\x00").decode(), "AQID/w=="]


def test_bytes_come_out_as_bytes(cli: Cli, q: str, tmp_path: Path) -> None:
    file = tmp_path / "photo"
    file.write_bytes(b"\x89PNG\xff\x00")
    cli("send", q, "--file", file)
    done = subprocess.run(
        [*OPENQ, "recv", q], capture_output=True, timeout=60, env={**os.environ, "OPENQ_URL": cli.url}
    )

    assert done.stdout == b"\x89PNG\xff\x00\n"


def test_on_a_terminal_a_body_cannot_play_tricks(cli: Cli, q: str) -> None:
    cli("send", q, "\x1b[2Jgone\x07")
    _, seen = run_on_terminal("recv", q, OPENQ_URL=cli.url)

    assert "\\x1b[2Jgone\\x07" in seen


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{", "--as", "json"], "the message is not JSON"),
        (["5", "--as", "message"], "a message is a JSON object with a payload"),
        (["x", "--lines"], "not both"),
        (["x", "--file", "y"], "not both"),
        (["x", "--attribute", "n:=five"], "attribute n is not JSON"),
    ],
)
def test_what_cannot_be_sent_is_wrong_usage(cli: Cli, q: str, words: list[str], message: str) -> None:
    assert message in cli("send", q, *words, code=2).err
    assert cli.counts(q) == (0, 0, 0)


def test_a_refused_message_does_not_stop_the_others(cli: Cli) -> None:
    cli("queue", "create", cli.name, "--max-body", "5")
    done = cli("send", cli.name, "--lines", answer="short\nmuch too long\nok\n", code=1)

    assert done.out == "2 messages sent, 1 refused\n"
    assert done.err.count("refused: ") == 1


def test_receipts_are_acknowledged_and_given_back(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="a\nb\n")
    first, second = (row["receipt_id"] for row in cli.lines("recv", q, "-n", "2"))

    assert cli("ack", q, first).out == "1 message acknowledged\n"
    assert cli("nack", q, second, "--reason", "not today", "--delay", "1h").out == "1 message given back\n"
    assert cli.counts(q) == (0, 1, 0)
    assert "is not in queue" in cli("ack", q, first, code=3).err
    assert "is not in queue" in cli("nack", q, first, "nonsense", code=3).err


def test_options_may_stand_anywhere_among_the_words(cli: Cli, q: str) -> None:
    assert cli("send", q, "--priority", "5", "keep me").out.strip()
    assert json.loads(cli("send", q, "--json", "other").out)["id"]
    cli("send", "--type", "x", q, "--", "--json")

    [found] = [json.loads(line) for line in cli("search", q, "--json", "keep").out.splitlines()]
    assert (found["payload"], found["priority"]) == ("keep me", 5)
    bodies = [row["payload"] for row in cli.lines("recv", "-n", "9", q)]
    assert bodies == ["keep me", "other", "--json"]


def test_an_empty_input_is_no_message_but_an_empty_word_is(cli: Cli, q: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()

    assert "there is nothing to send" in cli("send", q, code=2).err
    assert "there is nothing to send" in cli("send", q, "--file", empty, code=2).err
    assert cli.counts(q) == (0, 0, 0)
    cli("send", q, "")
    assert [row["payload"] for row in cli.lines("peek", q)] == [""]


def test_a_rejected_message_is_a_dead_letter(cli: Cli) -> None:
    cli("queue", "create", cli.name, "--dlq", f"{cli.name}-dead")
    cli("send", cli.name, "x")
    [got] = cli.lines("recv", cli.name)

    assert (
        cli("nack", cli.name, got["receipt_id"], "--reject", "--reason", "bad").out == "1 message rejected\n"
    )
    [letter] = cli.lines("dlq", "ls", f"{cli.name}-dead")
    assert (letter["id"], letter["source"], letter["reason"]) == (got["id"], cli.name, "bad")


# -- looking ------------------------------------------------------------------------------------


def test_peeking_changes_nothing(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="".join(f"{number}\n" for number in range(20)))

    assert [row["payload"] for row in cli.lines("peek", q, "-n", "3")] == ["0", "1", "2"]
    assert [row["payload"] for row in cli.lines("peek", q, "-n", "1", "--rear")] == ["19"]
    assert len(cli.lines("peek", q)) == 10
    assert cli("peek", q, "-n", "1").out.endswith("  0\n")
    assert cli.counts(q) == (20, 0, 0)
    assert cli.lines("recv", q)[0]["receive_count"] == 1


def test_peeking_tells_who_has_a_message(cli: Cli, q: str) -> None:
    cli("send", q, "busy")
    with HttpClient(cli.url) as connection:
        taken = connection.request("POST", f"/api/v1/queues/{q}/receive", b'{"consumer": "mill"}')
    assert taken.status == 200
    assert "in flight with mill, received 1x" in cli("peek", q, "--state", "in_flight").out


def test_peeking_tells_why_nothing_is_shown(cli: Cli, q: str) -> None:
    assert cli("peek", q, code=5).err == f"openq: nothing found in {q}\n"
    cli("send", q, "later", "--delay", "1h")
    cli("send", q, "busy")
    cli("recv", q)

    told = cli("peek", q, code=5).err
    others = "1 in flight (--state in_flight) and 1 delayed (--state delayed)"
    assert told == f"openq: no message of {q} is ready: {others}\n"
    assert cli("peek", q, "--state", "in_flight").out.endswith("busy\n")


def test_a_dead_letter_tells_where_it_is_and_why(cli: Cli) -> None:
    dead = f"{cli.name}-dead"
    cli("queue", "create", cli.name, "--dlq", dead, "--max-receives", "1")
    with OpenQ(cli.name, url=cli.url) as queue:
        sent = queue.publish("bolts")
        with pytest.raises(LookupError), queue.processing():
            raise LookupError("no bolts")

    assert f"it is in queue {dead!r} since" in cli("why", cli.name, sent).out
    [letter] = cli.lines("dlq", "ls", dead)
    assert letter["reason"] == "LookupError: no bolts"
    assert "traceback" not in letter
    assert cli.lines("dlq", "ls", dead, "--traceback")[0]["traceback"].endswith("LookupError: no bolts")
    assert '  raise LookupError("no bolts")' in cli("dlq", "ls", dead, "--traceback").out
    assert '  raise LookupError("no bolts")' in cli("timeline", cli.name, sent).out
    assert cli.lines("peek", dead)[0]["traceback"].startswith("Traceback (most recent call last)")


def test_a_queue_that_keeps_messages_for_ever_says_so(cli: Cli) -> None:
    with HttpClient(cli.url) as connection:
        made = connection.request("PUT", f"/api/queues/%2F/{cli.name}", b'{"durable": true}')
    assert made.status == 201
    shown = dict(line.split("  ", 1) for line in cli("queue", "show", cli.name).out.splitlines())
    assert shown["retention"].strip() == "for ever"
    assert cli.json("queue", "show", cli.name)["settings"]["retention"] is None


def test_for_ever_is_a_word_on_the_command_line_and_null_in_json(cli: Cli) -> None:
    cli("queue", "create", cli.name, "--retention", "forever", "--dlq", "forever")

    settings = cli.json("queue", "show", cli.name)["settings"]

    assert (settings["retention"], settings["dlq"]) == (None, "forever")
    assert "retention" in cli("queue", "edit", cli.name, "--retention", "0", code=2).err


def test_more_messages_than_one_page_are_all_peeked(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="".join(f"{number}\n" for number in range(2100)))

    assert [row["payload"] for row in cli.lines("peek", q, "-n", "5000")] == [str(n) for n in range(2100)]


def test_messages_are_found_by_what_they_are(cli: Cli, q: str) -> None:
    cli("send", q, '{"order": {"total": 12}}', "--as", "json", "--type", "order", "--attribute", "shop=eu")
    cli("send", q, '{"order": {"total": 13}}', "--as", "json", "--type", "order", "--attribute", "shop=us")
    cli("send", q, "alice@example")

    def totals(*words: str) -> list[int]:
        return [row["payload"]["order"]["total"] for row in cli.lines("search", q, *words)]

    assert totals("--where", "order.total=12") == [12]
    assert totals("--attribute", "shop=us") == [13]
    assert totals("--type", "order", "-n", "9") == [12, 13]
    assert "alice@example" in cli("search", q, "alice@").out
    assert "there may be more" in cli("search", q, "--type", "order", "-n", "1").err


def test_the_story_of_a_message(cli: Cli, q: str) -> None:
    identity = cli("send", q, "x").out.strip()
    cli("recv", q, "--ack")

    assert [step["what"] for step in cli.json("timeline", q, identity)["steps"]] == [
        "published",
        "delivered",
        "acked",
    ]
    assert "published" in cli("timeline", q, identity).out
    assert cli("why", q, identity, code=3).out.startswith("message ")


def test_tail_shows_what_was_published_also_after_it_was_consumed(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="a\nb\nc\n")
    cli("recv", q, "-n", "3", "--ack")

    assert [row["payload"] for row in cli.lines("tail", q)] == ["a", "b", "c"]
    assert [row["payload"] for row in cli.lines("tail", q, "-n", "2", "--since", "1h")] == ["b", "c"]
    assert cli("tail", q, "-n", "1").out.endswith("  c\n")
    cli("tail", f"{q}-nowhere", code=3)


def test_tail_of_a_queue_without_messages_says_so(cli: Cli, q: str) -> None:
    done = cli("tail", q, code=5)

    assert done.out == ""
    assert done.err.startswith(f"openq: nothing was published in {q} since 20")
    assert "nothing was published" in cli("tail", q, "-n", "5", "--json", code=5).err


def test_the_timeline_of_an_unknown_message_is_exit_code_3(cli: Cli, q: str) -> None:
    assert f"no message nope is known in {q}" in cli("timeline", q, "nope", code=3).err
    assert json.loads(cli("timeline", q, "nope", "--json", code=3).out)["steps"] == []


@pytest.mark.parametrize("words", [("queue", "ls"), ("healthcheck",), ("pipeline", "analytics")])
def test_an_address_that_is_none_is_wrong_usage_and_named(words: tuple[str, ...]) -> None:
    flag = run_in_process(*words, "--url", "nonsense://x", OPENQ_URL="http://127.0.0.1:1")
    environment = run_in_process(*words, OPENQ_URL="nonsense://x")
    port = run_in_process(*words, "--url", "http://ann:secret@127.0.0.1:99999")

    assert [done.code for done in (flag, environment, port)] == [2, 2, 2]
    assert "openq: --url nonsense://x: an address looks like" in flag.err
    assert "openq: OPENQ_URL nonsense://x: an address looks like" in environment.err
    assert "openq: --url http://127.0.0.1:99999: the port must be" in port.err


@pytest.mark.parametrize(
    "words",
    [
        ("import", "rabbitmq-definitions", "nowhere"),
        ("pipeline", "run", "nowhere"),
        ("pipeline", "analytics", "--data", "nowhere"),
        ("pipeline", "triage", "--data", "nowhere"),
        ("pipeline", "redrive", "orders", "--dry-run", "--data", "nowhere"),
    ],
)
def test_a_file_or_directory_that_is_missing_is_exit_code_3(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_in_process(*words)

    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
    assert done.err.startswith("openq: nowhere: no such ")
    assert ("--data" in words) == ("correct --data, or give --url" in done.err)


def test_the_help_names_every_exit_code() -> None:
    from openq.cli import terminal

    line = run_in_process("--help").out.splitlines()[-1]
    for code in ("OK", "FAILED", "USAGE", "NOT_FOUND", "DENIED", "EMPTY", "INTERRUPTED"):
        assert f" {getattr(terminal, code)} " in line


def test_tail_follows_until_it_is_interrupted(cli: Cli, q: str) -> None:
    cli("send", q, "before")
    following = subprocess.Popen(
        [*OPENQ, "tail", "-f", q, "--json", "--since", "1h"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENQ_URL": cli.url},
    )
    assert following.stdout is not None
    assert json.loads(following.stdout.readline())["payload"] == "before"
    cli("send", q, "after")
    assert json.loads(following.stdout.readline())["payload"] == "after"
    following.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=60)

    assert following.returncode == 130
    assert "Traceback" not in err
    assert cli.counts(q) == (2, 0, 0)


# -- dead letters, replay, tasks ----------------------------------------------------------------


@pytest.fixture
def dead(cli: Cli) -> str:
    """A dead-letter queue with four letters: three timeouts, one that is bad."""
    cli("queue", "create", cli.name, "--dlq", f"{cli.name}-dead")
    cli("send", cli.name, "--lines", answer="a\nb\nc\nd\n")
    for number, row in enumerate(cli.lines("recv", cli.name, "-n", "4")):
        reason = f"timeout after {number} ms" if number < 3 else "bad"
        cli("nack", cli.name, row["receipt_id"], "--reject", "--reason", reason)
    return f"{cli.name}-dead"


def test_dead_letters_are_listed_and_grouped(cli: Cli, dead: str) -> None:
    [row] = [row for row in cli.lines("dlq", "ls") if row["queue"] == dead]
    assert (row["messages"], row["sources"]) == (4, [cli.name])
    assert dead in cli("dlq", "ls").out
    assert len(cli.lines("dlq", "ls", dead)) == 4
    assert len(cli.lines("dlq", "ls", dead, "-n", "2")) == 2
    groups = {group["count"]: group for group in cli.json("dlq", "groups", dead)["groups"]}
    assert groups.keys() == {3, 1}
    assert "timeout after" in cli("dlq", "groups", dead).out
    cli("dlq", "groups", cli.name, code=5)
    cli("dlq", "ls", cli.name, code=5)


def test_dead_letters_go_back_to_where_they_failed(cli: Cli, dead: str) -> None:
    assert "send 3 messages of" in cli("dlq", "redrive", dead, "--reason", "timeout", "--dry-run").out
    assert "send 4 messages of" in cli("dlq", "redrive", dead, code=2).err
    assert cli.counts(dead) == (4, 0, 0)

    assert cli("dlq", "redrive", dead, "--reason", "timeout", "--yes").out == "redrive: 3 messages\n"
    assert (cli.counts(dead), cli.counts(cli.name)) == ((1, 0, 0), (3, 0, 0))
    assert cli.json("dlq", "redrive", dead, "--to", cli.name, "--yes")["done"] == 1
    assert cli.counts(cli.name) == (4, 0, 0)


def test_on_a_terminal_a_redrive_asks_with_the_count(cli: Cli, dead: str) -> None:
    code, seen = run_on_terminal("dlq", "redrive", dead, typed="y\n", OPENQ_URL=cli.url)

    assert f"Send 4 messages of {dead} back to where they failed? [y/N]" in seen
    assert code == 0
    assert cli.counts(dead) == (0, 0, 0)
    assert "nothing to do" in cli("dlq", "redrive", dead).err


def test_dead_letters_are_discarded_for_good(cli: Cli, dead: str) -> None:
    assert cli("dlq", "discard", dead, "--text", "d", "--yes").out == "discard: 1 message\n"
    assert [row["payload"] for row in cli.lines("peek", dead)] == ["a", "b", "c"]


def test_live_messages_are_no_dead_letters(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="a\nb\n")

    assert "remove 0 messages" in cli("dlq", "discard", q, "--dry-run").out
    assert cli("dlq", "discard", q, "--yes").out == "discard: 0 messages\n"
    assert cli("dlq", "redrive", q, "--yes").out == "redrive: 0 messages\n"
    assert cli.counts(q) == (2, 0, 0)


def test_what_was_exported_can_be_sent_again(cli: Cli, dead: str, tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    exported = cli("dlq", "export", dead)
    rows = [json.loads(line) for line in exported.out.splitlines()]

    assert [row["payload"] for row in rows] == ["a", "b", "c", "d"]
    assert rows[0]["deaths"][0]["reason"] == "timeout after 0 ms"
    assert "4 messages exported; nothing was removed" in exported.err
    cli("dlq", "export", dead, "--out", file)
    assert file.read_text() == exported.out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    cli("dlq", "export", dead, "--out", file, code=1)
    cli("dlq", "discard", dead, "--yes")
    cli("send", cli.name, "--lines", "--as", "message", "--file", file)
    assert {row["id"] for row in cli.lines("recv", cli.name, "-n", "9")} == {row["id"] for row in rows}


def test_more_than_one_page_is_exported_whole(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="".join(f"{number}\n" for number in range(2345)))

    rows = [json.loads(line)["payload"] for line in cli("dlq", "export", q).out.splitlines()]
    assert rows == [str(number) for number in range(2345)]


def test_what_was_consumed_is_replayed(cli: Cli, q: str) -> None:
    first, second = (row for row in ("a", "b"))
    cli("send", q, first)
    since = cli("send", q, second).out.strip()
    cli("recv", q, "-n", "2", "--ack")

    assert "publish 2 messages again" in cli("replay", q, "--since", "1h", "--dry-run").out
    assert cli("replay", q, "--since-id", since, "--yes").out == "replay: 1 message\n"
    assert cli("queue", "purge", q, "--yes").code == 0
    assert cli("replay", q, "--since-id", since, "--yes").out == "replay: 0 messages\n"
    again = cli("replay", q, "--since-id", since, "--include-purged", "--yes")
    assert again.out == "replay: 1 message\n"
    assert (
        cli("replay", q, "--since", "1h", "--yes").out == "replay: 1 message\n"
    )  # the other is there already
    assert cli.counts(q) == (2, 0, 0)
    cli("queue", "create", f"{q}-2")
    assert cli.json("replay", q, "--text", "a", "--to", f"{q}-2", "--yes")["done"] == 1
    assert "from where?" in cli("replay", q, code=2).err
    assert "not both" in cli("replay", q, "--since", "1h", "--since-id", "x", code=2).err


def test_a_watched_task_goes_on_after_an_interrupt(cli: Cli, dead: str) -> None:
    watching = subprocess.Popen(
        [*OPENQ, "dlq", "redrive", dead, "--rate", "0.1", "--yes"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENQ_URL": cli.url},
    )

    def task() -> Any:
        return next((row for row in cli.lines("task", "ls") if row["queue"] == dead), None)

    until(lambda: task() is not None and cli.counts(dead)[0] < 4)
    watching.send_signal(signal.SIGINT)
    out, err = watching.communicate(timeout=60)
    identity = task()["id"]

    assert (watching.returncode, out) == (130, "")
    assert f"openq task watch {identity}" in err
    assert f"openq task cancel {identity}" in err
    assert task()["state"] == "running"
    cli("task", "cancel", identity)
    ended = cli("task", "watch", identity, code=1)
    assert "redrive cancelled after" in ended.err
    assert "nothing to cancel: it was cancelled, after" in cli("task", "cancel", identity, code=1).err
    assert identity in cli("task", "ls").out


def test_a_task_can_be_started_and_left_alone(cli: Cli, dead: str) -> None:
    identity = cli("dlq", "redrive", dead, "--yes", "--no-wait").out.strip()

    assert cli("task", "watch", identity).out == "redrive: 4 messages\n"
    assert cli.json("task", "watch", identity)["state"] == "done"
    cli("task", "watch", "nothing", code=3)


# -- the server itself --------------------------------------------------------------------------


def test_the_shortest_demo_is_one_round(cli: Cli) -> None:
    assert cli.json("demo", "--seconds", "0")["published"] > 0
    cli("demo", "--remove", "--yes")


def test_the_demo_leaves_something_to_look_at_and_goes_again(cli: Cli) -> None:
    told = cli.json("demo", "--seconds", "1")

    assert told["published"] > told["done"] > 0
    assert [row["name"] for row in cli.lines("queue", "ls", "demo-")] == sorted(told["queues"])
    assert cli.counts("demo-mails") == (4, 6, 2)
    assert "of the demo with" in cli("demo", "--remove", code=2).err
    assert "4 queues removed" in cli("demo", "--remove", "--yes").out
    assert "there is nothing of the demo here" in cli("demo", "--remove", "--yes").err


def test_health_is_an_exit_code(cli: Cli) -> None:
    assert cli("healthcheck").out.startswith("ready")
    assert cli("healthcheck", "--live").out == "alive\n"
    assert cli.json("healthcheck")["ok"] is True
    nowhere = f"http://127.0.0.1:{free_port()}"
    assert "nothing listens there" in cli("healthcheck", "--url", nowhere, code=1).err
    assert json.loads(cli("healthcheck", "--url", nowhere, "--json", code=1).out)["ok"] is False


def test_where_there_is_no_server_the_error_says_what_to_do() -> None:
    done = openq("queue", "ls", "--url", f"http://127.0.0.1:{free_port()}")

    assert done.code == 1
    assert "nothing listens there" in done.err
    assert "openq serve" in done.err


def test_a_taken_port_is_named_with_who_has_it(server: Served) -> None:
    done = openq("serve", "--memory", "--port", str(server.port))

    assert (done.code, done.out) == (1, "")
    assert f"port {server.port} is taken by process {server.pid}" in done.err
    assert "--port" in done.err


def test_a_taken_amqp_port_is_named_with_who_has_it_and_the_flag_for_another(server: Served) -> None:
    done = openq("serve", "--memory", "--port", "0", "--amqp-port", str(server.port))

    assert (done.code, done.out) == (1, "")
    assert f"port {server.port} is taken by process {server.pid}" in done.err
    assert "choose another with --amqp-port (auto or 0 picks a free one" in done.err


def test_a_free_port_is_picked_and_printed() -> None:
    process = subprocess.Popen(
        [*OPENQ, "serve", "--memory", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        ready = [process.stdout.readline() for _ in range(2)]
        url = ready[1].split()[-1]
        assert "is ready" in ready[0]
        assert run_in_process("healthcheck", "--url", url).code == 0
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

    assert process.returncode == 0


def test_queues_of_the_file_are_there_from_the_start(tmp_path: Path) -> None:
    file = tmp_path / "openq.toml"
    file.write_text('[queues.orders]\ndlq = "orders-dead"\nvisibility_timeout = "2m"\n[queues.orders-dead]\n')
    with served(None, "--config", str(file)) as running:
        cli = Cli(running.url, "")
        settings = cli.json("queue", "show", "orders")["settings"]

        assert (settings["visibility_timeout"], settings["dlq"], settings["max_receives"]) == (
            120,
            "orders-dead",
            3,
        )
        assert len(cli.lines("queue", "ls")) == 2


# -- users --------------------------------------------------------------------------------------


def test_with_users_a_server_asks_who_one_is_and_what_one_may(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run_in_process(
        "user",
        "add",
        "admin",
        "--role",
        "admin",
        "--password",
        "--data",
        data,
        OPENQ_PASSWORD="correct horse",
    )
    run_in_process("user", "add", "shop", "--role", "producer", "--data", data)
    token = run_in_process("token", "create", "shop", "--name", "t", "--data", data).out.strip()
    secret = tmp_path / "token"
    secret.write_text(token + "\n")
    with served(data) as running:
        cli = Cli(running.url, "")

        assert "OPENQ_TOKEN_FILE" in cli("queue", "ls", code=4).err
        cli("queue", "ls", code=4, OPENQ_TOKEN="oq_wrong")
        cli("queue", "create", "orders", "--user", "admin", OPENQ_PASSWORD="correct horse")
        cli("queue", "ls", "--user", "admin", answer="wrong\n", code=4)
        assert "orders" in cli("queue", "ls", "--user", "admin", answer="correct horse\n").out
        cli("send", "orders", "x", OPENQ_TOKEN_FILE=str(secret))
        cli("send", "orders", "y", "--token-file", secret)
        assert (
            "contradict" in cli("send", "orders", "z", "--token", token, "--token-file", secret, code=2).err
        )
        denied = cli("recv", "orders", code=4, OPENQ_TOKEN=token)
        assert token not in denied.err

        run_in_process("perm", "grant", "shop", "receive", "orders", "--data", data)
        until(lambda: run_in_process("recv", "orders", OPENQ_URL=running.url, OPENQ_TOKEN=token).code == 0)
        run_in_process("token", "revoke", "shop", "t", "--yes", "--data", data)
        until(lambda: run_in_process("recv", "orders", OPENQ_URL=running.url, OPENQ_TOKEN=token).code == 4)
        assert not any(token in line or "correct horse" in line for line in running.log + running.lines)


def test_an_address_for_others_needs_users_first(tmp_path: Path) -> None:
    done = openq("serve", "--data", tmp_path / "data", "--host", "0.0.0.0", "--port", str(free_port()))

    assert done.code == 2
    assert "openq user add" in done.err


def test_https_is_spoken_with_whom_one_trusts(tmp_path: Path) -> None:
    cert, key, trusted = make_certificate(tmp_path)
    with served(None, "--tls-cert", str(cert), "--tls-key", str(key)) as running:
        url = running.url.replace("http:", "https:")

        assert run_in_process("healthcheck", "--url", url, "--ca", trusted).code == 0
        assert run_in_process("queue", "create", "q", "--url", url, OPENQ_CA=str(trusted)).code == 0
        distrusted = run_in_process("queue", "ls", "--url", url)
        assert distrusted.code == 1
        assert "its certificate is not trusted" in distrusted.err
        assert "--ca" in distrusted.err
        assert run_in_process("queue", "ls", "--url", running.url).code == 1


# -- an answer that is lost ---------------------------------------------------------------------


def test_a_send_whose_answer_is_lost_is_uncertain(cli: Cli, q: str) -> None:
    with LossyProxy(cli.url) as wire:
        wire.lose = 1
        done = cli("send", q, "hello", "--url", wire.url, code=1)

    assert done.out == ""
    assert "uncertain: it may have been published; cannot reach" in done.err
    assert cli.counts(q) == (1, 0, 0)


def test_of_many_lines_those_that_are_uncertain_are_counted(cli: Cli, q: str) -> None:
    lines = "".join(f"{number}\n" for number in range(1500))
    with LossyProxy(cli.url) as wire:

        class Second(list[bytes]):
            def append(self, request: bytes) -> None:
                super().append(request)
                wire.lose = len(self) - 1

        wire.requests = Second()
        done = cli("send", q, "--lines", "--url", wire.url, answer=lines, code=1)

    assert "uncertain: 500 messages may have been published, after 1000 messages that were;" in done.err


@pytest.mark.parametrize("status", [502, 504])
def test_an_error_of_a_gateway_leaves_a_change_uncertain(cli: Cli, q: str, status: int) -> None:
    with LossyProxy(cli.url) as wire:
        wire.instead = f"HTTP/1.1 {status} Bad\r\nContent-Length: 5\r\n\r\nsorry".encode()
        wire.lose = 1
        sent = cli("send", q, "hello", "--url", wire.url, code=1)
        wire.lose = 1
        purged = cli("queue", "purge", q, "--yes", "--url", wire.url, code=1)
        wire.lose = 1
        listed = cli("queue", "ls", "--url", wire.url, code=1 if status == 502 else 5)

    assert f"uncertain: it may have been published; the server answered {status}: sorry" in sent.err
    assert f"uncertain: it may have been done; the server answered {status}" in purged.err
    assert "uncertain" not in listed.err


def test_any_other_change_whose_answer_is_lost_is_uncertain_too(cli: Cli, q: str) -> None:
    with LossyProxy(cli.url) as wire:
        wire.lose = 1
        done = cli("queue", "purge", q, "--yes", "--url", wire.url, code=1)

    assert "uncertain: it may have been done" in done.err
