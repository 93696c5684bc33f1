"""The requests as bytes: Amazon SQS in both of its protocols, and our own REST batch.

They carry the headers that boto3 sends, so that a server parses what it would have to parse in real life.
"""

from __future__ import annotations

import importlib
import json
import re
import socket
import urllib.parse
from collections.abc import Sequence
from typing import Any, Self

BODY_BYTES = 100
VARIETY = 500  # requests that differ in their body
VISIBILITY_S = 600
_AGENT = "Boto3/1.44.0 md/Botocore#1.44.0 ua/2.1 os/linux md/arch#x86_64 lang/python#3.11 md/pyimpl#CPython"
_CREDENTIAL = "AKIAIOSFODNN7EXAMPLE/20260101/us-east-1/sqs/aws4_request"


class SqsRequests:
    """The requests to one queue of one server."""

    def __init__(self, port: int, queue_url: str) -> None:
        self.port = port
        self.queue_url = queue_url

    @classmethod
    def create(cls, port: int, name: str) -> Self:
        raise NotImplementedError

    def sends(self) -> list[bytes]:
        raise NotImplementedError

    def batches(self) -> list[bytes]:
        """Ten messages each."""
        raise NotImplementedError

    def receive(self) -> bytes:
        """Up to ten messages."""
        raise NotImplementedError

    def delete(self, receipts: list[bytes]) -> bytes:
        raise NotImplementedError

    def drop(self) -> None:
        """Delete the queue."""
        raise NotImplementedError


