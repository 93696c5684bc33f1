"""Scripted AMQP dialogues: what a client says frame by frame, and what a broker answers.

The answers in `dialogues.json` were recorded from RabbitMQ; the tests compare OpenQ's answers with them.

    python -m tests.amqp.dialogue --record --port 5672   # record anew from a RabbitMQ, guest/guest
    python -m tests.amqp.dialogue --show                 # the whole record, for reading
    python -m tests.amqp.dialogue --compare --port 5672  # how a running broker differs
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.amqp.dialogue_codec import (
    FRAME_END,
    FRAME_MAX,
    HEADER,
    HEARTBEAT,
    METHOD,
    METHODS_WITH_CONTENT,
    PROTOCOL_HEADER,
    content,
    decode_method,
    decode_properties,
    encode_method,
    frame,
    readable,
)

RECORD = Path(__file__).with_name("dialogues.json")
# How long a broker may take before an answer counts as missing, and how long silence means "that was all".
TIMEOUT_S = 60.0  # only a failure waits as long
FIRST_ANSWER_S = 0.5
SILENCE_S = 0.12

# What a script says


class ClientMessage(NamedTuple):
    """One thing the client sends: a method (with its content), or plain bytes.

    `on` is the connection's letter and the channel. A connection is opened when it is first named, a channel
    too; one whose letter is from `r` on is raw: nothing is opened by itself."""

    on: str
    method: str = ""
    fields: dict[str, Any] = {}  # noqa: RUF012 - never changed
    properties: dict[str, Any] | None = None
    body: bytes = b""
    raw: bytes | None = None

    @property
    def connection(self) -> str:
        return self.on[0]

    @property
    def channel(self) -> int:
        return int(self.on[1:] or 0)

    def as_text(self) -> str:
        if self.raw is not None:
            return f"{self.on} bytes {self.raw.hex()[:80]}"
        if self.method in ("connect", "drop"):
            return f"{self.on} {self.method}"
        fields = " ".join(f"{name}={json.dumps(value)}" for name, value in self.fields.items())
        text = f"{self.on} {self.method} {fields}".rstrip()
        if self.properties is not None:
            body = repr(self.body)[1:] if len(self.body) < 60 else f"({len(self.body)} bytes)"
            text += f" {json.dumps(self.properties)} {body}"
        return text


class DialogueStep(NamedTuple):
    """Things said in one go; then all answers are awaited.

    `settle`: while recording, how long to listen before it is quiet for good. `unordered`: the order of the
    answers is the broker's free choice. `again`: the answers come true in a while; asking changes nothing."""

    says: tuple[ClientMessage, ...]
    settle: float = 0.0
    unordered: bool = False
    again: bool = False


class Script(NamedTuple):
    name: str
    steps: tuple[DialogueStep, ...]
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed


Answer = list[Any]


# Talking


class ConnectionEnded(Exception):
    pass


