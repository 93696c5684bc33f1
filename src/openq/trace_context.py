"""The trace context of a message: W3C `traceparent` and `tracestate`, as attributes of these names. Pure.

Every protocol carries attributes, so a context that one client sends is there for every other. X-Ray's header
(`AWSTraceHeader` of SQS) is a second form of the same values, for messages that have no `traceparent`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
AMAZON = "openq.trace"  # X-Ray's header, as an attribute
AMAZON_HEADER = "x-amzn-trace-id"  # of HTTP requests and of AMQP messages
AMAZON_SYSTEM_ATTRIBUTE = "AWSTraceHeader"  # of SQS

_MAX_STATE = 512  # characters: longer ones may be dropped, says the standard
_PARENT = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]*)?", re.ASCII)
_ROOT = re.compile(r"1-([0-9a-f]{8})-([0-9a-f]{24})", re.ASCII)
_SPAN = re.compile(r"[0-9a-f]{16}", re.ASCII)
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class TraceParent(NamedTuple):
    """Where a trace stands: the span that published a message."""

    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16; empty if only the trace is known
    is_sampled: bool
    state: str = ""  # of vendors, passed on as it is

    @property
    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


def read_parent(traceparent: object, tracestate: object = None) -> TraceParent | None:
    """None if it is not a valid `traceparent`. An invalid `tracestate` is dropped."""
    if not isinstance(traceparent, str) or len(traceparent) > 1_000:
        return None
    found = _PARENT.fullmatch(traceparent.strip())
    if found is None or (found[1] == "00" and found[5]) or found[2] == _NO_TRACE or found[3] == _NO_SPAN:
        return None
    state = tracestate.strip() if isinstance(tracestate, str) else ""
    if len(state) > _MAX_STATE or not state.isascii() or not state.isprintable():
        state = ""
    return TraceParent(found[2], found[3], bool(int(found[4], 16) & 1), state)


def read_amazon(header: object) -> TraceParent | None:
    """From X-Ray's `Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1`."""
    if not isinstance(header, str) or len(header) > 1_024:
        return None
    parts = dict(part.strip().partition("=")[::2] for part in header.split(";"))
    root = _ROOT.fullmatch(parts.get("Root", ""))
    if root is None:
        return None
    span_id = parts.get("Parent", "")
    if _SPAN.fullmatch(span_id) is None or span_id == _NO_SPAN:
        span_id = ""
    return TraceParent(root[1] + root[2], span_id, parts.get("Sampled") == "1")


def write_amazon(parent: TraceParent) -> str:
    trace_id, sampled = parent.trace_id, "1" if parent.is_sampled else "0"
    return f"Root=1-{trace_id[:8]}-{trace_id[8:]};Parent={parent.span_id};Sampled={sampled}"


def parent_of(attributes: Mapping[str, object]) -> TraceParent | None:
    """The context that a message carries."""
    text = attributes.get(TRACEPARENT)
    if text is not None:
        found = read_parent(text, attributes.get(TRACESTATE))
        if found is not None:
            return found
    amazon = attributes.get(AMAZON)
    return None if amazon is None else read_amazon(amazon)


def trace_id_of(attributes: Mapping[str, object]) -> str | None:
    found = parent_of(attributes)
    return None if found is None else found.trace_id


def request_attributes(fields: Mapping[bytes, bytes]) -> dict[str, str] | None:
    """The attributes that the headers of an HTTP request give its messages; None if it has no context."""
    header = fields.get(b"traceparent")
    if header is None:
        return None
    found = read_parent(header.decode("latin-1"), fields.get(b"tracestate", b"").decode("latin-1"))
    if found is None:
        return None
    return headers_of(found)


def headers_of(parent: TraceParent) -> dict[str, str]:
    """The headers, or attributes, that pass a context on."""
    if parent.state:
        return {TRACEPARENT: parent.header, TRACESTATE: parent.state}
    return {TRACEPARENT: parent.header}


def outgoing_headers(attributes: Mapping[str, object]) -> dict[str, str]:
    """The headers of an HTTP request that passes a message on; none if the message has no full context."""
    found = parent_of(attributes)
    return headers_of(found) if found is not None and found.span_id else {}
