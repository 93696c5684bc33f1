"""Bytes <-> frames (sans-I/O): bytes of the socket go in, calls of a `FrameHandler` come out.

A client that publishes sends the same method, the same properties and often the same size again and again.
After the first such message the reader compares instead of parsing: a run of messages becomes one
call with a list of bodies. Acks are gathered in the same way. Everything else goes frame by frame.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Protocol

from .errors import (
    CHANNEL_ERROR,
    FRAME_ERROR,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    UNEXPECTED_FRAME,
    AmqpError,
)

METHOD = 1
HEADER = 2
BODY = 3
HEARTBEAT_KIND = 8

FRAME_MIN = 4096
FRAME_OVERHEAD = 8  # seven bytes before the payload, one after
# Many clients (amqpstorm) forget the overhead and fill a frame with `frame_max` bytes of payload. As RabbitMQ
# does, a frame is accepted that exceeds the limit by the size of an empty frame.
FRAME_TOLERANCE = FRAME_OVERHEAD
CONTENT_OVERHEAD = 12  # before the properties
END = 0xCE
END_BYTE = b"\xce"
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"

_HEAD = Struct(">BHI")
_CONTENT = Struct(">HHQ")  # class, weight, body size
_CONTENT_HEAD = Struct(">BHIHHQ")
_MIDDLE = Struct(">IHHQ")  # length of a header frame, then class, weight and body size
_U32 = Struct(">I")
_U64 = Struct(">Q")
_PUBLISH = b"\x00\x3c\x00\x28"
_ACK = b"\x00\x3c\x00\x50"
_CLOSE_OK = b"\x00\x14\x00\x29"
_ACK_PAYLOAD = 13
# Acks of single messages on one channel, whole frames. A quarter of the time of a loop over them.
_ACKS = re.compile(
    rb"\x01(..)\x00\x00\x00\x0d\x00\x3c\x00\x50.{8}\x00\xce"
    rb"(?:\x01\1\x00\x00\x00\x0d\x00\x3c\x00\x50.{8}\x00\xce)*+",
    re.DOTALL,
)
_ACK_TAG = Struct(">11xQ2x")
_BASIC = 60
_MAX_RUN = 1000  # messages in one call
_MAX_EXPECTED = 16 << 10  # longer properties are not kept for comparison with the next message
_NO_PROPERTIES = b"\x00\x00"


class FrameHandler(Protocol):
    """What a reader calls. A call that raises ends the connection; errors of a channel are handled inside."""

    def method(self, channel: int, payload: bytes) -> None: ...
    def begin_publish(self, channel: int, payload: bytes) -> bool: ...
    def publish(
        self, channel: int, method: bytes, all_properties: bytes | list[bytes], bodies: list[bytes]
    ) -> None:
        """Messages with the same method. `all_properties`: one value for all, or one per message."""

    def ack(self, channel: int, tags: list[int]) -> None: ...
    def heartbeat(self) -> None: ...
    def refuse_content(self, channel: int, error: AmqpError) -> None: ...


class _NullHandler:
    """For a reader whose connection is closed."""

    def method(self, channel: int, payload: bytes) -> None: ...
    def begin_publish(self, channel: int, payload: bytes) -> bool:
        return False

    def publish(
        self, channel: int, method: bytes, all_properties: bytes | list[bytes], bodies: list[bytes]
    ) -> None: ...
    def ack(self, channel: int, tags: list[int]) -> None: ...
    def heartbeat(self) -> None: ...
    def refuse_content(self, channel: int, error: AmqpError) -> None: ...


NULL_HANDLER = _NullHandler()


class _PartialMessage:
    """A publish whose properties or body are incomplete."""

    __slots__ = ("amqp_properties", "got", "head_bytes", "is_wanted", "method", "parts", "size")

    def __init__(self, method: bytes, is_wanted: bool) -> None:
        self.method = method if is_wanted else _PUBLISH
        self.head_bytes = len(self.method)  # of the method and the properties
        self.is_wanted = is_wanted  # otherwise it is skipped
        self.amqp_properties: bytes | None = None  # None: the header frame is missing
        self.size = 0
        self.got = 0
        self.parts: list[bytes] = []


class _PublishRun:
    """The bytes of the next message if it repeats the last one, or at least its method."""

    __slots__ = ("amqp_properties", "body_head", "channel", "method", "same", "size", "start")

    def __init__(self, channel: int, method: bytes, amqp_properties: bytes, size: int) -> None:
        self.channel = channel
        self.method = method
        # Up to the length of the header frame, and from its end to the length of the body frame.
        self.start = method_frame(channel, method) + _HEAD.pack(HEADER, channel, 0)[: -_U32.size]
        self.body_head = END_BYTE + _HEAD.pack(BODY, channel, 0)[: -_U32.size]
        self.expect(amqp_properties, size)

    def expect(self, amqp_properties: bytes, size: int) -> None:
        self.amqp_properties = amqp_properties
        self.size = size
        self.same = b"".join(
            (
                self.start,
                _MIDDLE.pack(_CONTENT.size + len(amqp_properties), _BASIC, 0, size),
                amqp_properties,
                self.body_head,
                _U32.pack(size),
            )
        )


class FrameReader:
    """Reads the frames of one connection. While `is_paused`, input is kept for `resume`."""

    def __init__(self, handler: FrameHandler, max_frame: int, max_body: int) -> None:
        self._handler = handler
        self.limit_frames(max_frame)
        self.max_body = max_body
        self.is_paused = False
        self._rest = b""
        self._contents: dict[int, _PartialMessage] = {}
        self._pending = 0  # bytes of partial bodies
        self._head_bytes = 0  # bytes of their methods and properties
        self._run: _PublishRun | None = None
        self._ack_head = b""  # an ack on `_ack_channel`, up to the tag
        self._ack_channel = 0
        self._is_closing = False

    def limit_frames(self, max_frame: int) -> None:
        """`max_frame`: as negotiated."""
        self._max_payload = max_frame - FRAME_OVERHEAD + FRAME_TOLERANCE
        # A header cannot be split into frames: a longer one could not be delivered unchanged.
        self._max_header = max_frame - FRAME_OVERHEAD

    def end(self) -> None:
        """connection.close was sent: only connection methods are read from now on."""
        self._is_closing = True
        self._contents.clear()
        self._pending = self._head_bytes = 0
        self._run = None
        self._ack_head = b""

    @property
    def pending_bytes(self) -> int:
        """Bytes of incomplete messages and frames."""
        return self._pending + self._head_bytes + len(self._rest)

    def close(self) -> None:
        """The socket is closed: free partial messages, and end the reference to the handler."""
        self.end()
        self._rest = b""
        self._handler = NULL_HANDLER

    def resume(self) -> None:
        self.is_paused = False
        if self._rest:
            self.feed(b"")

    def discard_channel(self, channel: int) -> None:
        """The channel is closed; the rest of a partial message will not come."""
        content = self._contents.pop(channel, None)
        if content is not None and content.is_wanted:
            self._pending -= content.got
            self._head_bytes -= content.head_bytes

    def skip_content(self, channel: int) -> None:
        """The server closed the channel: discard its partial message, and skip the rest of it."""
        content = self._contents.get(channel)
        if content is not None and content.is_wanted:
            self._discard(content)

    def _discard(self, content: _PartialMessage) -> None:
        """Free it, but remember it: more of its frames will come."""
        self._pending -= content.got
        self._head_bytes -= content.head_bytes
        content.is_wanted = False
        content.method = _PUBLISH
        content.parts = []
        if content.amqp_properties is not None:
            content.amqp_properties = _NO_PROPERTIES

    def feed(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at = 0
        end = len(data)
        try:
            while at < end and not self.is_paused:
                if not self._contents:  # no partial message: repeats can be read fast
                    run = self._run
                    if run is not None and data.startswith(run.start, at):
                        after = self._read_run(run, data, at)
                        if after != at:
                            at = after
                            continue
                    if self._ack_head and data.startswith(self._ack_head, at):
                        after = self._read_acks(data, at)
                        if after != at:
                            at = after
                            continue
                if end - at < _HEAD.size:
                    break
                kind, channel, size = _HEAD.unpack_from(data, at)
                # Refuse by the header alone, before up to 4 GiB are buffered.
                if size > self._max_payload:
                    raise _too_large(size, self._max_header)
                start = at + _HEAD.size
                stop = start + size
                if stop >= end:
                    break
                if data[stop] != END:
                    raise AmqpError(
                        FRAME_ERROR, f"frame of type {kind} does not end with 206 but {data[stop]}"
                    )
                at = stop + 1
                if self._is_closing:
                    if kind == METHOD and not channel:
                        self._handler.method(channel, data[start:stop])
                elif kind == METHOD:
                    self._method(channel, data[start:stop])
                elif kind == HEADER:
                    self._header(channel, data[start:stop])
                elif kind == BODY:
                    self._body(channel, data[start:stop])
                elif kind == HEARTBEAT_KIND:
                    if channel:
                        raise AmqpError(UNEXPECTED_FRAME, f"heartbeat on channel {channel}")
                    if size:
                        raise AmqpError(FRAME_ERROR, f"heartbeat with {size} bytes")
                    self._handler.heartbeat()
                else:
                    raise AmqpError(FRAME_ERROR, f"unknown frame type {kind}")
        except AmqpError:
            # A close method may follow the faulty frame, unless frame boundaries are lost.
            self._rest = b"" if self._is_closing else data[at:]
            raise
        if at < end:
            self._rest = data[at:] if at else data

    def _read_run(self, run: _PublishRun, data: bytes, at: int) -> int:
        """Complete messages with the same method. Returns where they end."""
        bodies: list[bytes] = []
        all_properties: list[bytes] | None = None  # None: the same as in `run` so far
        end = len(data)
        same = run.same
        size = run.size
        length = len(same)
        before: tuple[bytes, int] | None = None
        start_of_run, body_head = run.start, run.body_head
        to_middle = len(start_of_run)
        starts = data.startswith
        most = _MAX_RUN
        while most:
            if starts(same, at):
                start = at + length
                stop = start + size
                amqp_properties = run.amqp_properties
            else:
                # Other properties or another size. Errors, and bodies in several frames, are left to the
                # slow path.
                middle = at + to_middle
                if not starts(start_of_run, at) or middle + _MIDDLE.size > end:
                    break
                header, class_id, weight, total = _MIDDLE.unpack_from(data, middle)
                close = middle + _U32.size + header
                if class_id != _BASIC or weight or header < _CONTENT.size + 2 or header > self._max_header:
                    break
                if not starts(body_head, close):
                    break
                start = close + len(body_head) + _U32.size
                if start > end:
                    break
                (found,) = _U32.unpack_from(data, start - _U32.size)
                if found != total or not found or found > self._max_payload or found > self.max_body:
                    break
                stop = start + found
                amqp_properties = data[middle + _MIDDLE.size : close]
                # Twice in a row: expect it again.
                if (amqp_properties, found) == before and stop < end and header <= _MAX_EXPECTED:
                    if all_properties is None and amqp_properties != run.amqp_properties:
                        all_properties = [run.amqp_properties] * len(bodies)
                    run.expect(amqp_properties, found)
                    same, size, length = run.same, found, len(run.same)
                before = amqp_properties, found
            if stop >= end:
                break
            if data[stop] != END:
                raise AmqpError(FRAME_ERROR, f"frame of type 3 does not end with 206 but {data[stop]}")
            if all_properties is not None:
                all_properties.append(amqp_properties)
            elif amqp_properties != run.amqp_properties:
                all_properties = [run.amqp_properties] * len(bodies)
                all_properties.append(amqp_properties)
            bodies.append(data[start:stop])
            at = stop + 1
            most -= 1
        if bodies:
            self._handler.publish(
                run.channel,
                run.method,
                run.amqp_properties if all_properties is None else all_properties,
                bodies,
            )
        return at

    def _read_acks(self, data: bytes, at: int) -> int:
        """Acks of single messages. Returns where they end. `multiple` takes the slow path."""
        found = _ACKS.match(data, at)
        if found is None:
            return at
        end = found.end()
        tags = [tag for (tag,) in _ACK_TAG.iter_unpack(memoryview(data)[at:end])]
        self._handler.ack(self._ack_channel, tags)
        return end

    def _method(self, channel: int, payload: bytes) -> None:
        content = self._contents.get(channel)
        start = payload[:4]
        if content is not None:
            if content.is_wanted or start != _CLOSE_OK:
                raise _unexpected(content)
            self.discard_channel(channel)  # the client knows that its channel is closed
        if start == _PUBLISH:
            # Ask before anything is buffered: an unauthenticated client must not fill the memory.
            content = _PartialMessage(payload, self._handler.begin_publish(channel, payload))
            self._contents[channel] = content
            if content.is_wanted:
                self._head_bytes += content.head_bytes
            return
        if start == _ACK and len(payload) == _ACK_PAYLOAD:
            if channel != self._ack_channel or not self._ack_head:
                self._ack_channel = channel
                self._ack_head = _HEAD.pack(METHOD, channel, _ACK_PAYLOAD) + _ACK
            if not payload[12]:
                self._handler.ack(channel, [_U64.unpack_from(payload, 4)[0]])
                return
        self._handler.method(channel, payload)

    def _header(self, channel: int, payload: bytes) -> None:
        content = self._contents.get(channel)
        if content is None and not channel:
            raise AmqpError(CHANNEL_ERROR, "a content header on channel 0")
        if content is None or content.amqp_properties is not None:
            raise _unexpected(content)
        if len(payload) > self._max_header:
            raise _too_large(len(payload), self._max_header)
        if len(payload) < _CONTENT.size + 2:
            raise AmqpError(FRAME_ERROR, "a content header that is too short")
        class_id, weight, size = _CONTENT.unpack_from(payload)
        if weight:
            raise _unexpected(content)
        if class_id != _BASIC:
            raise AmqpError(
                UNEXPECTED_FRAME,
                f"expected content header for class 60, got one for class {class_id} instead",
                payload=_PUBLISH,
            )
        content.size = size
        if content.is_wanted:
            content.amqp_properties = payload[_CONTENT.size :]
            content.head_bytes += len(content.amqp_properties)
            self._head_bytes += len(content.amqp_properties)
        else:
            content.amqp_properties = _NO_PROPERTIES
        if size > self.max_body and content.is_wanted:
            self._discard(content)
            # Its body frames are on their way; they are skipped.
            error = AmqpError(
                PRECONDITION_FAILED, f"message size {size} is larger than configured max size {self.max_body}"
            )
            self._handler.refuse_content(channel, error)
        if not size:
            self._complete(channel, content)

    def _body(self, channel: int, payload: bytes) -> None:
        content = self._contents.get(channel)
        if content is None or content.amqp_properties is None:
            raise _unexpected(content)
        content.got += len(payload)
        if content.got > content.size:
            raise _unexpected(content)
        if content.is_wanted:
            content.parts.append(payload)
            self._pending += len(payload)
            if self._pending > 2 * self.max_body:
                raise AmqpError(RESOURCE_ERROR, "the unfinished messages of all channels are too large")
        if content.got == content.size:
            self._complete(channel, content)

    def _complete(self, channel: int, content: _PartialMessage) -> None:
        self.discard_channel(channel)
        amqp_properties = content.amqp_properties
        assert amqp_properties is not None
        if not content.is_wanted:
            return
        parts = content.parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        run = self._run
        if len(parts) == 1 and (run is None or run.channel != channel or run.method != content.method):
            expected = amqp_properties if len(amqp_properties) <= _MAX_EXPECTED else _NO_PROPERTIES
            self._run = _PublishRun(channel, content.method, expected, content.size)
        self._handler.publish(channel, content.method, amqp_properties, [body])


def _too_large(size: int, limit: int) -> AmqpError:
    return AmqpError(FRAME_ERROR, f"frame too large: {size} bytes of payload, {limit} are allowed")


def _unexpected(content: _PartialMessage | None) -> AmqpError:
    """A frame of another type than expected."""
    if content is None:
        return AmqpError(UNEXPECTED_FRAME, "expected method frame, got non method frame instead")
    if content.amqp_properties is None:
        text = "expected content header for class 60, got non content header frame instead"
    else:
        text = "expected content body, got non content body frame instead"
    return AmqpError(UNEXPECTED_FRAME, text, payload=content.method)


# -- out ----------------------------------------------------------------------------------------


def method_frame(channel: int, payload: bytes) -> bytes:
    return _HEAD.pack(METHOD, channel, len(payload)) + payload + END_BYTE


def content_head(channel: int, amqp_properties: bytes, size: int) -> bytes:
    """The header frame and the head of the body frame, for a body that fits into one frame."""
    return b"".join(
        (
            _CONTENT_HEAD.pack(HEADER, channel, _CONTENT.size + len(amqp_properties), _BASIC, 0, size),
            amqp_properties,
            END_BYTE,
            _HEAD.pack(BODY, channel, size),
        )
    )


def content_frames(channel: int, amqp_properties: bytes, body: bytes, max_frame: int) -> bytes:
    """The header frame and all body frames."""
    parts = [
        _CONTENT_HEAD.pack(HEADER, channel, _CONTENT.size + len(amqp_properties), _BASIC, 0, len(body)),
        amqp_properties,
        END_BYTE,
    ]
    step = max_frame - FRAME_OVERHEAD
    for start in range(0, len(body), step):
        part = body[start : start + step]
        parts += (_HEAD.pack(BODY, channel, len(part)), part, END_BYTE)
    return b"".join(parts)