class DialogueConnection:
    """One socket. `answers` come decoded; closes are confirmed as a good client does."""

    def __init__(self, letter: str, host: str, port: int) -> None:
        self.letter = letter
        self.socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.open_channels: set[int] = set()
        self.ended = False
        self.said_goodbye = False
        self._contents: dict[int, tuple[Answer, int, bytearray]] = {}

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError:
            pass  # what the broker said before it hung up is still to be read

    def read(self, timeout_s: float) -> list[Answer]:
        """What one read of the socket completes; nothing if the time is over."""
        self.socket.settimeout(max(timeout_s, 0.001))
        try:
            data = self.socket.recv(1 << 20)
        except TimeoutError:
            return []
        except OSError:
            data = b""
        if not data:
            self._end()
            return [[self.letter, "eof"]]
        self.buffer += data
        answers: list[Answer] = []
        for piece in self._frames():
            answer = self._take(*piece)
            if answer is not None:
                answers.append(answer)
        return answers

    def _end(self) -> None:
        self.ended = True
        self.open_channels.clear()

    def hangs_up(self) -> bool:
        """After the goodbye: does the broker end the TCP connection?"""
        self.socket.settimeout(TIMEOUT_S)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def _frames(self) -> Iterator[tuple[int, int, bytes]]:
        """The whole frames that have come. The buffer is cut once, after the last of them."""
        data, self.buffer = self.buffer, b""
        at = 0
        while len(data) >= at + 7:
            if data.startswith(b"AMQP", at) and len(data) >= at + 8:
                yield 0, 0, data[at : at + 8]
                at += 8
                continue
            kind, channel, size = struct.unpack_from(">BHI", data, at)
            end = at + 7 + size
            if len(data) <= end:
                break
            assert data[end] == FRAME_END
            yield kind, channel, data[at + 7 : end]
            at = end + 1
        self.buffer = data[at:]

    def _take(self, kind: int, channel: int, payload: bytes) -> Answer | None:
        where = f"{self.letter}{channel or ''}"
        if kind == 0:
            return [where, "protocol-header", {"bytes": payload.hex()}]
        if kind == HEARTBEAT:
            return [where, "heartbeat", {}]
        if kind == METHOD:
            name, fields = decode_method(payload)
            answer: Answer = [where, name, fields]
            if name in METHODS_WITH_CONTENT:
                self._contents[channel] = (answer, -1, bytearray())
                return None
            self._react(channel, name)
            return answer
        answer, size, body = self._contents[channel]
        if kind == HEADER:
            size = struct.unpack(">Q", payload[4:12])[0]
            answer.append(decode_properties(payload[12:]))
            self._contents[channel] = (answer, size, body)
        else:
            body += payload
        if len(body) < size:
            return None
        del self._contents[channel]
        answer.append(readable(bytes(body)) if size < 100 else f"({size} bytes)")
        return answer

    def _react(self, channel: int, name: str) -> None:
        if name == "channel.close":
            self.send(frame(METHOD, channel, encode_method("channel.close-ok", {})))
        elif name == "connection.close":
            self.send(frame(METHOD, 0, encode_method("connection.close-ok", {})))
        if name in ("connection.close", "connection.close-ok"):
            # Who asked for the end may be left to hang up himself: RabbitMQ does so.
            self.said_goodbye = name == "connection.close"
            self._end()
        elif name in ("channel.close", "channel.close-ok"):
            self.open_channels.discard(channel)
        elif name == "channel.open-ok":
            self.open_channels.add(channel)

    def ask(self, channel: int, method: str, fields: dict[str, Any], reply: str) -> Answer:
        self.send(frame(METHOD, channel, encode_method(method, fields)))
        return self.await_method(reply)

    def await_method(self, name: str) -> Answer:
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            for answer in self.read(end - time.monotonic()):
                if answer[1] == name:
                    return answer
                if answer[1] in ("eof", "connection.close", "channel.close"):
                    raise ConnectionEnded(f"{name} expected, {answer} came")
        raise ConnectionEnded(f"{name} did not come")

    def open(self, options: dict[str, Any]) -> None:
        user = options.get("user", "guest")
        self.send(PROTOCOL_HEADER)
        self.await_method("connection.start")
        capabilities = options.get("capabilities", CAPABILITIES)
        self.ask(
            0,
            "connection.start-ok",
            {
                "client_properties": {"capabilities": capabilities},
                "mechanism": "PLAIN",
                "response": f"\0{user}\0{options.get('password', user)}",
                "locale": "en_US",
            },
            "connection.tune",
        )
        tune = {"channel_max": 2047, "frame_max": FRAME_MAX, "heartbeat": 0}
        self.send(frame(METHOD, 0, encode_method("connection.tune-ok", tune)))
        self.ask(0, "connection.open", {"virtual_host": options.get("vhost", "/")}, "connection.open-ok")

    def open_channel(self, channel: int) -> None:
        self.ask(channel, "channel.open", {}, "channel.open-ok")

    def close(self) -> None:
        self.socket.close()


CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "exchange_exchange_bindings": True,
    "per_consumer_qos": True,
    "publisher_confirms": True,
}


class DialoguePlayer:
    """One script being played against a broker."""

    def __init__(self, script: Script, port: int, timeout_s: float = TIMEOUT_S) -> None:
        """An answer that does not come in `timeout_s` is missing."""
        self.script = script
        self.host, self.port = "127.0.0.1", port
        self.timeout_s = timeout_s
        self.connections: dict[str, DialogueConnection] = {}
        self._replaced: list[
            DialogueConnection
        ] = []  # ended ones whose letter speaks again on a new connection
        self._names: dict[str, str] = {}  # generated name -> what the record calls it

    def __enter__(self) -> DialoguePlayer:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (*self._replaced, *self.connections.values()):
            connection.close()
        self._sweep()

    def play(self, step: DialogueStep, awaited: Sequence[Answer] | None) -> list[Answer]:
        """Say it and gather answers: as many as `awaited`, or until it is quiet."""
        for say in step.says:
            self._say(say)
        if awaited is None:
            return self._listen_until_quiet(step.settle)
        return self._listen_for(awaited)

    def rest(self) -> list[Answer]:
        """What came beyond the last step: everything before the answer to one more question."""
        extra: list[Answer] = []
        for connection in (*self._replaced, *self.connections.values()):
            if connection.said_goodbye and not connection.hangs_up():
                extra.append([connection.letter, "did not hang up"])
            if connection.ended or connection.letter >= "r":
                continue
            connection.send(frame(METHOD, 2000, encode_method("channel.open", {})))
            end = time.monotonic() + TIMEOUT_S
            while not connection.ended and time.monotonic() < end:
                came = connection.read(end - time.monotonic())
                if any(answer[0] == f"{connection.letter}2000" for answer in came):
                    extra += [answer for answer in came if not answer[0].endswith("2000")]
                    break
                extra += came
        return [self._normal(answer) for answer in extra]

    def _say(self, say: ClientMessage) -> None:
        connection = self._connection(say)
        if say.method == "connect":
            return
        if say.method == "drop":
            connection.close()
            connection.ended = True
            del self.connections[say.connection]
            return
        if say.raw is not None:
            connection.send(say.raw)
            return
        raw_talk = say.connection >= "r"
        if say.channel and not raw_talk and say.channel not in connection.open_channels:
            if say.method == "channel.open":
                pass
            elif connection.ended:
                raise ConnectionEnded(f"{say.as_text()}: the connection has ended")
            else:
                connection.open_channel(say.channel)
        fields = {name: self._filled(value) for name, value in say.fields.items()}
        data = frame(METHOD, say.channel, encode_method(say.method, fields))
        if say.properties is not None:
            properties = {name: self._filled(value) for name, value in say.properties.items()}
            data += content(say.channel, properties, say.body)
        connection.send(data)

    def _connection(self, say: ClientMessage) -> DialogueConnection:
        connection = self.connections.get(say.connection)
        if connection is None or (connection.ended and say.connection < "r"):
            if connection is not None:
                self._replaced.append(connection)
            connection = DialogueConnection(say.connection, self.host, self.port)
            self.connections[say.connection] = connection
            if say.connection < "r":
                connection.open(self.script.options.get(say.connection, {}))
                if say.channel and say.method != "channel.open":
                    connection.open_channel(say.channel)
        return connection

    def _listen_until_quiet(self, settle: float) -> list[Answer]:
        answers: list[Answer] = []
        start = time.monotonic()
        last = start
        while True:
            now = time.monotonic()
            quiet_enough = now - last > SILENCE_S if answers else now - start > FIRST_ANSWER_S
            if quiet_enough and now - start > settle:
                return [self._normal(answer) for answer in answers]
            for connection in self._living():
                came = connection.read(0.01)
                if came:
                    answers += came
                    last = time.monotonic()
            if not self._living():
                return [self._normal(answer) for answer in answers]

    def _listen_for(self, awaited: Sequence[Answer]) -> list[Answer]:
        answers: list[Answer] = []
        end = time.monotonic() + self.timeout_s
        wanted = [answer[0][0] for answer in awaited]
        while time.monotonic() < end:
            got = [answer[0][0] for answer in answers]
            missing = [letter for letter in set(wanted) if got.count(letter) < wanted.count(letter)]
            listening = [connection for connection in self._living() if connection.letter in missing]
            if not listening:
                break
            for connection in listening:
                answers += connection.read(0.05 if len(listening) > 1 else end - time.monotonic())
        return [self._normal(answer) for answer in answers]

    def _living(self) -> list[DialogueConnection]:
        return [connection for connection in self.connections.values() if not connection.ended]

    # Names that the broker makes up are called $gen1, $tag1, ... in record and script.

    def _filled(self, value: Any) -> Any:
        if isinstance(value, str) and value.startswith("$"):
            return next((made for made, name in self._names.items() if name == value), value)
        return value

    def _normal(self, value: Any) -> Any:
        if isinstance(value, str):
            return _GENERATED.sub(self._called, value)
        if isinstance(value, list):
            if len(value) > 1 and value[1] == "connection.start":
                return [value[0], value[1], _start(value[2])]
            return [self._normal(item) for item in value]
        if isinstance(value, dict):
            if set(value) == {"!T"} and abs(value["!T"] - time.time()) < 3600:
                return {"!T": "now"}
            return {name: self._normal(item) for name, item in value.items()}
        return value

    def _called(self, match: re.Match[str]) -> str:
        made = match[0]
        if made not in self._names:
            kind = {"gen": "$gen", "ctag": "$tag"}.get(match[1], "$reply")
            number = 1 + sum(name.startswith(kind) for name in self._names.values())
            self._names[made] = f"{kind}{number}"
        return self._names[made]

    def _sweep(self) -> None:
        """Take away what the script declared: the next one starts with nothing."""
        queues, exchanges = set(), set()
        for say in (say for step in self.script.steps for say in step.says):
            if say.method == "queue.declare":
                queues.add(say.fields.get("queue", ""))
            elif say.method == "exchange.declare":
                exchanges.add(say.fields.get("exchange", ""))
        queues |= {made for made, name in self._names.items() if name.startswith("$gen")}
        if not queues and not exchanges:
            return
        sweeper = DialogueConnection("z", self.host, self.port)
        try:
            sweeper.open({})
            for kind, names in (("queue", queues), ("exchange", exchanges)):
                for name in sorted(names):
                    if not name or (name.startswith("amq.") and kind == "exchange") or len(name) > 200:
                        continue
                    try:
                        sweeper.open_channel(1)
                        sweeper.ask(1, f"{kind}.delete", {kind: name}, f"{kind}.delete-ok")
                        sweeper.ask(1, "channel.close", {}, "channel.close-ok")
                    except ConnectionEnded:
                        if sweeper.ended:
                            return
        finally:
            sweeper.close()


