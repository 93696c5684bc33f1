"""`openq send`, `recv`, `ack`, `nack`, `peek`, `tail`, `search`, `why` and `timeline`."""

from __future__ import annotations

from .parser import (
    CommandGroup,
    Parser,
    add_filter,
    add_json,
    add_server,
    count,
    pair,
    positive,
    priority,
    seconds,
)
from .terminal import EMPTY, FAILED, NOT_FOUND, OK, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence
    from typing import Any

    from .api import ApiClient

MAX_BATCH = 1000
MAX_WAIT_S = 60.0  # of one request; longer waits are several
TAIL_INTERVAL_S = 0.5


def add(name: str, verbs: CommandGroup, help: str) -> None:
    {
        "send": _add_send,
        "recv": _add_recv,
        "ack": _add_ack,
        "nack": _add_nack,
        "peek": _add_peek,
        "tail": _add_tail,
        "search": _add_search,
        "why": _add_why,
        "timeline": _add_timeline,
    }[name](name, verbs, help)


def _finish(parser: Parser, json_help: str = "JSON on stdout, for programs") -> None:
    add_json(parser, json_help)
    add_server(parser)


_LINES = "one JSON object per line"


def _add_send(name: str, verbs: CommandGroup, help: str) -> None:
    send = verbs.add(
        name,
        _send,
        help,
        [
            ("openq send orders 'hello'", "one message; prints its id"),
            ("openq send orders '{\"total\": 12}' --as json --type order", "a JSON value, with a type"),
            ("openq send orders --file photo.png --attribute kind=photo", "what is in a file"),
            ("openq send orders --lines < orders.txt", "one message per line"),
            ("openq send orders --lines --as message < export.jsonl", "what `openq dlq export` wrote"),
        ],
        "Exit code 0 means that every message is safe on disk (unless the server runs in memory).",
    )
    send.add_argument("queue", metavar="QUEUE", help="where to")
    send.add_argument("body", nargs="?", metavar="BODY", help="the message; - or nothing reads stdin")
    send.add_argument("--lines", action="store_true", help="every line of the input is a message")
    send.add_argument("--file", metavar="FILE", help="read the input from a file")
    send.add_argument(
        "--as",
        dest="kind",
        choices=("text", "json", "base64", "message"),
        default="text",
        help="what the input is; message: JSON objects as `recv --json` prints them",
    )
    send.add_argument("--delay", metavar="TIME", type=seconds, help="deliver it later: 30, 5m, 2h")
    send.add_argument("--group", metavar="ID", help="message group: one after the other within it")
    send.add_argument("--priority", metavar="N", type=priority, help="0 to 255; higher goes first")
    send.add_argument("--type", metavar="TYPE", help="message type")
    send.add_argument("--ttl", metavar="TIME", type=seconds, help="how long it may wait to be delivered")
    send.add_argument(
        "--attribute",
        action="append",
        metavar="NAME=VALUE",
        type=pair,
        help="may be repeated; NAME:=VALUE for a JSON value",
    )
    send.add_argument("--dedup-id", metavar="ID", help="a second message with this id is not added")
    _finish(send)


def _add_recv(name: str, verbs: CommandGroup, help: str) -> None:
    recv = verbs.add(
        name,
        _recv,
        help,
        [
            ("openq recv orders", "one message; it comes back unless it is acknowledged"),
            ("openq recv orders --ack", "acknowledged once it is printed"),
            ("openq recv orders -n 100 --wait 20s --ack --json", "up to a hundred, one JSON object per line"),
        ],
        "Without --ack nothing is lost: a message stays with you for the visibility timeout, then others\n"
        "get it; --json shows the receipt for `openq ack` and `openq nack`. With --ack a message is\n"
        "acknowledged only after it was written to stdout. Exit code 5 if nothing came.",
    )
    recv.add_argument("queue", metavar="QUEUE", help="where from")
    recv.add_argument(
        "-n", "--max", metavar="N", type=positive, default=1, help="at most so many (default 1)"
    )
    recv.add_argument(
        "--wait", metavar="TIME", type=seconds, default=0.0, help="for the first one (default 0)"
    )
    ending = recv.add_mutually_exclusive_group()
    ending.add_argument("--ack", action="store_true", help="acknowledge what was printed")
    ending.add_argument("--no-ack", action="store_true", help="leave them unacknowledged (default)")
    recv.add_argument("--visibility-timeout", metavar="TIME", type=seconds, help="instead of the queue's own")
    recv.add_argument("--type", action="append", metavar="TYPE", help="only this type; may be repeated")
    _finish(recv, _LINES)


