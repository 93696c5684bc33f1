"""Hostile requests by the thousand, repeatable by seed: `python -m tests.server.fuzz --minutes 10`.

A whole server without sockets is fed bytes. Whatever comes in, no answer is a 500, nothing is logged as an
error, every answer is well-formed HTTP, no request hangs, and nothing piles up. `Framing` holds the parser
to a second, strict one: it may refuse more, but must never see a request where that one sees none.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import logging
import random
import re
import sys
import time
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from openq.config import Config
from openq.errors import OpenQError
from openq.local.broker import LocalBroker
from openq.model import QueueSettings
from openq.rest.handler import ROUTES
from openq.rest.routes import EVENT_STREAM, Route
from openq.server.app import Server
from openq.server.http import HttpConnection
from openq.server.http_request import HttpRequest
from openq.sqs.requests import REQUESTS
from tests.server.fuzz_connection import FuzzFailure, Logged, MemoryTransport, answers_in
from tests.server.fuzz_framing import Framing, mutated, pieces_of

TIMEOUT_S = 10.0  # for one request; after it, it hangs
TURNS = 50  # of the loop, before a thread is waited for


class FuzzServer:
    """A server in memory, fed by hand."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.broker = LocalBroker(history_bytes=1 << 16)  # else a long campaign measures what it may keep
        config = Config(memory=True, max_request_bytes=1 << 20, limits="testing")
        self.server = Server(config, self.broker, self.loop)
        self.listener = self.server.listener
        self.logged = Logged()
        self.cases = 0
        log = logging.getLogger("openq")
        log.addHandler(self.logged)
        self._level = log.level
        log.setLevel(logging.DEBUG)  # what is only logged when somebody looks is a line too

    def close(self) -> None:
        log = logging.getLogger("openq")
        log.removeHandler(self.logged)
        log.setLevel(self._level)
        self.server.context.close()
        self.broker.close()
        self.loop.close()

    def __enter__(self) -> FuzzServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _turn(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def feed(self, pieces: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """One connection: all of its bytes, its answers, and its end. Raises Found."""
        self.cases += 1
        pipe = MemoryTransport(self.loop)
        connection = pipe.protocol = self.listener.make()
        methods: list[str] = []
        handler = self.server.router.handle

        def handle(request: HttpRequest) -> None:
            methods.append(request.method)
            handler(request)

        self.listener.handler = handle
        connection.connection_made(pipe)
        for piece in pieces:
            self._settle(connection, pipe, lambda: pipe.reading)
            if pipe.closed:
                break
            connection.data_received(piece)
        self._settle(connection, pipe, lambda: pipe.is_answered(connection))
        if not pipe.closed:
            pipe.is_gone = True
            pipe.close()
        self._turn()
        self._turn()
        answers = answers_in(pipe.written, lambda n: n < len(methods) and methods[n] == "HEAD")
        self._check(answers)
        return answers

    def _settle(self, connection: HttpConnection, pipe: MemoryTransport, done: Callable[[], bool]) -> None:
        """Let the loop run until `done`, or until the one who is asked waits for messages."""
        until = time.monotonic() + TIMEOUT_S
        turns = 0
        while not done() and not pipe.closed:
            self._turn()
            turns += 1
            if self.server.context.long_polls:
                return
            if turns > TURNS:
                time.sleep(0.0005)  # a thread of the server works
            if time.monotonic() > until:
                raise FuzzFailure("a request hangs")

    def _check(self, answers: list[tuple[int, bytes]]) -> None:
        if self.logged.errors:
            errors, self.logged.errors = self.logged.errors, []
            raise FuzzFailure(f"logged: {errors}")
        for status, body in answers:
            if status == 500:
                raise FuzzFailure(f"500: {body[:300]!r}")
            if b"Traceback" in body:
                raise FuzzFailure(f"a traceback: {body!r}")
        if self.listener.connections or self.server.context.long_polls:
            raise FuzzFailure("something is left of a connection that ended")

    def tidy(self) -> None:
        """Queues and exchanges back to none: else a long campaign measures its own rubbish."""
        for name in list(self.broker.queues()):
            try:
                self.broker.delete(name)
            except OpenQError:
                pass
        for exchange in self.broker.engine.router.exchanges():
            try:
                self.broker.exchanges.delete_exchange(exchange.name)
            except OpenQError:
                pass


# -- values that nobody expects ----------------------------------------------------------------------

REDRIVE_POLICY = '{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:dead","maxReceiveCount":3}'
# fmt: off
TEXTS = [
    "", " ", ".", "..", "../../etc/passwd", "/", "//", "\\", "a/b", "%2e%2e%2f", "%", "%zz", "a\0b", "\0",
    "a\r\nX: y", "a\nb", "\r", "\u2028", "é", "\u202e", "\U0001f600", "\ufeff", "\ufffe", "x" * 81,
    "x" * 256, "x" * 10_000, "@", "@/", "@a/b", "@%2F/x", "*", "?", "#", "a b", "q.fifo", ".fifo",
    "q.fifo.fifo", "<b>", "'; drop table", '"', "{}", "[]", "null", "true", "0", "-1", "1e999", "NaN",
    "9" * 30, "0x10", "1_000", "٣", "http://localhost/000000000000/q", "http://[", "http://[::1", "//",
    "http://localhost/", "q", "dead", "http://localhost/000000000000/" + "x" * 3000,
    "http://localhost/٣٣/q", "http://a:b@c:99999999/1/q", "http://localhost/000000000000/%00",
    "http://localhost/%ff/q", "arn:aws:sqs:us-east-1:000000000000:q",
    "arn:aws:sqs:us-east-1:000000000000:dead", "arn:aws:sqs:::", ":::::", "arn:aws:sqs:us-east-1:٣:q",
    "All", REDRIVE_POLICY, "[" * 5000, '{"deadLetterTargetArn":5,"maxReceiveCount":[]}',
    '{"redrivePermission":"x"}', '{"Statement":"x"}', "[1]",
    '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":"*","Resource":"*"}]}',
    "String", "Number", "Binary", "Number.x", "String." + "x" * 300, "SQS.x", "AWSTraceHeader",
    "Root=1-a-b",
]
# fmt: on
RAW_TEXTS = [*TEXTS, "\ud800", "a\udfffb"]
NUMBERS = [0, 1, -1, 10, 11, 20, 21, 43200, 43201, 2**31, 2**53, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, 1e-9]


def hostile(chance: random.Random, depth: int = 0) -> Any:
    what = chance.randrange(8)
    if what < 3 or depth > 3:
        return chance.choice(RAW_TEXTS)
    if what == 3:
        return chance.choice(NUMBERS)
    if what == 4:
        return chance.choice([None, True, False])
    if what == 5:
        return [hostile(chance, depth + 1) for _ in range(chance.randint(0, 3))]
    if what == 6:
        return {chance.choice(TEXTS): hostile(chance, depth + 1) for _ in range(chance.randint(0, 3))}
    return base64.b64encode(chance.randbytes(chance.randint(0, 9))).decode()


# What a careful client would say, by the name of the member; without it next to nothing would be accepted.
LIKELY: dict[str, list[Any]] = {
    "QueueUrl": [f"http://localhost/000000000000/{name}" for name in ("q", "q", "q.fifo", "dead", "none")],
    "QueueName": ["q", "dead", "q.fifo", "new", "new.fifo"],
    "SourceArn": ["arn:aws:sqs:us-east-1:000000000000:dead"],
    "DestinationArn": ["arn:aws:sqs:us-east-1:000000000000:q"],
    "DataType": ["String", "Number", "Binary", "String.x"],
    "StringValue": ["1", "x", "1e5", "-0", "é"],
    "AttributeNames": [["All"], ["QueueArn", "Policy"], ["SenderId"]],
    "MessageSystemAttributeNames": [["All"], ["SentTimestamp"]],
    "MessageAttributeNames": [["All"], [".*"], ["a.*"], ["a"]],
    "Attributes": [{}, {"VisibilityTimeout": "5"}, {"DelaySeconds": "0"}, {"RedrivePolicy": REDRIVE_POLICY}],
    "WaitTimeSeconds": [0],
    "VisibilityTimeout": [0, 1, 30],
    "DelaySeconds": [0, 1],
    "MaxNumberOfMessages": [1, 10],
    "AWSAccountIds": [["111111111111"]],
    "Actions": [["SendMessage"], ["*"]],
    "Label": ["label"],
    "wait": [0],
    "to": ["q", "dead"],
    "dlq": ["dead", None],
    "source": ["x", "amq.topic"],
    "destination": ["q"],
    "queue": ["q"],
}
KNOWN: dict[str, list[Any]] = {}  # what the server itself handed out: receipts and ids
_POOL = 50
_HANDED_OUT = re.compile(rb'"(ReceiptHandle|receipt_id|id|MessageId|TaskHandle)":"([^"\\\\]{1,400})"')


def remember(body: bytes) -> None:
    for name, value in _HANDED_OUT.findall(body):
        pool = KNOWN.setdefault(name.decode(), [])
        pool.append(value.decode())
        if len(pool) > _POOL:
            del pool[0]


class Maker:
    """Values of a type, more or less; `malice` is how often a part of them is anything at all."""

    def __init__(self, chance: random.Random) -> None:
        self._random_fraction = chance
        self._malice = chance.choice((0.0, 0.0, 0.02, 0.1))

    def made(self, kind: Any, name: str = "", depth: int = 0) -> Any:
        chance = self._random_fraction
        if chance.random() < self._malice or depth > 6:
            return hostile(chance)
        likely = KNOWN.get(name) or LIKELY.get(name)
        if likely is not None and chance.random() < 0.8:
            return chance.choice(likely)
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated:
            return self.made(arguments[0], name, depth)
        if origin is typing.Literal:
            return chance.choice(arguments)
        if origin in (typing.Union, types.UnionType):
            options = [each for each in arguments if each not in (type(None), msgspec.UnsetType)]
            return self.made(chance.choice(options), name, depth) if options else None
        if origin is list:
            return [self.made(arguments[0], name, depth + 1) for _ in range(chance.choice((0, 1, 1, 2, 11)))]
        if origin is dict:
            names = ("a", "b", "c", *TEXTS[:4]) if chance.random() > self._malice else TEXTS
            return {
                chance.choice(names): self.made(arguments[1], "", depth + 1)
                for _ in range(chance.choice((0, 1, 2)))
            }
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.struct(kind, depth)
        if kind is bool:
            return chance.choice((True, False))
        if kind is int:
            return chance.choice((0, 1, 2, 5, 10, 11, 300, 10**9))
        if kind is float:
            return chance.choice((0, 0.001, 1, 30, 1e9, 1e300, -1))
        if kind is bytes:
            return base64.b64encode(chance.randbytes(chance.randint(0, 9))).decode()
        if kind is str:
            usual = ("q", "q.fifo", "dead", "a", "b", "x" * chance.randint(0, 300))
            return chance.choice(usual if chance.random() > self._malice else TEXTS)
        return hostile(chance, depth + 1)

    def struct(self, kind: type[msgspec.Struct], depth: int = 0) -> dict[str, Any]:
        value: dict[str, Any] = {}
        often = self._random_fraction.choice((0.0, 0.1, 0.3))
        for field in msgspec.structs.fields(kind):
            if self._random_fraction.random() < (1 - self._malice if field.required else often):
                value[field.encode_name] = self.made(field.type, field.encode_name, depth + 1)
        return value


def as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def as_msgpack(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeError, ValueError):
        return b"\xc1"


def flattened(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """As the Query protocol writes lists and maps."""
    if isinstance(value, dict):
        for name, each in value.items():
            singular = name.removesuffix("s") if isinstance(each, list | dict) else name
            yield from flattened(each, f"{prefix}.{singular}" if prefix else singular)
    elif isinstance(value, list):
        for n, each in enumerate(value, 1):
            yield from flattened(each, f"{prefix}.{n}")
    else:
        yield prefix, str(value)


def quoted(chance: random.Random, text: str, safe: bool = False) -> str:
    """Percent-encoded, more or less."""
    data = text.encode("utf-8", "surrogatepass")
    if chance.random() < 0.1 and not safe:
        return re.sub(r"[\0-\x20\x7f]", "", data.decode("latin-1"))
    return "".join(f"%{byte:02X}" if not chr(byte).isalnum() or byte > 127 else chr(byte) for byte in data)


JSON = ("Content-Type: application/json",)


def request_of(
    method: str, target: str, body: bytes, headers: Sequence[str] = (), host: str = "localhost"
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class ProtocolFuzzer:
    """Requests that are nearly right, to every action and every route."""

    def __init__(self, server: FuzzServer) -> None:
        self.server = server
        # The stream of live values has no end that could be waited for.
        left_out = ("users", "keys", "tokens", "live")
        self._routes = [route for route in ROUTES if not route.path.startswith(left_out)]
        self.furnish()

    def furnish(self) -> None:
        """Queues for requests to meet, with a few messages, some of them dead."""
        broker = self.server.broker
        for name in ("dead", "q", "q.fifo"):
            if name not in broker.queues():
                fifo = name.endswith(".fifo")
                broker.declare(name, QueueSettings(fifo=fifo))
            elif broker.settings(name).paused:
                broker.declare(name, broker.settings(name).with_(paused=False), change=True)
        settings = broker.settings("q")
        if settings.dead_letter is None and settings.dead_letter_exchange is None:
            broker.declare("q", settings.with_(dead_letter="dead", max_receives=2), change=True)
        if broker.stats("q").ready < 5:
            for n in range(5):
                self.server.feed(
                    [request_of("POST", "/api/v1/queues/q/messages", b'{"payload":%d}' % n, JSON)]
                )
            dead = broker.receive("q", 1)
            for each in dead:
                broker.reject("q", [(each.entry.seq, each.number)])

    def one(self, chance: random.Random) -> None:
        if self.server.cases % 500 == 0:
            self.server.tidy()
        if self.server.cases % 10 == 0:
            self.furnish()
        make = chance.choice((self.json, self.query, self.rest, self.rest))
        data = make(chance)
        try:
            answers = self.server.feed(pieces_of(chance, data) if chance.random() < 0.1 else [data])
            for _, body in answers:
                remember(body)
        except FuzzFailure as found:
            raise FuzzFailure(f"{found}: {data[:3000]!r}") from found

    def json(self, chance: random.Random) -> bytes:
        action = chance.choice(list(REQUESTS))
        body = as_json(Maker(chance).struct(REQUESTS[action]))
        if chance.random() < 0.2:
            body = mutated(chance, body)
        return sqs(action, body, chance)

    def query(self, chance: random.Random) -> bytes:
        action = chance.choice(list(REQUESTS))
        pairs = [("Action", action), *flattened(Maker(chance).struct(REQUESTS[action]))]
        form = "&".join(f"{quoted(chance, name)}={quoted(chance, value)}" for name, value in pairs)
        path = chance.choice(("/", "/", "/000000000000/q", "/" + quoted(chance, chance.choice(TEXTS))))
        data = form.encode("latin-1")
        if chance.random() < 0.2:
            data = mutated(chance, data)
        if chance.random() < 0.3:
            line = re.sub(r"[\0-\x20\x7f]", "", data.decode("latin-1"))
            return request_of("GET", f"{path[:2000]}?{line[:8000]}", b"")
        kind = "Content-Type: application/x-www-form-urlencoded"
        return request_of("POST", path[:2000], data, [kind])

    def rest(self, chance: random.Random) -> bytes:
        route = chance.choice(self._routes)
        target = "/api/v1/" + "/".join(self._part(chance, part) for part in route.path.split("/"))
        if chance.random() < 0.1:
            account = quoted(chance, chance.choice(TEXTS))
            target = target.replace("/api/v1/", f"/api/v1/accounts/{account}/")
        query = Maker(chance).struct(route.query) if chance.random() < 0.6 else {}
        if chance.random() < 0.1:
            query[chance.choice(TEXTS)] = hostile(chance)
        if EVENT_STREAM in route.media:
            query["follow"] = "0"  # until the last event
        if query:
            pairs = [
                f"{quoted(chance, str(name))}={quoted(chance, str(each))}" for name, each in query.items()
            ]
            target += "?" + "&".join(pairs)
        method = (
            route.method if chance.random() < 0.95 else chance.choice(("HEAD", "PATCH", "OPTIONS", "PUT"))
        )
        body, kind = self._body(chance, route)
        accept = chance.choice(("*/*", "application/json", "application/msgpack"))
        if chance.random() < 0.05:
            accept = chance.choice(("text/html;q=0.1, a/b", ";;,,", "*/*;q=0", "application/*;q=x", "\xff"))
        return request_of(method, target[:9000], body, [f"Content-Type: {kind}", f"Accept: {accept}"])

    def _part(self, chance: random.Random, part: str) -> str:
        if not part.startswith("{"):
            return part
        if chance.random() < 0.7:
            return chance.choice(("q", "dead", "q.fifo", "1", "none"))
        return quoted(chance, chance.choice(RAW_TEXTS))

    def _body(self, chance: random.Random, route: Route) -> tuple[bytes, str]:
        value = Maker(chance).made(route.request) if route.request is not None else hostile(chance)
        if isinstance(value, dict) and route.request is not None and "payload" not in value:
            value = {**value, "payload": hostile(chance)} if chance.random() < 0.3 else value
        if chance.random() < 0.4:
            body, kind = as_msgpack(value), "application/msgpack"
        else:
            body, kind = as_json(value), "application/json"
        if chance.random() < 0.25:
            body = mutated(chance, body)
        if chance.random() < 0.05:
            kind = chance.choice(
                ("text/plain", "application/json; charset=utf-16", "", "application/msgpack ;x")
            )
        return body, kind


def sqs(action: str, body: bytes, chance: random.Random | None = None) -> bytes:
    headers = [f"X-Amz-Target: AmazonSQS.{action}", "Content-Type: application/x-amz-json-1.0"]
    host = "localhost"
    if chance is not None and chance.random() < 0.05:
        host = chance.choice(
            ("[::1", "[", "\xff", "a:b", "localhost:99999999", "[::1]:80", "evil.com", "a@b", "")
        )
    if chance is not None and chance.random() < 0.05:
        key = chance.choice(("000000000000", "111111111111", "\xb2" * 12, "x"))
        headers.append(f"Authorization: AWS4-HMAC-SHA256 Credential={key}/x")
    return request_of("POST", "/", body, headers, host)


class SignIns:
    """Requests to a server with users, by somebody who is none of them."""

    PUBLIC = re.compile(
        r"/livez|/readyz|/healthz|/openapi\.json|/api/v1/(accounts/[^/]+/)?health|/api/v1/session"
    )

    def __init__(self) -> None:
        self.server = FuzzServer()
        store = self.server.server.store
        store.add_user("admin", password="correct horse battery", role="admin")
        self._key = store.create_key("admin").id
        self._token = store.create_token("admin", "t")
        self.server.server.guard.refresh()
        self._makers = ProtocolFuzzer.__new__(ProtocolFuzzer)
        self._makers._routes = list(ROUTES)

    def close(self) -> None:
        self.server.close()

    def one(self, chance: random.Random) -> None:
        data = chance.choice((self._makers.json, self._makers.query, self._makers.rest))(chance)
        line, _, rest = data.partition(b"\r\n")
        rest = rest.replace(b"Authorization: ", b"X-Other: ")
        value = self._credentials(chance)
        header = b"" if value is None else b"Authorization: " + value + b"\r\n"
        data = line + b"\r\n" + header + rest
        guard = self.server.server.guard
        guard._failures = type(guard._failures)()  # else all would end as too many failures
        try:
            answers = self.server.feed([data])
        except FuzzFailure as found:
            raise FuzzFailure(f"{found}: {data[:3000]!r}") from found
        path = line.split(b" ")[1].partition(b"?")[0].decode("latin-1")
        if not self.PUBLIC.fullmatch(path) and any(status < 400 for status, _ in answers):
            raise FuzzFailure(f"let in: {answers}: {data[:3000]!r}")

    def _credentials(self, chance: random.Random) -> bytes | None:
        scope = f"{self._key}/20260101/us-east-1/sqs/aws4_request"
        signed = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature={'0' * 64}"
        basic = base64.b64encode(f"admin:{chance.choice(TEXTS)}".encode())
        value = chance.choice(
            (
                None,
                b"Bearer " + mutated(chance, self._token[:-1].encode()),
                b"Basic " + mutated(chance, basic),
                mutated(chance, signed.encode()),
                b"Basic " + base64.b64encode(chance.randbytes(9)),
                chance.randbytes(12),
            )
        )
        return None if value is None else re.sub(rb"[\0-\x1f\x7f]", b"", value)


class Streams:
    """The same requests broken as bytes, several on one connection."""

    def __init__(self, fuzzer: ProtocolFuzzer) -> None:
        self._fuzzer = fuzzer

    def one(self, chance: random.Random) -> None:
        fuzzer = self._fuzzer
        makers = (fuzzer.json, fuzzer.query, fuzzer.rest)
        stream = b"".join(chance.choice(makers)(chance) for _ in range(chance.randint(1, 4)))
        data = mutated(chance, stream)
        try:
            fuzzer.server.feed(pieces_of(chance, data))
        except FuzzFailure as found:
            raise FuzzFailure(f"{found}: {data[:3000]!r}") from found


# -- campaigns ----------------------------------------------------------------------------------------


def run(kind: str, one: Callable[[random.Random], None], seed: int, count: int) -> None:
    """`count` cases; each can be repeated alone by its name."""
    for n in range(count):
        try:
            one(random.Random(f"{kind} {seed} {n}"))
        except FuzzFailure as found:
            raise FuzzFailure(f"{kind}, seed {seed}, case {n}: {found}") from found


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.server.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(random.randbytes(3)))
    options = parser.parse_args()
    logging.getLogger("openq").propagate = False
    print(f"seed {options.seed}")
    until = time.monotonic() + options.minutes * 60
    complaints = 0
    framing = Framing()
    with FuzzServer() as server:
        fuzzer = ProtocolFuzzer(server)
        sign_ins = SignIns()
        kinds = {
            "framing": framing.one,
            "protocols": fuzzer.one,
            "streams": Streams(fuzzer).one,
            "sign-ins": sign_ins.one,
        }
        counts = dict.fromkeys(kinds, 0)
        settled = 0
        while time.monotonic() < until:
            for kind, one in kinds.items():
                for _ in range(500):
                    number = counts[kind]
                    counts[kind] += 1
                    try:
                        one(random.Random(f"{kind} {options.seed} {number}"))
                    except FuzzFailure as found:
                        complaints += 1
                        print(f"{kind}, seed {options.seed}, case {number}: {str(found)[:3000]}", flush=True)
            server.tidy()
            settled = settled or (resident_bytes() if counts["protocols"] >= 5000 else 0)
        grown = resident_bytes() - settled if settled else 0
        sign_ins.close()
    framing.close()
    print(f"{counts}, {complaints} complaints, grown by {grown >> 10} KiB since the first 5,000")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