_GENERATED = re.compile(r"amq\.(gen|ctag)-[A-Za-z0-9_-]{22,}|amq\.rabbitmq\.reply-to\.[A-Za-z0-9+/=_.-]+")


def _start(fields: dict[str, Any]) -> dict[str, Any]:
    """Who the broker is differs; what it can does not."""
    properties = fields["server_properties"]
    return {
        "version": [fields["version_major"], fields["version_minor"]],
        "capabilities": properties["capabilities"],
        "mechanisms": sorted(fields["mechanisms"].split()),
        "locales": fields["locales"],
    }


def same(recorded: Sequence[Answer], answers: Sequence[Answer], unordered: bool) -> bool:
    """Frames of one channel come in order; which channel hears first is chance."""

    def by_channel(given: Iterable[Answer]) -> list[Answer]:
        if unordered:
            return sorted(given, key=lambda answer: json.dumps(answer, sort_keys=True))
        return sorted(given, key=lambda answer: str(answer[0]))

    return by_channel(recorded) == by_channel(answers)


# Recording and comparing


def record(script: Script, port: int) -> list[list[Answer]]:
    answers = []
    with DialoguePlayer(script, port) as stage:
        for step in script.steps:
            if step.again:
                time.sleep(step.settle)
            answers.append(stage.play(step, None))
    return answers