def _add_ack(name: str, verbs: CommandGroup, help: str) -> None:
    ack = verbs.add(
        name, _ack, help, [("openq ack orders RECEIPT", "the receipt_id that `openq recv --json` printed")]
    )
    ack.add_argument("queue", metavar="QUEUE", help="where they came from")
    ack.add_argument("receipts", nargs="+", metavar="RECEIPT", help="receipt_id of a delivery")
    _finish(ack)


def _add_nack(name: str, verbs: CommandGroup, help: str) -> None:
    nack = verbs.add(
        name,
        _nack,
        help,
        [
            ("openq nack orders RECEIPT --reason 'no such product'", "for another try"),
            ("openq nack orders RECEIPT --delay 5m", "not before five minutes"),
            ("openq nack orders RECEIPT --reject", "to the dead letters at once"),
        ],
    )
    nack.add_argument("queue", metavar="QUEUE", help="where they came from")
    nack.add_argument("receipts", nargs="+", metavar="RECEIPT", help="receipt_id of a delivery")
    nack.add_argument(
        "--delay",
        metavar="TIME",
        type=seconds,
        help="before the next try; 0: at once (default: as the queue's retry policy says)",
    )
    nack.add_argument("--reason", metavar="TEXT", help="why it failed: kept with the message")
    nack.add_argument("--reject", action="store_true", help="no more tries")
    _finish(nack)


def _add_peek(name: str, verbs: CommandGroup, help: str) -> None:
    peek = verbs.add(
        name,
        _peek,
        help,
        [
            ("openq peek orders", "the next ten"),
            ("openq peek orders -n 3 --rear", "the three newest"),
            ("openq peek orders --state delayed --json", "those that wait for their time"),
        ],
        "Nothing changes: no message is taken, no receive is counted. Exit code 5 if there is none.",
    )
    peek.add_argument("queue", metavar="QUEUE", help="which queue")
    peek.add_argument(
        "-n", "--max", metavar="N", type=positive, default=10, help="at most so many (default 10)"
    )
    peek.add_argument("--rear", action="store_true", help="from the end of the queue")
    _add_state(peek, "ready")
    _finish(peek, _LINES)


def _add_state(parser: Parser, default: str) -> None:
    parser.add_argument(
        "--state",
        choices=("ready", "delayed", "in_flight", "all"),
        default=default,
        help=f"in which state (default {default})",
    )


def _add_tail(name: str, verbs: CommandGroup, help: str) -> None:
    tail = verbs.add(
        name,
        _tail,
        help,
        [
            ("openq tail -f orders", "from now on, until Ctrl-C"),
            ("openq tail orders --since 1h -n 100", "the last hundred of the last hour"),
            ("openq tail -f orders --since 5m --json", "of the last five minutes, and what follows"),
        ],
        "It reads history, so messages that were consumed long ago are shown too, as far as history is kept.",
    )
    tail.add_argument("queue", metavar="QUEUE", help="which queue")
    tail.add_argument("-f", "--follow", action="store_true", help="go on with what is published from now on")
    tail.add_argument("-n", "--max", metavar="N", type=count, help="only the last N of what was before")
    tail.add_argument(
        "--since", metavar="TIME", help="begin there: 2h (ago), or a time (default 10m; with -f: now)"
    )
    _finish(tail, _LINES)


