"""Requests signed by botocore, as they would look on the wire, and ways to spoil them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from random import Random
from urllib.parse import quote, urlencode

from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from openq.auth.sigv4 import KeyInfo, Signed, Verifier

ACCESS_KEY = "OQIAEXAMPLEEXAMPLE01"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
HOST = "127.0.0.1:9324"

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Wire:
    """One request as a server receives it, and the moment it was signed."""

    method: str
    target: bytes
    headers: Headers
    body: bytes
    now_s: float

    def header(self, name: bytes) -> bytes:
        return dict(self.headers)[name]

    def with_header(self, name: bytes, value: bytes) -> Wire:
        kept = [pair for pair in self.headers if pair[0] != name]
        return replace(self, headers=[*kept, (name, value)])

    def without_header(self, name: bytes) -> Wire:
        return replace(self, headers=[pair for pair in self.headers if pair[0] != name])


def verifier(secret: str = SECRET, **details: object) -> Verifier:
    info = KeyInfo(ACCESS_KEY, secret, **details)  # type: ignore[arg-type]
    return Verifier({ACCESS_KEY: info}.get)


def verify(wire: Wire, by: Verifier | None = None, now_s: float | None = None) -> Signed:
    moment = wire.now_s if now_s is None else now_s
    return (by or verifier()).verify(wire.method, wire.target, wire.headers, wire.body, moment)


def sign(
    method: str = "POST",
    target: str = "/",
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    *,
    host: str = HOST,
    expires: int | None = None,
    token: str | None = None,
    region: str = "us-east-1",
    service: str = "sqs",
    access_key: str = ACCESS_KEY,
    secret: str = SECRET,
) -> Wire:
    """Let botocore sign; `expires` makes it a presigned URL."""
    request = AWSRequest(method, f"http://{host}{target}", headers=dict(headers or {}), data=body)
    credentials = Credentials(access_key, secret, token)
    if expires is None:
        signer = SigV4Auth(credentials, service, region)
    else:
        signer = SigV4QueryAuth(credentials, service, region, expires)
    signer.add_auth(request)
    signed_s = datetime.strptime(request.context["timestamp"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    sent = [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
    sent.append((b"host", host.encode()))
    raw = request.url.removeprefix(f"http://{host}").encode()
    return Wire(method, raw or b"/", sent, body, signed_s.timestamp())


def send_message(body: str = "hello", **details: object) -> Wire:
    """The hot request: SendMessage in AWS JSON."""
    content = json.dumps({"QueueUrl": f"http://{HOST}/000000000000/orders", "MessageBody": body}).encode()
    headers = {
        "X-Amz-Target": "AmazonSQS.SendMessage",
        "Content-Type": "application/x-amz-json-1.0",
        "User-Agent": "Boto3/1.40 md/Botocore",
        "Content-Length": str(len(content)),
    }
    return sign("POST", "/", headers, content, **details)  # type: ignore[arg-type]


def any_text(random: Random, most: int = 20) -> str:
    alphabet = "abcXYZ019 -_.~/=&+%:;,'\"()[]{}!*@#$^<>?|\\`\tüßñ漢字🙂"
    return "".join(random.choice(alphabet) for _ in range(random.randrange(most)))


def any_name(random: Random) -> str:
    return "".join(
        random.choice("abcdefghijklmnopqrstuvwxyzABC0123456789_-.") for _ in range(random.randint(1, 12))
    )


def any_path(random: Random) -> str:
    """In normal form: of one that is not, `//`, another spelling such as `/?` is the same request to AWS."""
    kinds = ["/", "/000000000000/orders", "/000000000000/orders.fifo", "/111122223333/" + any_name(random)]
    kind = random.randrange(6)
    if kind < len(kinds):
        return kinds[kind].removesuffix("/..").removesuffix("/.")
    segments = [quote(any_text(random, 8), safe="~") for _ in range(random.randint(1, 4))]
    kept = [segment for segment in segments if segment.strip(".")]
    return "/" + "/".join(kept) + (random.choice(["", "/"]) if kept else "")


def any_request(random: Random) -> Wire:
    """Any shape a client may send: JSON, Query by POST or GET, presigned, with a session token or not."""
    shape = random.choice(["json", "json", "form", "get", "presigned", "presigned"])
    parameters = [(any_name(random), any_text(random)) for _ in range(random.randrange(6))]
    encoded = "&".join(f"{quote(n, safe='~')}={quote(v, safe='~')}" for n, v in parameters)
    headers = {
        f"X-{any_name(random).strip('.-_') or 'a'}": "value  " + any_name(random)
        for _ in range(random.randrange(3))
    }
    path = any_path(random)
    token = "session-" + any_name(random) + "/+=" if random.random() < 0.2 else None
    region = random.choice(["us-east-1", "eu-central-1", "elasticmq", "local"])
    if shape == "json":
        content = json.dumps({"MessageBody": any_text(random, 400)}, ensure_ascii=False).encode()
        headers |= {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0"}
        return sign("POST", path, headers, content, token=token, region=region)
    if shape == "form":
        content = urlencode([("Action", "SendMessage"), *parameters]).encode()
        headers["Content-Type"] = "application/x-www-form-urlencoded; charset=utf-8"
        return sign("POST", path, headers, content, token=token, region=region)
    target = f"{path}?Action=ReceiveMessage" + (f"&{encoded}" if encoded else "")
    expires = random.randint(1, 604_800) if shape == "presigned" else None
    return sign("GET", target, headers, token=token, region=region, expires=expires)


def mutations(wire: Wire, random: Random, count: int) -> Iterator[tuple[str, Wire]]:
    """`count` copies, each with one byte changed where the signature must notice it.

    Left out is only what is the same request: white space of another kind in a header's value, a letter of
    another case in its name.
    """
    names = (
        wire.header(b"authorization") if any(n == b"authorization" for n, _ in wire.headers) else wire.target
    )
    signed = [
        index
        for index, (name, value) in enumerate(wire.headers)
        if value and (name == b"authorization" or name in names.lower())
    ]
    for _ in range(count):
        place = random.choice(["method", "target", "header", "header", "name", "body", "body"])
        if place == "method":
            yield place, replace(wire, method=_spoiled(wire.method.encode(), random).decode("latin-1"))
        elif place == "target":
            yield place, replace(wire, target=_spoiled(wire.target, random))
        elif place == "body" and wire.body:
            yield place, replace(wire, body=_spoiled(wire.body, random))
        elif place == "body":
            yield place, replace(wire, body=bytes([random.randrange(256)]))
        elif place == "header":
            index = random.choice(signed)
            name, value = wire.headers[index]
            spoiled = _spoiled(value, random)
            if spoiled.split() == value.split():
                continue
            yield f"{name.decode()} value", _with(wire, index, (name, spoiled))
        else:
            index = random.choice(signed)
            name, value = wire.headers[index]
            other = _spoiled(name, random).lower()
            if other != name:
                yield f"{name.decode()} name", _with(wire, index, (other, value))


def _with(wire: Wire, index: int, pair: tuple[bytes, bytes]) -> Wire:
    headers = list(wire.headers)
    headers[index] = pair
    return replace(wire, headers=headers)


def _spoiled(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ random.randint(1, 255)]) + data[at + 1 :]