class AwsJson(SqsRequests):
    @classmethod
    def create(cls, port: int, name: str) -> Self:
        attributes = {"VisibilityTimeout": str(VISIBILITY_S)}
        answer = _ask_json(port, "CreateQueue", {"QueueName": name, "Attributes": attributes})
        return cls(port, answer["QueueUrl"])

    def sends(self) -> list[bytes]:
        return [self._call("SendMessage", {"MessageBody": body(number)}) for number in range(VARIETY)]

    def batches(self) -> list[bytes]:
        return [
            self._call(
                "SendMessageBatch",
                {"Entries": [{"Id": str(at), "MessageBody": body(10 * number + at)} for at in range(10)]},
            )
            for number in range(VARIETY // 10)
        ]

    def receive(self) -> bytes:
        return self._call("ReceiveMessage", {"MaxNumberOfMessages": 10})

    def delete(self, receipts: list[bytes]) -> bytes:
        entries = b",".join(_JSON_ENTRY % (at, receipt) for at, receipt in enumerate(receipts))
        content = b'{"QueueUrl": "%b", "Entries": [%b]}' % (self.queue_url.encode(), entries)
        return post_json(self.port, "DeleteMessageBatch", content)

    def receive_one(self) -> bytes:
        return self._call("ReceiveMessage", {"MaxNumberOfMessages": 1})

    def delete_one(self, receipts: list[bytes]) -> bytes:
        [receipt] = receipts
        content = b'{"QueueUrl": "%b", "ReceiptHandle": "%b"}' % (self.queue_url.encode(), receipt)
        return post_json(self.port, "DeleteMessage", content)

    def drop(self) -> None:
        _ask_json(self.port, "DeleteQueue", {"QueueUrl": self.queue_url})

    def _call(self, action: str, parameters: dict[str, Any]) -> bytes:
        return post_json(self.port, action, json.dumps({"QueueUrl": self.queue_url, **parameters}).encode())


_JSON_ENTRY = b'{"Id": "%d", "ReceiptHandle": "%b"}'


def signing_client(port: int, key: str, secret: str) -> Any:
    return importlib.import_module("boto3").client(
        "sqs",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
    )


class SignedJson(AwsJson):
    """SendMessage as boto3 itself makes and signs it; good for a quarter of an hour."""

    def __init__(self, port: int, queue_url: str, client: Any) -> None:
        super().__init__(port, queue_url)
        self._client = client

    @classmethod
    def create_with_key(cls, port: int, name: str, key: str, secret: str) -> Self:
        client = signing_client(port, key, secret)
        return cls(port, client.create_queue(QueueName=name)["QueueUrl"], client)

    def sends(self) -> list[bytes]:
        requests: list[bytes] = []
        answer_class = importlib.import_module("botocore.awsrequest").AWSResponse

        class Nothing:
            def stream(self) -> list[bytes]:
                return [b"{}"]

        def keep(request: Any, **_: Any) -> Any:
            # What goes over the wire is what http.client would make of it. Nothing is sent.
            headers = [(name, _text(value)) for name, value in request.headers.items()]
            path = urllib.parse.urlsplit(request.url).path or "/"
            headers = [pair for pair in headers if pair[0].lower() != "content-length"]
            requests.append(_post(self.port, path, headers, request.body))
            return answer_class(request.url, 200, {}, Nothing())

        self._client.meta.events.register("before-send.sqs.SendMessage", keep)
        for number in range(4 * VARIETY):
            self._client.send_message(QueueUrl=self.queue_url, MessageBody=body(number))
        return requests

    def drop(self) -> None:
        self._client.delete_queue(QueueUrl=self.queue_url)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class AwsQuery(SqsRequests):
    @classmethod
    def create(cls, port: int, name: str) -> Self:
        attribute = {"Attribute.1.Name": "VisibilityTimeout", "Attribute.1.Value": str(VISIBILITY_S)}
        status, content = ask(port, _post_form(port, "/", "CreateQueue", {"QueueName": name, **attribute}))
        url = re.search(rb"<QueueUrl>([^<]+)", content)
        if status != 200 or url is None:
            raise OSError(f"CreateQueue answered {status}: {content[:300]!r}")
        return cls(port, url[1].decode())

    def sends(self) -> list[bytes]:
        return [self._call("SendMessage", {"MessageBody": body(number)}) for number in range(VARIETY)]

    def batches(self) -> list[bytes]:
        name = "SendMessageBatchRequestEntry"
        return [
            self._call(
                "SendMessageBatch",
                {f"{name}.{at}.Id": str(at) for at in range(1, 11)}
                | {f"{name}.{at}.MessageBody": body(10 * number + at) for at in range(1, 11)},
            )
            for number in range(VARIETY // 10)
        ]

    def receive(self) -> bytes:
        return self._call("ReceiveMessage", {"MaxNumberOfMessages": "10"})

    def delete(self, receipts: list[bytes]) -> bytes:
        name = "DeleteMessageBatchRequestEntry"
        numbered = list(enumerate((receipt.decode() for receipt in receipts), 1))
        return self._call(
            "DeleteMessageBatch",
            {f"{name}.{at}.Id": str(at) for at, _ in numbered}
            | {f"{name}.{at}.ReceiptHandle": receipt for at, receipt in numbered},
        )

    def drop(self) -> None:
        ask(self.port, self._call("DeleteQueue", {}))

    def _call(self, action: str, parameters: dict[str, str]) -> bytes:
        return _post_form(self.port, urllib.parse.urlsplit(self.queue_url).path, action, parameters)


def body(number: int) -> str:
    """Bodies differ, so that caching one does not help."""
    return f"{number:08d}".ljust(BODY_BYTES, "x")


def post_json(port: int, action: str, content: bytes, date: str = "20260101T000000Z") -> bytes:
    return _post(
        port,
        "/",
        [
            ("X-Amz-Target", f"AmazonSQS.{action}"),
            ("Content-Type", "application/x-amz-json-1.0"),
            ("User-Agent", _AGENT),
            ("X-Amz-Date", date),
            (
                "Authorization",
                f"AWS4-HMAC-SHA256 Credential={_CREDENTIAL}, "
                f"SignedHeaders=content-type;host;x-amz-date;x-amz-target, Signature={'0' * 64}",
            ),
        ],
        content,
    )


def _post_form(port: int, path: str, action: str, parameters: dict[str, str]) -> bytes:
    form = {"Action": action, "Version": "2012-11-05", **parameters}
    return _post(
        port,
        path,
        [
            ("Content-Type", "application/x-www-form-urlencoded; charset=utf-8"),
            ("User-Agent", _AGENT),
            ("X-Amz-Date", "20260101T000000Z"),
            (
                "Authorization",
                f"AWS4-HMAC-SHA256 Credential={_CREDENTIAL}, "
                f"SignedHeaders=content-type;host;x-amz-date, Signature={'0' * 64}",
            ),
        ],
        urllib.parse.urlencode(form).encode(),
    )


def post_msgpack(port: int, path: str, content: bytes) -> bytes:
    return _post(
        port, path, [("Content-Type", "application/msgpack"), ("Accept", "application/msgpack")], content
    )


def _post(port: int, path: str, headers: Sequence[tuple[str, str]], content: bytes) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Accept-Encoding: identity",
        *(f"{name}: {value}" for name, value in headers),
        f"Content-Length: {len(content)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def _ask_json(port: int, action: str, parameters: dict[str, Any]) -> dict[str, Any]:
    status, content = ask(port, post_json(port, action, json.dumps(parameters).encode()))
    if status != 200:
        raise OSError(f"{action} answered {status}: {content[:300]!r}")
    answer: dict[str, Any] = json.loads(content or b"{}")
    return answer


def ask(port: int, request: bytes, timeout_s: float = 10.0) -> tuple[int, bytes]:
    """One request on a connection of its own: status and body. OSError without a response."""
    head, _, rest = request.partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.sendall(head + b"\r\nConnection: close\r\n\r\n" + rest)
        data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    if not data.startswith(b"HTTP/1."):
        raise OSError(f"no HTTP answer: {data[:100]!r}")
    return int(data[9:12]), data.partition(b"\r\n\r\n")[2]