def _add_search(name: str, verbs: CommandGroup, help: str) -> None:
    search = verbs.add(
        name,
        _search,
        help,
        [
            ("openq search orders 'alice@'", "somewhere in the body"),
            ("openq search orders --where order.total=12 --type order", "a value in a JSON body, and a type"),
            ("openq search orders-dead --reason timeout -n 5", "dead letters by their reason"),
        ],
        "Nothing changes. Exit code 5 if nothing was found.",
    )
    search.add_argument("queue", metavar="QUEUE", help="which queue")
    search.add_argument("text", nargs="?", metavar="TEXT", help="somewhere in the body")
    add_filter(search, text=False)
    _add_state(search, "all")
    search.add_argument(
        "-n", "--max", metavar="N", type=positive, default=100, help="at most so many (default 100)"
    )
    search.add_argument(
        "--budget",
        metavar="TIME",
        type=seconds,
        default=5.0,
        help="stop looking after this long (default 5s)",
    )
    _finish(search, _LINES)


def _add_why(name: str, verbs: CommandGroup, help: str) -> None:
    why = verbs.add(name, _why, help, [("openq why orders ID", "paused? delayed? with a consumer? gone?")])
    why.add_argument("queue", metavar="QUEUE", help="where it is")
    why.add_argument("id", metavar="ID", help="its id")
    _finish(why)


def _add_timeline(name: str, verbs: CommandGroup, help: str) -> None:
    timeline = verbs.add(
        name,
        _timeline,
        help,
        [("openq timeline orders ID", "published, delivered, failed, moved, acknowledged: when and why")],
        "As far as history is kept. Exit code 5 if nothing is known of it.",
    )
    timeline.add_argument("queue", metavar="QUEUE", help="where it is, or was")
    timeline.add_argument("id", metavar="ID", help="its id")
    _finish(timeline)


# -- send ---------------------------------------------------------------------------------------


def _send(options: Namespace) -> int:
    from .api import OutcomeUnknown, UsageError, connect, path_part
    from .output import count_text, print_json

    if options.body is not None and options.body != "-" and (options.lines or options.file):
        raise UsageError("give the message, or read it from the input: not both")
    path = f"/queues/{path_part(options.queue)}/messages"
    shared = _common_fields(options)
    server = connect(options)
    if not options.lines:
        body = _input(options)
        if not body and options.body != "":
            raise UsageError(
                "there is nothing to send: the input is empty; "
                f"`openq send {options.queue} ''` sends an empty message"
            )
        try:
            answer = server.post(path, {**_message(options.kind, body), **shared})
        except OutcomeUnknown as error:
            raise OutcomeUnknown("it may have been published", error.why) from None
        if options.json:
            print_json(answer)
        else:
            print(answer["id"])
            if answer.get("duplicate"):
                say("not added: a message with this deduplication id was there")
        return OK
    sent = failed = 0
    for lines in _batches(_lines(options)):
        texts = [_decoded(line) for line in lines]
        # Bare texts are the fast form: one record on disk for all of them.
        batch: object = texts
        if options.kind != "text" or shared or not all(isinstance(text, str) for text in texts):
            batch = {"messages": [{**_message(options.kind, text), **shared} for text in texts]}
        try:
            answer = server.post(f"{path}/batch", batch)
        except OutcomeUnknown as error:
            may = f"{count_text(len(texts), 'message')} may have been published"
            before = f", after {count_text(sent, 'message')} that {'was' if sent == 1 else 'were'}"
            raise OutcomeUnknown(f"{may}{before}", error.why) from None
        sent += answer["count"]
        refused = [row for row in answer.get("results", ()) if "code" in row]
        failed += answer.get("failed", 0)
        for row in refused[:10]:
            say(f"refused: {row.get('detail') or row['code']}")
    if options.json:
        print_json({"count": sent, "failed": failed})
    else:
        print(f"{count_text(sent, 'message')} sent" + (f", {failed} refused" if failed else ""))
    return FAILED if failed else OK


def _common_fields(options: Namespace) -> dict[str, Any]:
    from .arguments import attributes_of

    given = {
        "delay": options.delay,
        "group": options.group,
        "priority": options.priority,
        "message_type": options.type,
        "ttl": options.ttl,
        "dedup_id": options.dedup_id,
        "attributes": attributes_of(options.attribute),
    }
    return {name: value for name, value in given.items() if value is not None}


def _input(options: Namespace) -> str | bytes:
    import sys

    if options.file:
        with open(options.file, "rb") as file:
            return file.read()
    if options.body is not None and options.body != "-":
        return str(options.body)
    _announce_stdin()
    return sys.stdin.buffer.read()