def compare(
    script: Script,
    recorded: Sequence[Sequence[Answer]],
    port: int,
    patient: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> list[str]:
    """How a broker differs from the record; it stops at the first step that does.

    `patient`: wait for quiet after each step. RabbitMQ needs it: its queues are processes of their own."""
    said: list[str] = []
    with DialoguePlayer(script, port, timeout_s) as stage:
        for step, expected in zip(script.steps, recorded, strict=True):
            said += [f"  > {say.as_text()}" for say in step.says]
            end = time.monotonic() + timeout_s
            try:
                answers = stage.play(step, None if patient else expected)
                while step.again and not same(expected, answers, step.unordered) and time.monotonic() < end:
                    time.sleep(0.01)
                    answers = stage.play(step, expected)
            except ConnectionEnded as ended:
                return [*said, f"  ! {ended}"]
            if not same(expected, answers, step.unordered):
                return [*said, *_difference(expected, answers)]
            said += [f"  < {json.dumps(answer)}" for answer in answers]
        extra = stage.rest()
        return [*said, *_difference([], extra)] if extra else []


def _difference(expected: Sequence[Answer], answers: Sequence[Answer]) -> list[str]:
    return [
        *(f"  - {json.dumps(answer)}" for answer in expected if answer not in answers),
        *(f"  + {json.dumps(answer)}" for answer in answers if answer not in expected),
        *(["  ! the same frames in another order"] if all(a in expected for a in answers) else []),
    ]


def load() -> dict[str, list[list[Answer]]]:
    read: dict[str, list[list[Answer]]] = json.loads(RECORD.read_text())
    return read


def save(records: dict[str, list[list[Answer]]]) -> None:
    """One line per step: a change of one answer is one line of difference."""
    scripts = []
    for name, steps in records.items():
        lines = ",\n".join("    " + json.dumps(step) for step in steps)
        scripts.append(f"  {json.dumps(name)}: [\n{lines}\n  ]")
    RECORD.write_text("{\n" + ",\n".join(scripts) + "\n}\n")


def script_as_text(script: Script, recorded: Sequence[Sequence[Answer]]) -> Iterator[str]:
    yield f"### {script.name}"
    for step, answers in zip(script.steps, recorded, strict=True):
        for say in step.says:
            yield f"> {say.as_text()}"
        for answer in answers:
            where, name, *more = answer
            fields = " ".join(
                f"{key}={json.dumps(value)}" for key, value in (more[0] if more else {}).items()
            )
            yield f"< {where} {name} {fields} {' '.join(json.dumps(item) for item in more[1:])}".rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    from tests.amqp.scripts import SCRIPTS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=5672)
    parser.add_argument("--patient", action="store_true", help="with --compare: for a RabbitMQ")
    parser.add_argument("--only", default="", help="scripts whose name contains this")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", action="store_true")
    what.add_argument("--show", action="store_true")
    what.add_argument("--compare", action="store_true")
    given = parser.parse_args(arguments)
    records = load() if RECORD.exists() else {}
    chosen = [script for script in SCRIPTS if given.only in script.name]
    differing = 0
    for script in chosen:
        if given.record:
            try:
                records[script.name] = record(script, given.port)
            except Exception as error:
                print(f"### {script.name}: {error!r}")
        elif given.show:
            print("\n".join(script_as_text(script, records[script.name])))
        elif lines := compare(script, records[script.name], given.port, given.patient):
            differing += 1
            print("\n".join([f"### {script.name}", *lines]))
    if given.record:
        save({script.name: records[script.name] for script in SCRIPTS if script.name in records})
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
