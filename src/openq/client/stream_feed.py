"""The feed of a queue on a server: a subscription of the WebSocket stream, and a thread that reads it.

Deliveries are settled on the socket that brought them. When the socket dies the server returns them at once;
the feed connects again with a growing pause and subscribes anew.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from ..broker.interface import Receipt
from ..errors import Closed, OpenQError, QueueNotFound
from ..model import Delivery
from .documents import parse_error, selection_document
from .feeds import FeedOptions, WaitFeed
from .handle import run_in_thread
from .http import Refused, Unreachable
from .stream_socket import StreamSocket

if TYPE_CHECKING:
    from .core import QueueCore
    from .message import ReceivedMessage
    from .remote import RemoteBroker
    from .server_api import ServerApi

log = logging.getLogger("openq")

MAX_CREDIT = 10_000
MAX_PAUSE_S = 5.0
CLOSE_S = 10.0  # for the last acks
ASK_S = 1.0  # how old the answer may be that says when leases began
_LEASE_OVER = ("visibility_timeout_expired", "message_not_found", "queue_not_found")
_NO_STREAM = (404, 405, 426, 501)  # an older server, or a proxy that refuses upgrades

Answer = dict[str, Any]


class _Request:
    """A request whose reply is awaited; None if the connection was lost."""

    __slots__ = ("answer", "done")

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.done = threading.Event()


class StreamFeed:
    """Connects with the first `take`. Where the server or a proxy has no stream, it is a `WaitFeed`."""

    def __init__(self, core: QueueCore, options: FeedOptions) -> None:
        broker: RemoteBroker = core.broker  # type: ignore[assignment]
        self._core = core
        self._options = options
        self._fallback: WaitFeed | None = None
        lease_ms, self._consumer = core.wait_options(options.visibility_timeout, options.consumer, None)
        self._broker = broker
        self._api: ServerApi = broker.api
        self._queue = core.name
        self._credit = 0 if options.on_demand else min(options.prefetch, MAX_CREDIT)
        self._lease: float | str = "queue" if lease_ms is None else lease_ms / 1000
        # Extends the leases of messages that wait here; the consumer extends those it has taken.
        self._heartbeat = core.handle.heartbeat if options.heartbeat and options.prefetch > 1 else None
        self._waits = core.waits
        self._condition = threading.Condition()
        self._buffer: deque[Delivery] = deque()
        self._requests: dict[int, _Request] = {}
        self._ids = count(1)
        self._unsettled: set[Receipt] = set()  # of the current connection
        self._settling = 0  # of these: their settlement is on its way, so they use no credit any more
        self._sent_s: dict[int, float] = {}  # requests of `_grant`, and when they were sent
        self._asked_s = self._known_s = time.monotonic()  # the last of these that was sent, and answered
        self._buffer_s = 0.0  # no lease of a message in the buffer began earlier
        self.leased_s = 0.0
        self._acks: list[ReceivedMessage] = []  # to be sent with the next frame
        self._acking: tuple[int, list[ReceivedMessage]] | None = None  # on their way
        self._is_ended = self._is_closed = False
        self._error: OpenQError | None = None  # why it cannot go on, or what it waits for
        self._down_s = time.monotonic()  # since when it is not connected; 0: it is
        self.on_ready: Callable[[], None] | None = None  # called by the reader
        self._starting = threading.Lock()  # several threads may take
        self._stopped = threading.Event()
        self._socket: StreamSocket | None = None
        self._thread = threading.Thread(target=self._run, name=f"openq-stream-{core.name}", daemon=True)

    @property
    def limits_itself(self) -> bool:
        return self._fallback is None

    def start(self) -> None:
        """Connect. Raises Unreachable, or the error of the subscription."""
        if self._socket is not None or self._fallback is not None:
            return
        with self._starting:
            if self._socket is None and self._fallback is None:
                self._start()

    def _start(self) -> None:
        if self._broker.has_stream:
            self._waits.add(self)  # closing the queue object ends it
            try:
                self._socket = self._connect_in_time()
                self._down_s = 0.0
                self._thread.start()
                return
            except BaseException as error:
                self._waits.finish(self)
                is_missing = isinstance(error, Refused) and error.status in _NO_STREAM
                if not is_missing:
                    raise
            log.warning(
                "%s accepts no WebSocket (an older server, or a proxy that refuses upgrades): "
                "messages are received by long polls",
                self._broker.url,
            )
            self._broker.has_stream = False
        self._fallback = WaitFeed(self._core, self._options)
        if self._is_ended:
            self._fallback.end()

    # -- the reader's thread

    def _connect_in_time(self) -> StreamSocket:
        """Like other calls: a server that is unreachable is waited for."""
        end_s = time.monotonic() + self._api.reconnect_s
        pause_s = 0.1
        while True:
            try:
                return self._connect()
            except Unreachable:
                if time.monotonic() + pause_s > end_s or self._stopped.wait(pause_s):
                    if self._is_ended and self._core.closed:
                        raise Closed() from None
                    raise
                pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def _connect(self) -> StreamSocket:
        socket = StreamSocket(self._api)
        frame: dict[str, Any] = {
            "op": "subscribe",
            "id": 0,
            "sub": 0,
            "queue": self._queue,
            "lease": self._lease,
            "credit": {"messages": self._credit},
            "keep": True,
        }
        if not self._options.keeps_leases:
            del frame["keep"]  # an older server does not know it
        if self._consumer:
            frame["consumer"] = self._consumer
        if self._options.wanted is not None:
            frame |= selection_document(self._options.wanted)
        try:
            socket.send(frame)
            self._early: list[Answer] = []
            while True:
                for answer in socket.read():
                    if answer["op"] == "error":
                        if answer["code"] == "invalid" and "unknown field" in answer["detail"]:
                            raise Refused(_NO_STREAM[-1], answer["code"], answer["detail"])  # an older server
                        raise parse_error(Refused(0, answer["code"], answer["detail"]), self._queue, None)
                    self._early.append(answer)
                if any(answer["op"] == "ok" for answer in self._early):
                    return socket
        except BaseException:
            socket.close()
            socket.free()
            raise

    def _run(self) -> None:
        pause_s = 0.1
        while True:
            socket = self._socket
            assert socket is not None
            try:
                early, self._early = self._early, []
                self._received(early)
                while True:
                    self._received(socket.read())
                    pause_s = 0.1
            except OpenQError as error:
                self._lost(error)
            except Exception as error:  # not what a server sends: a bug here or there
                log.exception("the stream of queue %r failed", self._queue)
                self._lost(OpenQError(f"the stream failed: {error}"))
            socket.free()
            while not self._is_closed and self._error is None:
                self._stopped.wait(pause_s * random.uniform(0.5, 1))
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
                try:
                    socket = self._connect()
                except Unreachable as error:
                    self._wake(error if time.monotonic() - self._down_s > self._api.reconnect_s else None)
                except OpenQError as error:
                    self._wake(error)
                else:
                    with self._condition:
                        self._socket, self._down_s = socket, 0.0
                    break
            else:
                return
            if self._stopped.is_set():
                socket.close()  # closed meanwhile: the next read ends

    def _wake(self, error: OpenQError | None) -> None:
        with self._condition:
            self._error = self._error or error
            self._condition.notify_all()
        if self.on_ready is not None:
            self.on_ready()

    def _lost(self, error: OpenQError) -> None:
        """The server returns everything that was not settled, unless it keeps the leases."""
        with self._condition:
            self._down_s = time.monotonic()
            if self._options.on_demand:
                self._credit = max(self._credit - len(self._unsettled) + self._settling, 0)  # of the next one
            self._sent_s.clear()
            for receipt in self._unsettled:
                self._broker.streamed.pop(receipt, None)
            self._unsettled.clear()
            self._settling = 0
            left = self._take_buffer()
            if self._acking is not None:
                self._acked(None)
            requests, self._requests = self._requests, {}
            for request in requests.values():
                request.done.set()
        if not self._is_closed:
            log.info("the stream of queue %r ended: %s", self._queue, error)
        if left and self._options.keeps_leases:
            # By a request, as soon as the server can be reached: nobody has seen them.
            run_in_thread(lambda: self._core.release_unseen(left))
        self._wake(None if isinstance(error, Unreachable) else error)

    def _received(self, answers: list[Answer]) -> None:
        with self._condition:
            for answer in answers:
                op = answer["op"]
                if op == "deliver":
                    self._arrived(answer["messages"])
                elif op == "gone":
                    self._error = QueueNotFound(self._queue)
                elif self._acking is not None and answer.get("id") == self._acking[0]:
                    self._acked(answer)
                elif answer.get("id") in self._sent_s:
                    self._known_s = self._sent_s.pop(answer["id"])
                else:
                    request = self._requests.pop(answer.get("id", -1), None)
                    if request is not None:
                        request.answer = answer
                        request.done.set()
            self._condition.notify_all()
        if self.on_ready is not None:
            self.on_ready()

    def _arrived(self, messages: list[Answer]) -> None:
        if not self._buffer:
            self._buffer_s = self._known_s
        for document in messages:
            delivery = self._broker.parse_delivery(document, self._consumer)
            receipt = (delivery.entry.seq, delivery.number)
            self._unsettled.add(receipt)
            self._broker.streamed[receipt] = self
            self._buffer.append(delivery)
            if self._heartbeat is not None:
                self._heartbeat.hold(self._queue, delivery)

    # -- the consumer's thread

    def take(self, limit: int, timeout: float | None) -> list[Delivery]:
        self.start()
        if self._fallback is not None:
            polled = self._fallback.take(limit, timeout)
            self.leased_s = self._fallback.leased_s
            return polled
        end_s = None if timeout is None else time.monotonic() + timeout
        is_synced = False
        if self._options.on_demand:
            self._grant(limit)
        while True:
            self._send_acks()
            with self._condition:
                taken = self._take(limit)
                if taken or self._is_ended:
                    return taken
                if self._error is not None:
                    raise self._error
                if self._acks and self._acking is None and not self._down_s:
                    continue
                left_s = None if end_s is None else end_s - time.monotonic()
                if left_s is None or left_s > 0:
                    self._condition.wait(left_s)
                    continue
            if is_synced:
                return []
            self.sync()
            is_synced = True

    def pause(self) -> list[Delivery]:
        if self._socket is None or self._fallback is not None:
            return []
        self._grant(0)
        with self._condition:
            if self._error is not None and not self._is_ended:
                raise self._error
            return self._take(len(self._buffer))

    def _grant(self, limit: int) -> None:
        """Let the server send as many as are missing until `limit`.

        The credit includes what is in flight, also what has not arrived here yet: so a server never sends too
        many. The reply tells when the leases of what comes after it have begun at the earliest.
        """
        with self._condition:
            if self._down_s:
                self._credit = limit  # of the next connection
                return
            held = len(self._unsettled) - self._settling
            credit = min(held + max(limit - len(self._buffer), 0), MAX_CREDIT)
            if not limit and self._credit <= credit:
                return
            if credit == self._credit and time.monotonic() - self._asked_s < ASK_S:
                return
            self._put_credit(credit)
        self._flush()

    def _put_credit(self, credit: int) -> None:
        """With the condition held: frames with a credit must leave in the order in which it was computed."""
        number = next(self._ids)
        self._credit = credit
        self._sent_s[number] = self._asked_s = time.monotonic()
        assert self._socket is not None
        self._socket.put({"op": "credit", "id": number, "sub": 0, "messages": credit})

    def _flush(self) -> None:
        assert self._socket is not None
        try:
            self._socket.flush()
        except Unreachable:
            pass  # the reader notices it too

    def sync(self) -> None:
        """Wait until everything that was sent is answered: what is ready now has arrived then."""
        end_s = time.monotonic() + CLOSE_S
        while True:
            self._send_acks()
            with self._condition:
                if self._acking is None and (not self._acks or self._down_s):
                    break
                if not self._condition.wait(end_s - time.monotonic()):
                    return
        self._ask({"op": "ping"})

    def take_now(self, limit: int) -> list[Delivery] | None:
        """Without waiting: None if it is ended."""
        self._send_acks()
        with self._condition:
            taken = self._take(limit)
            if not taken and self._error is not None and not self._is_ended:
                raise self._error
            return None if self._is_ended else taken

    def _take(self, limit: int) -> list[Delivery]:
        if self._is_ended:
            return []
        self.leased_s = self._buffer_s
        taken = [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]
        if self._heartbeat is not None:
            for delivery in taken:
                self._heartbeat.drop(delivery)
        return taken

    def _take_buffer(self) -> list[Delivery]:
        taken = list(self._buffer)
        self._buffer.clear()
        if self._heartbeat is not None:
            for delivery in taken:
                self._heartbeat.drop(delivery)
        return taken

    def take_served(self) -> list[Delivery]:
        """For a queue object that is closed: what was not taken, which it releases."""
        with self._condition:
            return self._take_buffer() if self._is_ended else []

    def finish(self, message: ReceivedMessage) -> None:
        """Ack it with the next frame. Acks that come while one is on its way are sent together."""
        if self._fallback is not None:
            self._fallback.finish(message)
            return
        message.settled = True
        with self._condition:
            self._acks.append(message)
        self._send_acks()

    def _send_acks(self) -> None:
        with self._condition:
            if self._acking is not None or not self._acks or self._down_s:
                return
            messages, self._acks = self._acks, []
            self._acking = next(self._ids), messages
        receipts = [(each.delivery.entry.seq, each.delivery.number) for each in messages]
        self._forget(receipts)
        assert self._socket is not None
        try:
            self._socket.send(
                {"op": "ack", "id": self._acking[0], "receipts": self._broker.texts_of(receipts)}
            )
        except Unreachable:
            pass  # the reader notices it too

    def _acked(self, answer: Answer | None) -> None:
        """With the condition held. None: the connection was lost, and the messages will come again."""
        assert self._acking is not None
        messages, self._acking = self._acking[1], None
        if answer is None:
            messages, self._acks = messages + self._acks, []
            for message in messages:
                log.warning("message %s could not be settled: the connection was lost", message.id)
        elif answer["op"] == "error":
            log.warning("%d messages could not be settled: %s", len(messages), answer["detail"])
        else:
            for failed in answer.get("failed", ()):
                log.warning("message %s could not be settled: %s", failed["receipt_id"], failed["detail"])

    # -- settling, from any thread

    def settle(self, op: str, receipts: Sequence[Receipt], body: Answer) -> Answer | None:
        """The reply of the server; None if the connection was lost, so that the outcome is not known."""
        texts = self._broker.texts_of(receipts)
        is_extend = op == "extend"
        answer = self._ask({**body, "op": op, "receipts": texts}, 0 if is_extend else len(receipts))
        if answer is None:
            return None
        has_failed = answer["op"] == "error"
        failed = {each["receipt_id"]: each["code"] in _LEASE_OVER for each in answer.get("failed", ())}
        is_over = not (is_extend or has_failed)
        over = [each for each, text in zip(receipts, texts, strict=True) if failed.get(text, is_over)]
        self._forget(over, 0 if is_extend else len(receipts))
        if has_failed:
            raise parse_error(Refused(0, answer["code"], answer["detail"]), self._queue, None)
        return answer

    def _ask(self, frame: Answer, settles: int = 0) -> Answer | None:
        """The reply to a request, which settles so many deliveries; None if the connection is lost."""
        request = _Request()
        with self._condition:
            if self._down_s:
                return None
            number = next(self._ids)
            self._requests[number] = request
            socket = self._socket
            assert socket is not None
            if settles:
                self._settling += settles
                if self._options.on_demand:
                    # First, so that what they free is not used before `take` asks for it.
                    held = len(self._unsettled) - self._settling
                    self._put_credit(max(held, self._credit - settles, 0))
            socket.put({**frame, "id": number})
        self._flush()
        request.done.wait()
        return request.answer

    def _forget(self, receipts: Sequence[Receipt], settling: int = 0) -> None:
        with self._condition:
            # After a lost connection it is 0 already.
            self._settling = max(self._settling - settling, 0)
            for receipt in receipts:
                self._unsettled.discard(receipt)
                self._broker.streamed.pop(receipt, None)
            is_over = self._is_closed and not self._unsettled and self._acking is None
        if is_over:
            self._disconnect()

    def _disconnect(self) -> None:
        self._stopped.set()
        if self._socket is None:
            return
        self._socket.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)

    # -- ending

    def end(self) -> None:
        with self._condition:
            was_ended, self._is_ended = self._is_ended, True
            is_down = bool(self._down_s)
            self._condition.notify_all()
        if self._fallback is not None:
            self._fallback.end()
        if is_down:
            self._stopped.set()
        elif not was_ended and self._socket is not None:
            try:
                self._socket.send({"op": "unsubscribe", "sub": 0})  # first: what is released stays away
            except Unreachable:
                pass
        if self.on_ready is not None:
            self.on_ready()

    def close(self) -> None:
        """Wait for the last acks and release what was not taken. The socket stays for unsettled messages."""
        self.end()
        if self._socket is None or self._is_closed:
            return
        self.sync()
        # `finish` hands over what was not taken, unless another thread has closed the queue object meanwhile.
        left = [(each.entry.seq, each.number) for each in self._waits.finish(self)]
        try:
            if left:
                self.settle("release", left, {})
        except OpenQError:
            pass  # the server returns them by itself
        with self._condition:
            self._is_closed = True
        self._forget(left)

    def abort(self) -> None:
        """The queue object is closed: what is not settled returns now."""
        with self._condition:
            self._is_ended = self._is_closed = True
            self._condition.notify_all()
        self._disconnect()
