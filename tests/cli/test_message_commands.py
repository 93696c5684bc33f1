"""`openq message`: move, delay, edit and cancel, against a real server."""

from __future__ import annotations

import json

from tests.cli.helpers import Cli


def ids_of(cli: Cli, queue: str) -> list[str]:
    return [row["id"] for row in cli.lines("search", queue)]


def test_messages_are_moved_with_their_ids(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="a\nb\nc\n")
    cli("queue", "create", f"{q}-other")
    first, second, _ = ids_of(cli, q)

    assert (
        "would move 2 messages"
        in cli("message", "move", q, first, second, "--to", f"{q}-other", "--dry-run").out
    )
    assert cli.counts(q) == (3, 0, 0)
    assert (
        cli("message", "move", q, first, second, "--to", f"{q}-other").out
        == f"2 messages moved to {q}-other\n"
    )
    assert ids_of(cli, f"{q}-other") == [first, second]


def test_a_message_is_delayed_and_ready_again(cli: Cli, q: str) -> None:
    cli("send", q, "later")
    [message_id] = ids_of(cli, q)

    cli("message", "delay", q, message_id, "--for", "1h")
    assert cli.counts(q) == (0, 1, 0)
    assert cli("message", "delay", q, message_id, "--for", "0").out == "1 message ready now\n"
    assert cli.counts(q) == (1, 0, 0)


def test_cancelling_asks_first_and_names_what_is_gone(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="a\nb\n")
    first, second = ids_of(cli, q)

    assert "this would delete 2 messages" in cli("message", "cancel", q, first, second, code=2).err
    assert cli.counts(q) == (2, 0, 0)
    assert cli("message", "cancel", q, first, "--yes").out == "1 message cancelled\n"
    done = cli("message", "cancel", q, first, second, "--yes", "--json", code=3)
    assert json.loads(done.out) == {"messages": 1, "ids": [second], "missing": [first]}
    assert f"no longer in {q}: {first}" in done.err


def test_an_edit_keeps_what_is_not_named(cli: Cli, q: str) -> None:
    cli("send", q, '{"total": 1}', "--as", "json", "--type", "order", "--attribute", "shop=eu")
    [message_id] = ids_of(cli, q)

    cli("message", "edit", q, message_id, '{"total": 12345678901234567890}', "--as", "json")
    [row] = cli.lines("search", q)
    assert (row["payload"], row["message_type"]) == ({"total": 12345678901234567890}, "order")
    assert row["attributes"] == {"shop": "eu"}
    cli("message", "edit", q, message_id, "--type=", "--attributes", '{"shop": "us"}')
    [row] = cli.lines("search", q)
    assert (row.get("message_type"), row["attributes"], row["id"]) == (None, {"shop": "us"}, message_id)
    assert "nothing to change" in cli("message", "edit", q, message_id, code=2).err


def test_an_edit_reads_the_body_from_stdin_like_send(cli: Cli, q: str) -> None:
    cli("send", q, "old")
    [message_id] = ids_of(cli, q)

    cli("message", "edit", q, message_id, "-", "--as", "json", answer='{"total": 3}')
    [row] = cli.lines("search", q)
    assert (row["payload"], row["id"]) == ({"total": 3}, message_id)
    assert "the input is empty" in cli("message", "edit", q, message_id, "-", code=2).err
    cli("message", "edit", q, message_id, "")
    assert [row["payload"] for row in cli.lines("search", q)] == [""]


def test_an_error_in_the_middle_says_what_was_done(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="held\na\nb\n")
    held = json.loads(cli("recv", q, "--visibility-timeout", "1h", "--json").out)["id"]
    first, second = (each for each in ids_of(cli, q) if each != held)

    stopped = cli("message", "cancel", q, first, "gone", held, second, "--yes", "--json", code=1)
    assert json.loads(stopped.out) == {"messages": 1, "ids": [first], "missing": ["gone"]}
    assert f"no longer in {q}: gone" in stopped.err
    assert f"not tried or not known: {held}, {second}" in stopped.err
    assert "is with a consumer" in stopped.err
    assert cli.counts(q) == (1, 0, 1)
    nothing = cli("message", "cancel", q, held, second, "--yes", code=1)
    assert (nothing.out, "not tried" in nothing.err) == ("", False)


def test_large_messages_are_counted_although_a_search_ends_early(cli: Cli, q: str) -> None:
    """An answer of a search has 8 MiB of bodies at most."""
    cli("send", q, "--lines", answer=f"{'x' * (3 << 20)}\n" * 4)
    ids = [row["id"] for row in cli.lines("search", q, "--max", "4")]
    ids += [row["id"] for row in cli.lines("peek", q, "--rear", "-n", "2")]

    assert len(set(ids)) == 4
    assert "would delete 4 messages" in cli("message", "cancel", q, *set(ids), "--dry-run").out
    assert cli("message", "cancel", q, *set(ids), "--yes").out == "4 messages cancelled\n"
