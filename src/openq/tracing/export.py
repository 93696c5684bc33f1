"""The tracer provider that sends spans to a collector by OTLP, over HTTP or gRPC.

Spans are exported in batches by a thread. If the collector is slow or unreachable, spans are dropped; the
thread that records them never waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased

from ..errors import InvalidSetting

PROTOCOLS = ("http", "grpc")
HTTP_PATH = "/v1/traces"
DEFAULT_TIMEOUT_S = 5.0


class ExportSettings(NamedTuple):
    """None: what OpenTelemetry's environment variables say, or their defaults."""

    endpoint: str | None = None
    protocol: str | None = None
    sample: float | None = None
    service_name: str = "openq"


def make_provider(settings: ExportSettings) -> TracerProvider:
    # The caller closes it, within a limited time.
    provider = TracerProvider(
        sampler=make_sampler(settings.sample), resource=_resource(settings), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(_exporter(settings)))
    return provider


def is_disabled() -> bool:
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def sample_of_environment(otherwise: float) -> float:
    """The share of new traces by OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG."""
    name = os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower().removeprefix("parentbased_")
    if name == "always_on":
        return 1.0
    if name == "always_off":
        return 0.0
    if name != "traceidratio":
        return otherwise
    try:
        return min(max(float(os.environ.get("OTEL_TRACES_SAMPLER_ARG", "1")), 0.0), 1.0)
    except ValueError:
        return 1.0


def make_sampler(sample: float | None) -> Sampler | None:
    """None: the one that the environment names."""
    if sample is None:
        return None
    if not 0 <= sample <= 1:
        raise InvalidSetting(f"sample must be 0 to 1, not {sample!r}")
    if sample == 1:
        return ParentBased(ALWAYS_ON)
    return ParentBased(TraceIdRatioBased(sample) if sample else ALWAYS_OFF)


def _resource(settings: ExportSettings) -> Resource:
    is_named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return Resource.create({} if is_named else {SERVICE_NAME: settings.service_name})


def _exporter(settings: ExportSettings) -> SpanExporter:
    protocol = settings.protocol or _protocol_of_environment()
    if protocol not in PROTOCOLS:
        raise InvalidSetting(f"the protocol of OTLP must be {' or '.join(PROTOCOLS)}, not {protocol!r}")
    endpoint = settings.endpoint
    if protocol == "grpc":
        make = _import_exporter("grpc", "openq[otel-grpc]")
        return make(endpoint=endpoint, timeout=_timeout_s())
    make = _import_exporter("http", "openq[otel]")
    if endpoint:
        endpoint = endpoint.rstrip("/")
        endpoint = endpoint if endpoint.endswith(HTTP_PATH) else endpoint + HTTP_PATH
    return make(endpoint=endpoint, timeout=_timeout_s())


def _timeout_s() -> float | None:
    """Of one export with its retries; None: what the environment says."""
    names = ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
    return None if any(name in os.environ for name in names) else DEFAULT_TIMEOUT_S


def _protocol_of_environment() -> str:
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        text = os.environ.get(name, "").strip()
        if text:
            return "http" if text == "http/protobuf" else text
    return "http"


def _import_exporter(kind: str, extra: str) -> Callable[..., SpanExporter]:
    from importlib import import_module

    try:
        module = import_module(f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter")
    except ImportError:
        raise InvalidSetting(f'OTLP over {kind} needs its exporter: pip install "{extra}"') from None
    make: Callable[..., SpanExporter] = module.OTLPSpanExporter
    return make
