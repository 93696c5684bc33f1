"""Tracing of a server: its settings, and the broker that records spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..broker.interface import Broker
from ..config import Config
from ..errors import InvalidSetting

if TYPE_CHECKING:
    from ..tracing.spans import MessageSpans

DEFAULT_SAMPLE = 0.01  # of the publishes whose clients are not traced


class ServerTracing:
    def __init__(self, spans: MessageSpans, sample: float) -> None:
        self._spans = spans
        self.sample = sample

    def traced(self, broker: Broker) -> Broker:
        from .traced_broker import traced_broker

        return traced_broker(broker, self._spans, self.sample)

    def close(self) -> None:
        """Export what was recorded. Blocking."""
        self._spans.close()


def open_tracing(config: Config) -> ServerTracing | None:
    """None: off. Raises InvalidSetting."""
    if not config.tracing:
        return None
    try:
        from ..tracing.export import ExportSettings, is_disabled, make_provider, sample_of_environment
        from ..tracing.spans import MessageSpans
    except ImportError:
        raise InvalidSetting('tracing needs OpenTelemetry: pip install "openq[otel]"') from None
    if is_disabled():
        return None
    sample = sample_of_environment(DEFAULT_SAMPLE) if config.trace_sample is None else config.trace_sample
    # The broker decides which traces start; a span that it asks for is recorded.
    provider = make_provider(ExportSettings(config.otlp_endpoint, config.otlp_protocol, 1.0, "openq"))
    return ServerTracing(MessageSpans(provider, is_own=True), sample)
