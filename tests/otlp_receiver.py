"""A collector: a real server that takes OTLP, over HTTP and gRPC, and keeps the spans that it was sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.waiting import until


@dataclass(frozen=True)
class SeenSpan:
    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[tuple[str, str], ...]  # trace and span
    attributes: dict[str, Any]
    error: str
    start_ns: int
    end_ns: int

    @property
    def operation(self) -> str:
        return str(self.attributes.get("messaging.operation.type"))


@dataclass
class Receiver:
    url: str = ""
    paths: list[str] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    _spans: list[SeenSpan] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, data: bytes) -> None:
        request = trace_service_pb2.ExportTraceServiceRequest.FromString(data)
        with self._lock:
            self.raw.append(data)
            for resource in request.resource_spans:
                service = _attributes(resource.resource.attributes).get("service.name", "")
                self._spans += [
                    _seen(service, each) for scope in resource.scope_spans for each in scope.spans
                ]

    @property
    def spans(self) -> list[SeenSpan]:
        with self._lock:
            return list(self._spans)

    def named(self, name: str, service: str | None = None) -> list[SeenSpan]:
        return [each for each in self.spans if each.name == name and service in (None, each.service)]

    def wait_for(self, name: str, count: int = 1, service: str | None = None) -> list[SeenSpan]:
        until(lambda: len(self.named(name, service)) >= count)
        return self.named(name, service)

    def one(self, name: str, service: str | None = None) -> SeenSpan:
        [span] = self.wait_for(name, 1, service)
        return span


def _attributes(values: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in values}


def _seen(service: str, span: Any) -> SeenSpan:
    kinds = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}
    return SeenSpan(
        service,
        span.name,
        kinds[span.kind],
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        _attributes(span.attributes),
        span.status.message if span.status.code == 2 else "",
        span.start_time_unix_nano,
        span.end_time_unix_nano,
    )


@contextmanager
def http_receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            receiver.paths.append(self.path)
            receiver.take(data)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def grpc_receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Service(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]
        def Export(self, request: Any, context: Any) -> Any:
            receiver.take(request.SerializeToString())
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    receiver.url = f"http://127.0.0.1:{port}"
    try:
        yield receiver
    finally:
        server.stop(None).wait()