def _announce_stdin() -> None:
    import sys

    if sys.stdin.isatty():
        say("reading from the terminal; Ctrl-D ends it")


def _lines(options: Namespace) -> Iterator[bytes]:
    import sys

    if options.file:
        with open(options.file, "rb") as file:
            yield from _without_newlines(file)
    else:
        _announce_stdin()
        yield from _without_newlines(sys.stdin.buffer)


def _without_newlines(lines: Any) -> Iterator[bytes]:
    for line in lines:
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if text:
            yield text


def _batches(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Not more at once than the server takes, by number and by bytes."""
    batch: list[bytes] = []
    weight = 0
    for line in lines:
        if batch and (len(batch) == MAX_BATCH or weight + len(line) > 4 << 20):
            yield batch
            batch, weight = [], 0
        batch.append(line)
        weight += len(line)
    if batch:
        yield batch


def _decoded(line: bytes) -> Any:
    """Text where it is text: other bytes go as base64."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line


def _message(kind: str, body: str | bytes) -> dict[str, Any]:
    import base64

    from .api import UsageError
    from .arguments import parse_json

    data = body.encode("utf-8", "surrogateescape") if isinstance(body, str) else body
    text = _decoded(data)
    if kind == "base64":
        return {"payload": "".join(str(text).split()), "payload_encoding": "base64"}
    if not isinstance(text, str):
        if kind != "text":
            raise UsageError(f"this is not {kind}: {data[:40]!r}")
        return {"payload": base64.b64encode(data).decode(), "payload_encoding": "base64"}
    if kind == "json":
        return {"payload": parse_json(text, "the message")}
    if kind == "message":
        message = parse_json(text, "the message")
        if not isinstance(message, dict):
            raise UsageError(f"a message is a JSON object with a payload, not {text[:60]!r}")
        return _publishable(message)
    return {"payload": text}


# What a message tells of where it was and what happened there is no part of sending it again.
_PUBLISHED_FIELDS = (
    "payload",
    "body",
    "payload_encoding",
    "id",
    "priority",
    "group",
    "message_type",
    "attributes",
)


def _publishable(message: dict[str, Any]) -> dict[str, Any]:
    kept = {name: message[name] for name in _PUBLISHED_FIELDS if message.get(name) is not None}
    return kept if "payload" in kept or "body" in kept else {**kept, "payload": None}


# -- recv, ack, nack ----------------------------------------------------------------------------


def _recv(options: Namespace) -> int:
    import time

    from .api import connect, path_part

    server = connect(options)
    path = f"/queues/{path_part(options.queue)}"
    end = time.monotonic() + options.wait
    received = lost = 0
    while received < options.max:
        # Only the first one is waited for: what is there is there.
        wait = 0.0 if received else min(max(end - time.monotonic(), 0.0), MAX_WAIT_S)
        request = {
            "max": min(options.max - received, MAX_BATCH),
            "wait": wait,
            "visibility_timeout": options.visibility_timeout,
            "types": options.type,
        }
        body = {name: value for name, value in request.items() if value is not None}
        timeout_s = wait + (30.0 if options.timeout is None else options.timeout)
        messages = server.post(f"{path}/receive", body, timeout_s=timeout_s)["messages"]
        if not messages:
            if received or time.monotonic() >= end:
                break
            continue
        received += len(messages)
        _print_bodies(messages, options.json)
        if options.ack:
            # After the flush: what a broken pipe swallowed comes back.
            settled = server.post(f"{path}/ack", {"receipts": [each["receipt_id"] for each in messages]})
            lost += _print_failures(settled)
    if not received:
        within = f" within {options.wait:g} s" if options.wait else ""
        others = _not_ready(_stats_of(server, path))
        say(
            f"no message of {options.queue} is ready{within}: {others}"
            if others
            else f"nothing in {options.queue}{within}"
        )
        return EMPTY
    if not options.ack:
        them = "they come" if received > 1 else "it comes"
        say(f"not acknowledged: {them} back after the visibility timeout")
    return FAILED if lost else OK


def _print_bodies(messages: Sequence[dict[str, Any]], as_json: bool) -> None:
    """Bodies as they are, one per line; on a terminal without what could play tricks on it."""
    import sys

    from .output import body_text, print_json
    from .terminal import is_terminal

    for message in messages:
        if as_json:
            print_json(message)
        elif is_terminal(sys.stdout):
            print(body_text(message))
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(body_bytes(message) + b"\n")
    sys.stdout.flush()
    sys.stdout.buffer.flush()


def body_bytes(message: dict[str, Any]) -> bytes:
    import base64
    import json

    payload = message["payload"]
    if message.get("payload_encoding") == "base64":
        return base64.b64decode(payload)
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _print_failures(settled: dict[str, Any]) -> int:
    for row in settled["failed"]:
        say(row["detail"])
    return len(settled["failed"])


def _ack(options: Namespace) -> int:
    return _settle(options, "ack", {"receipts": options.receipts}, "acknowledged")


def _nack(options: Namespace) -> int:
    request = {
        "receipts": options.receipts,
        "delay": options.delay,
        "reason": options.reason,
        "reject": options.reject or None,
    }
    body = {name: value for name, value in request.items() if value is not None}
    return _settle(options, "nack", body, "given back" if not options.reject else "rejected")


def _settle(options: Namespace, verb: str, body: dict[str, Any], done: str) -> int:
    from .api import connect, path_part
    from .output import count_text, print_json

    settled = connect(options).post(f"/queues/{path_part(options.queue)}/{verb}", body)
    if options.json:
        print_json(settled)
    else:
        print(f"{count_text(settled['count'], 'message')} {done}")
    _print_failures(settled)
    codes = {row["code"] for row in settled["failed"]}
    if codes == {"message_not_found"}:
        return NOT_FOUND
    return FAILED if codes else OK


# -- looking ------------------------------------------------------------------------------------


def _peek(options: Namespace) -> int:
    from .api import MAX_PAGE, connect, path_part

    server = connect(options)
    path = f"/queues/{path_part(options.queue)}/messages"
    shown = 0
    after = None
    while shown < options.max:
        page = server.get(
            path,
            limit=min(options.max - shown, MAX_PAGE),
            state=options.state,
            rear=options.rear or None,
            after=after,
        )
        _print_rows(page["messages"], options.json)
        shown += len(page["messages"])
        if page.get("truncated"):
            say("more were asked for than one answer carries; these are the last ones")
        after = page.get("next")
        if after is None or not page["messages"]:
            break
    if not shown and options.state == "ready":
        return _nothing_ready(server.get(f"/queues/{path_part(options.queue)}")["stats"], options.queue)
    return _found_code(shown, options.queue)


def _nothing_ready(stats: dict[str, Any], queue: str) -> int:
    """An empty answer although there are messages: say where they are."""
    others = _not_ready(stats, " (--state {})")
    if not others:
        return _found_code(0, queue)
    say(f"no message of {queue} is ready: {others}")
    return EMPTY


def _not_ready(stats: dict[str, Any], note: str = "") -> str:
    """How many messages are in flight or delayed, in words; empty if none is."""
    states = (("in_flight", "in flight"), ("delayed", "delayed"))
    return " and ".join(
        f"{stats[state]} {word}{note.format(state)}" for state, word in states if stats.get(state)
    )


def _stats_of(server: ApiClient, path: str) -> dict[str, Any]:
    """Empty if the counts cannot be had: to receive is another permission than to look."""
    from ..client.http import Refused

    try:
        return dict(server.get(path)["stats"])
    except Refused:
        return {}


def _found_code(shown: int, queue: str) -> int:
    if not shown:
        say(f"nothing found in {queue}")
    return OK if shown else EMPTY


def _print_rows(messages: Sequence[dict[str, Any]], as_json: bool) -> None:
    """One line per message: when, which, and how it begins."""
    import sys

    from .output import body_text, escape_control, print_json
    from .terminal import is_terminal, styled, terminal_width

    for message in messages:
        if as_json:
            print_json(message)
            continue
        when = message.get("timestamp") or message.get("time")
        notes = [str(message.get("message_type") or "")]
        if message.get("state") not in (None, "ready"):
            holder = message.get("consumer")
            notes.append(str(message["state"]).replace("_", " ") + (f" with {holder}" if holder else ""))
        if message.get("receive_count"):
            notes.append(f"received {message['receive_count']}x")
        if message.get("reason"):
            notes.append(f"failed: {message['reason']}")
        noted = escape_control(", ".join(filter(None, notes)))
        head = f"{when}  {message['id']}  " + (f"[{noted}]  " if noted else "")
        body = body_text(message)
        if is_terminal(sys.stdout):
            body = body[: max(20, terminal_width() - len(head))]
        print(styled(head, "dim") + body)
    sys.stdout.flush()


def _tail(options: Namespace) -> int:
    import time
    from collections import deque
    from datetime import datetime

    from .api import MAX_PAGE, connect
    from .arguments import iso_time, parse_time

    server = connect(options)
    if options.since is not None or not options.follow:
        since = parse_time(options.since or "10m")
    else:
        # The server's own clock: ours may be wrong by more than the first messages take.
        told = server.get("/server")
        since = iso_time(datetime.fromisoformat(told["started"]).timestamp() + told["uptime"])
    after = shown = 0
    last: deque[dict[str, Any]] = deque(maxlen=options.max)
    catching_up = options.max is not None
    while True:
        page = server.get(
            "/history/messages", queue=options.queue, since=since, after_seq=after, limit=MAX_PAGE
        )
        messages = page["messages"]
        if messages:
            after = messages[-1]["seq"]
        after = max(after, page.get("next_seq") or 0)
        if catching_up:
            last.extend(messages)
        else:
            _print_rows(messages, options.json)
            shown += len(messages)
        if messages and page.get("next_seq") is not None:
            continue
        if catching_up:
            catching_up = False
            _print_rows(list(last), options.json)
            shown += len(last)
        if not options.follow:
            if not shown:
                say(f"nothing was published in {options.queue} since {since}; --since looks further back")
            return OK if shown else EMPTY
        time.sleep(TAIL_INTERVAL_S)


def _search(options: Namespace) -> int:
    from .api import MAX_PAGE, connect, path_part
    from .arguments import filter_of

    wanted = filter_of(options, options.text) or {}
    request = {
        **wanted,
        "state": options.state,
        "limit": min(options.max, MAX_PAGE),
        "budget": options.budget,
    }
    found = connect(options).post(
        f"/queues/{path_part(options.queue)}/search", request, timeout_s=options.budget + 30.0
    )
    _print_rows(found["messages"], options.json)
    if not found["complete"]:
        say(f"there may be more: {found['scanned']} messages were looked at; see --max and --budget")
    return _found_code(len(found["messages"]), options.queue)


def _why(options: Namespace) -> int:
    from .api import connect, path_part
    from .output import escape_control, print_json

    reason = connect(options).get(f"/queues/{path_part(options.queue)}/messages/{path_part(options.id)}/why")
    if options.json:
        print_json(reason)
    else:
        print(escape_control(reason["text"]))
    return NOT_FOUND if reason["code"] == "not_found" else OK


def _print_traceback(steps: Sequence[dict[str, Any]]) -> None:
    """Of the last failure that has one."""
    from .output import escape_control

    for step in reversed(steps):
        if step.get("traceback"):
            print(f"\ntraceback of {step['time']}:")
            for line in step["traceback"].splitlines():
                print(f"  {escape_control(line)}")
            return


def _timeline(options: Namespace) -> int:
    from .api import connect, path_part
    from .output import print_json, print_table

    told = connect(options).get(
        f"/queues/{path_part(options.queue)}/messages/{path_part(options.id)}/timeline"
    )
    if options.json:
        print_json(told)
    elif told["steps"]:
        print_table(
            ("time", "what", "queue", "detail"),
            [(step["time"], step["what"], step["queue"], step["detail"]) for step in told["steps"]],
        )
        _print_traceback(told["steps"])
    if not told["steps"]:
        say(f"no message {options.id} is known in {options.queue}, nor in the history that is kept")
        return NOT_FOUND
    return OK
