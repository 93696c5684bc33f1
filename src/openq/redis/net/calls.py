"""Calls to Redis: to the right server, over the right connection, repeated if that is safe.

A call is never repeated blindly: a call that was sent and got no reply may have been executed. It is repeated
if it was not sent, if the server replied that it did nothing, or if the caller declares it idempotent.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from openq.errors import NotReplicated, OpenQError, StoreError, StoreUnavailable
from openq.redis.net import greenlets
from openq.redis.net.connection import Backoff, PendingCommands, ThreadConnection
from openq.redis.net.copies import READ_COMMANDS, WriteMark
from openq.redis.net.nodes import Node, make_nodes
from openq.redis.net.resp import CommandRefused, pack
from openq.redis.net.url import Address, Host

if TYPE_CHECKING:
    import asyncio

    from openq.redis.net.loop_connection import LoopConnection

    Connection = ThreadConnection | LoopConnection

Arguments = tuple[bytes | str | int, ...]

ASKING = pack(("ASKING",))


def _record_mark(marks: dict[Connection, WriteMark], connection: Connection, mark: WriteMark) -> None:
    """The last write covers the writes before it, but only on its own connection: marks of an earlier
    connection must not be dropped."""
    before = marks.get(connection)
    if (
        before is None
        or before.connection_number == mark.connection_number
        or connection.copies.is_confirmed(before)
    ):
        marks[connection] = mark


class _ThreadMarks(threading.local):
    def __init__(self) -> None:
        self.marks: dict[Connection, WriteMark] = {}


class Calls:
    """Waits for the reply: a thread blocks; code in a greenlet on the loop is suspended meanwhile.

    All threads share a connection, and so does all code on the loop. A command that blocks in Redis would
    delay all callers and must not be sent here.
    """

    def __init__(self, address: Address, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.address = address
        self._loop = loop
        self._nodes = make_nodes(address, loop)
        self._counts_writes = address.profile == "safe"
        self._of_thread = _ThreadMarks()
        self._closed = False

    def call(
        self,
        key: bytes,
        *command: bytes | str | int,
        idempotent: bool = False,
        is_confirmed: bool = True,
        timeout_s: float | None = None,
    ) -> Any:
        """Send one command to the node of `key`. `idempotent`: may be repeated if no reply came.
        `is_confirmed`: `wait_for_copies` covers this command too, if it writes.

        `timeout_s` is how long to wait for an unreachable Redis; default: `reconnect` of the address.
        """
        data = pack(command)
        reads = command[0] in READ_COMMANDS
        writes = self._counts_writes and is_confirmed and not reads
        reply = self._try_once(key, data, writes)
        if isinstance(reply, StoreError):
            return self._retry(key, data, writes, reply, idempotent or reads, timeout_s)
        return reply

    def many(self, commands: Sequence[tuple[bytes, Arguments]], *, idempotent: bool = False) -> list[Any]:
        """Send all commands at once, those of one key in order; an error is an item, not raised."""
        replies: list[Any] = [None] * len(commands)
        packed = [pack(command) for _, command in commands]
        writes = self._counts_writes and any(command[0] not in READ_COMMANDS for _, command in commands)
        shares: dict[Node, list[int]] = {}
        for place, (key, _) in enumerate(commands):
            try:
                shares.setdefault(self._nodes.node_for(key), []).append(place)
            except StoreUnavailable as error:
                replies[place] = error
        task = self._current_task()
        share = self._send_shares_on_loop if task is not None else self._send_shares_on_thread
        share(shares, packed, replies, writes)
        for place, reply in enumerate(replies):
            if isinstance(reply, StoreError):
                key, command = commands[place]
                harmless = idempotent or command[0] in READ_COMMANDS
                try:
                    replies[place] = self._retry(key, packed[place], writes, reply, harmless)
                except OpenQError as final:
                    replies[place] = final
        return replies

    def wait_for_copies(self) -> None:
        """Return when the writes of this caller have their copies; without writes of its own, those of all
        callers."""
        if not self._counts_writes:
            return
        task = self._current_task()
        marks = self._unconfirmed_marks(task)
        if not marks:
            return
        if task is not None:
            error = greenlets.wait(lambda callback: self._confirm_on_loop(marks, callback))
            assert error is None
            return
        pending_list: list[tuple[ThreadConnection, PendingCommands]] = []
        try:
            for connection in marks:
                assert isinstance(connection, ThreadConnection)
                pending = PendingCommands(b"", 0, confirms=True)
                connection.begin(pending)
                pending_list.append((connection, pending))
            for connection, pending in pending_list:
                connection.finish(pending)
                connection.copies.require(marks[connection])
        except StoreUnavailable as lost:
            raise NotReplicated(lost.detail) from lost
        finally:
            for connection, pending in pending_list:
                connection.abandon(pending)

    @contextmanager
    def separate_writes(self, *, forget: bool = False) -> Iterator[None]:
        """Within this block `wait_for_copies` covers only the writes of the block, and may fail and be
        repeated. Earlier writes of the caller, which it still has to confirm, are not affected. With `forget`
        the caller has confirmed all writes that matter: later confirmations do not wait for the others."""
        marks = self._marks(self._current_task())
        before = marks.copy()
        marks.clear()
        try:
            yield
        finally:
            within = marks.copy()
            marks.clear()
            marks.update(before)
            for connection, mark in () if forget else within.items():
                _record_mark(marks, connection, mark)

    def after_copies(self, callback: Callable[[OpenQError | None], None]) -> None:
        """Like `wait_for_copies`, but calls `callback(error or None)`; on the loop later, not blocking."""
        try:
            if self._loop is None or not greenlets.is_running(self._loop):
                self.wait_for_copies()
            elif self._counts_writes and (
                marks := self._unconfirmed_marks(self._current_task(), on_loop=True)
            ):
                self._confirm_on_loop(marks, callback)
                return
        except OpenQError as error:
            callback(error)
        else:
            callback(None)

    def one_key_per_node(self, keys: Iterable[bytes]) -> list[bytes]:
        """Of these keys, one for each node that serves some. Raises StoreUnavailable."""
        found: dict[Node, bytes] = {}
        for key in keys:
            found.setdefault(self._nodes.node_for(key), key)
        return list(found.values())

    def any_host(self) -> Host | None:
        """The host of one of the servers, for callers that open their own connection."""
        nodes = self._nodes.all()
        return random.choice(nodes).host if nodes else None

    def close(self) -> None:
        self._closed = True
        self._nodes.close()

    # One attempt.

    def _current_task(self) -> greenlets.GreenletTask | None:
        if self._loop is None:
            return None
        task = greenlets.current_task()
        return task if task is not None and task.loop is self._loop else None

    def _try_once(self, key: bytes, data: bytes, writes: bool) -> Any:
        try:
            return self._send_to(self._nodes.node_for(key), data, writes)
        except StoreUnavailable as error:
            return error

    def _send_to(self, node: Node, data: bytes, writes: bool) -> Any:
        """One command's reply; a loss is returned like an error reply."""
        task = self._current_task()
        if task is not None:
            connection = node.on_loop
            assert connection is not None
            reply = greenlets.wait_for_reply(task, connection.send, data)
            if writes and not isinstance(reply, StoreUnavailable):
                # The task was woken by the connection that replied: it is still the same.
                _record_mark(task.marks, connection, connection.copies.mark())
            return reply
        try:
            pending = node.threads.exchange(data, 1, writes)
        except StoreError as error:
            return error
        if pending.mark is not None:
            _record_mark(self._of_thread.marks, node.threads, pending.mark)
        return pending.replies[0]

    def _send_shares_on_thread(
        self, shares: dict[Node, list[int]], packed: list[bytes], replies: list[Any], writes: bool
    ) -> None:
        """Send to all nodes before the first reply is read."""
        begun: list[tuple[ThreadConnection, PendingCommands, list[int]]] = []
        try:
            for node, places in shares.items():
                pending = PendingCommands(b"".join([packed[place] for place in places]), len(places), writes)
                node.threads.begin(pending)
                begun.append((node.threads, pending, places))
            for connection, pending, places in begun:
                try:
                    connection.finish(pending)
                except StoreError as error:
                    pending.replies.extend([error] * (pending.count - len(pending.replies)))
                if pending.mark is not None:
                    _record_mark(self._of_thread.marks, connection, pending.mark)
                for place, reply in zip(places, pending.replies, strict=True):
                    replies[place] = reply
        finally:
            for connection, pending, _ in begun:
                connection.abandon(pending)

    def _send_shares_on_loop(
        self, shares: dict[Node, list[int]], packed: list[bytes], replies: list[Any], writes: bool
    ) -> None:
        task = self._current_task()
        assert task is not None

        def start(callback: Callable[[Any], None]) -> None:
            missing = len(shares)

            def answered(connection: LoopConnection, places: list[int], answers: list[Any]) -> None:
                nonlocal missing
                for place, reply in zip(places, answers, strict=True):
                    replies[place] = reply
                if writes and not isinstance(answers[-1], StoreUnavailable):
                    _record_mark(task.marks, connection, connection.copies.mark())
                missing -= 1
                if not missing:
                    callback(None)

            for node, places in shares.items():
                connection = node.on_loop
                assert connection is not None
                data = b"".join([packed[place] for place in places])
                connection.send_many(
                    data,
                    len(places),
                    lambda answers, connection=connection, places=places: answered(
                        connection, places, answers
                    ),  # type: ignore[misc]
                )

        if shares:
            greenlets.wait(start)

    # Again.

    def _retry(
        self,
        key: bytes,
        data: bytes,
        writes: bool,
        error: StoreError,
        idempotent: bool,
        timeout_s: float | None = None,
    ) -> Any:
        give_up_s = time.monotonic() + (self.address.reconnect_s if timeout_s is None else timeout_s)
        pause_s = Backoff.MIN_S
        redirections = 0
        was_sent = False  # by any attempt: then it may have been executed, whatever the last attempt returns
        while True:
            was_sent = was_sent or (isinstance(error, StoreUnavailable) and error.sent)
            reply: Any
            if isinstance(error, CommandRefused) and error.word in ("MOVED", "ASK") and redirections < 5:
                redirections += 1
                reply = self._redirect(key, data, writes, error)
            elif isinstance(error, CommandRefused) or (
                isinstance(error, StoreUnavailable) and (idempotent or not error.sent)
            ):
                if self._closed or time.monotonic() >= give_up_s:
                    why = error.detail if isinstance(error, StoreUnavailable) else str(error)
                    raise StoreUnavailable(why, sent=was_sent)
                self._refresh_nodes()
                self.pause(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(pause_s * 2, Backoff.MAX_S)
                redirections = 0
                reply = self._try_once(key, data, writes)
            else:
                raise error
            if not isinstance(reply, StoreError):
                return reply
            error = reply

    def _redirect(self, key: bytes, data: bytes, writes: bool, refused: CommandRefused) -> Any:
        try:
            node = self._nodes.redirected(refused, self._nodes.node_for(key))
        except StoreUnavailable as error:
            return error
        if node is None:
            raise StoreError(f"{refused}; a cluster's URL begins with redis+cluster://")
        if refused.word == "MOVED":
            return self._send_to(node, data, writes)
        task = self._current_task()
        if task is None:
            try:
                pending = node.threads.exchange(ASKING + data, 2, writes)
            except StoreError as error:
                return error
            if pending.mark is not None:
                _record_mark(self._of_thread.marks, node.threads, pending.mark)
            return pending.replies[1]
        connection = node.on_loop
        assert connection is not None
        reply = greenlets.wait(lambda callback: connection.send_many(ASKING + data, 2, callback))[1]
        if writes and not isinstance(reply, StoreUnavailable):
            _record_mark(task.marks, connection, connection.copies.mark())
        return reply

    def _refresh_nodes(self) -> None:
        if self.address.kind == "single":
            return
        task = self._current_task()
        if task is None:
            self._nodes.refresh()
            return
        loop = task.loop
        greenlets.wait(
            lambda callback: loop.run_in_executor(None, self._nodes.refresh).add_done_callback(
                lambda _: callback(None)
            )
        )

    def pause(self, seconds: float) -> None:
        """Sleep; a greenlet is suspended meanwhile."""
        if self._current_task() is None:
            time.sleep(seconds)
        else:
            greenlets.sleep(seconds)

    # Copies.

    def _unconfirmed_marks(
        self, task: greenlets.GreenletTask | None, on_loop: bool = False
    ) -> dict[Connection, WriteMark]:
        """The connections and marks to be confirmed; raises if it is too late to confirm them."""
        now_s = time.monotonic()
        own = self._marks(task)
        if own and not (on_loop and task is None):
            marks = own.copy()
            own.clear()
        else:
            marks = {
                connection: connection.copies.now()
                for connection in self._connections(on_loop or task is not None)
                if connection.copies.has_open_writes
            }
        return {
            connection: mark
            for connection, mark in marks.items()
            if not connection.copies.is_safe(mark, now_s)
        }

    def _marks(self, task: greenlets.GreenletTask | None) -> dict[Connection, WriteMark]:
        return task.marks if task is not None else self._of_thread.marks

    def _connections(self, on_loop: bool) -> Iterable[Connection]:
        for node in self._nodes.all():
            connection: Connection | None = node.on_loop if on_loop else node.threads
            if connection is not None:
                yield connection

    def _confirm_on_loop(self, marks: dict[Connection, WriteMark], callback: Callable[[Any], None]) -> None:
        def answered(verdicts: list[Any]) -> None:
            error = next((verdict for verdict in verdicts if verdict is not None), None)
            if isinstance(error, StoreUnavailable):
                error = NotReplicated(error.detail)
            try:
                for connection, mark in marks.items() if error is None else ():
                    connection.copies.require(mark)
            except NotReplicated as reopened:
                error = reopened
            callback(error)

        from openq.redis.net.loop_connection import LoopConnection, ReplyCollector

        collector = ReplyCollector(len(marks), answered)
        for connection in marks:
            assert isinstance(connection, LoopConnection)
            connection.confirm(collector.add)
