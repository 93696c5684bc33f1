"""OpenTelemetry traces of messages: `pip install "openq[otel]"`, then `tracing.enable()` or OPENQ_TRACING=on.

    from openq import OpenQ, tracing

    tracing.enable()                                   # spans go to the tracer provider of the program
    tracing.enable(endpoint="http://127.0.0.1:4318")   # or to a collector, by OTLP

Queues, consumers and workers that are made afterwards record spans. While tracing is off, nothing of
OpenTelemetry is imported, and calls of a queue do no more than without this module.
"""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting

if TYPE_CHECKING:
    from .spans import MessageSpans

VARIABLE = "OPENQ_TRACING"

_current: MessageSpans | None = None
_is_decided = False


def current() -> MessageSpans | None:
    """What records the spans of this process; None while tracing is off."""
    if not _is_decided:
        _decide()
    return _current


def _decide() -> None:
    global _is_decided
    _is_decided = True
    text = os.environ.get(VARIABLE)
    if not text:
        return
    from ..parsing import read_flag  # late: most programs never need it

    try:
        wanted = read_flag(text)
    except ValueError as error:
        raise InvalidSetting(f"the environment variable {VARIABLE} must be {error}, not {text!r}") from None
    if not wanted:
        return
    sample = os.environ.get("OPENQ_TRACE_SAMPLE")
    try:
        share = float(sample) if sample else None
    except ValueError:
        raise InvalidSetting(f"OPENQ_TRACE_SAMPLE must be a share from 0 to 1, not {sample!r}") from None
    enable(
        endpoint=os.environ.get("OPENQ_OTLP_ENDPOINT") or None,
        protocol=os.environ.get("OPENQ_OTLP_PROTOCOL") or None,
        sample=share,
        service_name="openq",
    )


def enable(
    provider: Any = None,
    *,
    endpoint: str | None = None,
    protocol: str | None = None,
    sample: float | None = None,
    service_name: str | None = None,
) -> MessageSpans:
    """Record spans from now on.

    Without arguments, with the global tracer provider of the program, or with `provider`. With any of the
    others, spans are exported by OTLP: to `endpoint`, by `protocol` ("http" or "grpc"); `sample` is the share
    of new traces that is recorded, 0 to 1. Values that are not given come from OpenTelemetry's environment
    variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, ...).
    """
    global _current, _is_decided
    spans = _import_spans()
    is_own = any(each is not None for each in (endpoint, protocol, sample, service_name))
    if provider is not None and is_own:
        raise InvalidSetting("give either a provider or what is needed to make one, not both")
    if is_own:
        from .export import ExportSettings, make_provider

        provider = make_provider(ExportSettings(endpoint, protocol, sample, service_name or "openq"))
    found: MessageSpans = spans.MessageSpans(provider, is_own)
    disable()
    _current, _is_decided = found, True
    if is_own:
        atexit.register(found.close)
    return found


def disable() -> None:
    """Record no more spans of queues that are made from now on. Spans that ended are exported first."""
    global _current, _is_decided
    before, _current, _is_decided = _current, None, True
    if before is not None:
        before.close()
        atexit.unregister(before.close)


def _import_spans() -> Any:
    try:
        from . import spans
    except ImportError:
        raise InvalidSetting('tracing needs OpenTelemetry: pip install "openq[otel]"') from None
    return spans
