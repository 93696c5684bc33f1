"""Every verb's way to Redis: to the right server, by the right connection, again if that is safe.

A call is never repeated blindly: what was sent and got no answer may have been done. It is repeated when it
was not sent, when the server said that it did nothing, or when its caller says that twice does no harm.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from openq.errors import NotReplicated, OpenQError, StoreError, StoreUnavailable
from openq.redis import bridge
from openq.redis.copies import READS, Mark
from openq.redis.link import Pause, ThreadLink, Turn
from openq.redis.looplink import Collector, LoopLink
from openq.redis.nodes import Node, nodes_of
from openq.redis.url import Address, Host
from openq.redis.wire import Refused, pack

Arguments = tuple[bytes | str | int, ...]
Link = ThreadLink | LoopLink

ASKING = pack(("ASKING",))


def _note(marks: dict[Link, Mark], link: Link, mark: Mark) -> None:
    """The last write covers those before it, but only on its own connection: what an earlier one took with
    it must not be forgotten."""
    before = marks.get(link)
    if before is None or before.opened == mark.opened or link.copies.is_confirmed(before):
        marks[link] = mark


class _ThreadMarks(threading.local):
    def __init__(self) -> None:
        self.marks: dict[Link, Mark] = {}


class Calls:
    """Waits for the answer: a thread blocks; code run by `bridge` on the loop is suspended meanwhile.

    Threads share a connection, and so do all who run on the loop: a command that blocks in Redis
    would hold up everybody and does not belong here.
    """

    def __init__(self, address: Address, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.address = address
        self._loop = loop
        self._nodes = nodes_of(address, loop)
        self._counts_writes = address.profile == "safe"
        self._of_thread = _ThreadMarks()
        self._closed = False

    def call(
        self,
        key: bytes,
        *command: bytes | str | int,
        idempotent: bool = False,
        is_confirmed: bool = True,
        patience_s: float | None = None,
    ) -> Any:
        """One command, sent to the node of `key`. `idempotent`: may be repeated when no answer came.
        `is_confirmed`: `durable` is about this one too, if it writes.

        `patience_s` is how long to wait for a Redis that is away, if not as long as the address says.
        """
        data = pack(command)
        reads = command[0] in READS
        writes = self._counts_writes and is_confirmed and not reads
        reply = self._once(key, data, writes)
        if isinstance(reply, StoreError):
            return self._again(key, data, writes, reply, idempotent or reads, patience_s)
        return reply

    def many(self, commands: Sequence[tuple[bytes, Arguments]], *, idempotent: bool = False) -> list[Any]:
        """All at once, those of one key in order; an error is an item, not raised."""
        replies: list[Any] = [None] * len(commands)
        packed = [pack(command) for _, command in commands]
        writes = self._counts_writes and any(command[0] not in READS for _, command in commands)
        shares: dict[Node, list[int]] = {}
        for place, (key, _) in enumerate(commands):
            try:
                shares.setdefault(self._nodes.of(key), []).append(place)
            except StoreUnavailable as error:
                replies[place] = error
        strand = self._strand()
        share = self._share_on_loop if strand is not None else self._share_on_thread
        share(shares, packed, replies, writes)
        for place, reply in enumerate(replies):
            if isinstance(reply, StoreError):
                key, command = commands[place]
                harmless = idempotent or command[0] in READS
                try:
                    replies[place] = self._again(key, packed[place], writes, reply, harmless)
                except OpenQError as final:
                    replies[place] = final
        return replies

    def durable(self) -> None:
        """Return when what this caller wrote has its copies; without writes of its own, what all wrote."""
        if not self._counts_writes:
            return
        strand = self._strand()
        marks = self._unsafe(strand)
        if not marks:
            return
        if strand is not None:
            error = bridge.wait(lambda callback: self._confirm_on_loop(marks, callback))
            assert error is None
            return
        turns: list[tuple[ThreadLink, Turn]] = []
        try:
            for link in marks:
                assert isinstance(link, ThreadLink)
                turn = Turn(b"", 0, confirms=True)
                link.begin(turn)
                turns.append((link, turn))
            for link, turn in turns:
                link.finish(turn)
                link.copies.require(marks[link])
        except StoreUnavailable as lost:
            raise NotReplicated(lost.detail) from lost
        finally:
            for link, turn in turns:
                link.abandon(turn)

    @contextmanager
    def apart(self, *, forgets: bool = False) -> Iterator[None]:
        """Within it `durable` is about what was written within it, and may fail and be asked again: what its
        caller wrote before, and still has to ask for, is not touched. Who `forgets` has asked for all that
        matters: the rest is not the next one's to wait for."""
        marks = self._marks(self._strand())
        before = marks.copy()
        marks.clear()
        try:
            yield
        finally:
            within = marks.copy()
            marks.clear()
            marks.update(before)
            for link, mark in () if forgets else within.items():
                _note(marks, link, mark)

    def on_durable(self, callback: Callable[[OpenQError | None], None]) -> None:
        """As `durable`, but tells `callback(error or None)`; on the loop that is later, and nobody waits."""
        try:
            if self._loop is None or asyncio._get_running_loop() is not self._loop:
                self.durable()
            elif self._counts_writes and (marks := self._unsafe(self._strand(), on_loop=True)):
                self._confirm_on_loop(marks, callback)
                return
        except OpenQError as error:
            callback(error)
        else:
            callback(None)

    def any_host(self) -> Host | None:
        """Of one of the servers, for who connects by itself."""
        nodes = self._nodes.all()
        return random.choice(nodes).host if nodes else None

    def close(self) -> None:
        self._closed = True
        self._nodes.close()

    # One attempt.

    def _strand(self) -> bridge.Strand | None:
        if self._loop is None:
            return None
        strand = bridge.strand()
        return strand if strand is not None and strand.loop is self._loop else None

    def _once(self, key: bytes, data: bytes, writes: bool) -> Any:
        try:
            return self._ask(self._nodes.of(key), data, writes)
        except StoreUnavailable as error:
            return error

    def _ask(self, node: Node, data: bytes, writes: bool) -> Any:
        """One command's reply; a loss is returned like an error reply."""
        strand = self._strand()
        if strand is not None:
            link = node.on_loop
            assert link is not None
            reply = bridge.reply_of(strand, link.send, data)
            if writes and not isinstance(reply, StoreUnavailable):
                # Woken by the very connection that answered: it is still the same.
                _note(strand.marks, link, link.copies.mark())
            return reply
        try:
            turn = node.threads.exchange(data, 1, writes)
        except StoreError as error:
            return error
        if turn.mark is not None:
            _note(self._of_thread.marks, node.threads, turn.mark)
        return turn.replies[0]

    def _share_on_thread(
        self, shares: dict[Node, list[int]], packed: list[bytes], replies: list[Any], writes: bool
    ) -> None:
        """To all nodes before the first answer is read."""
        begun: list[tuple[ThreadLink, Turn, list[int]]] = []
        try:
            for node, places in shares.items():
                turn = Turn(b"".join([packed[place] for place in places]), len(places), writes)
                node.threads.begin(turn)
                begun.append((node.threads, turn, places))
            for link, turn, places in begun:
                try:
                    link.finish(turn)
                except StoreError as error:
                    turn.replies.extend([error] * (turn.count - len(turn.replies)))
                if turn.mark is not None:
                    _note(self._of_thread.marks, link, turn.mark)
                for place, reply in zip(places, turn.replies, strict=True):
                    replies[place] = reply
        finally:
            for link, turn, _ in begun:
                link.abandon(turn)

    def _share_on_loop(
        self, shares: dict[Node, list[int]], packed: list[bytes], replies: list[Any], writes: bool
    ) -> None:
        strand = self._strand()
        assert strand is not None

        def start(callback: Callable[[Any], None]) -> None:
            missing = len(shares)

            def answered(link: LoopLink, places: list[int], answers: list[Any]) -> None:
                nonlocal missing
                for place, reply in zip(places, answers, strict=True):
                    replies[place] = reply
                if writes and not isinstance(answers[-1], StoreUnavailable):
                    _note(strand.marks, link, link.copies.mark())
                missing -= 1
                if not missing:
                    callback(None)

            for node, places in shares.items():
                link = node.on_loop
                assert link is not None
                data = b"".join([packed[place] for place in places])
                link.send_many(
                    data,
                    len(places),
                    lambda answers, link=link, places=places: answered(link, places, answers),  # type: ignore[misc]
                )

        if shares:
            bridge.wait(start)

    # Again.

    def _again(
        self,
        key: bytes,
        data: bytes,
        writes: bool,
        error: StoreError,
        idempotent: bool,
        patience_s: float | None = None,
    ) -> Any:
        give_up_s = time.monotonic() + (self.address.reconnect_s if patience_s is None else patience_s)
        pause_s = Pause.SHORTEST_S
        redirections = 0
        was_sent = False  # by any of the tries: then it may have been done, whatever the last one says
        while True:
            was_sent = was_sent or (isinstance(error, StoreUnavailable) and error.sent)
            reply: Any
            if isinstance(error, Refused) and error.word in ("MOVED", "ASK") and redirections < 5:
                redirections += 1
                reply = self._redirect(key, data, writes, error)
            elif isinstance(error, Refused) or (
                isinstance(error, StoreUnavailable) and (idempotent or not error.sent)
            ):
                if self._closed or time.monotonic() >= give_up_s:
                    why = error.detail if isinstance(error, StoreUnavailable) else str(error)
                    raise StoreUnavailable(why, sent=was_sent)
                self._look()
                self._sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(pause_s * 2, Pause.LONGEST_S)
                redirections = 0
                reply = self._once(key, data, writes)
            else:
                raise error
            if not isinstance(reply, StoreError):
                return reply
            error = reply

    def _redirect(self, key: bytes, data: bytes, writes: bool, refused: Refused) -> Any:
        try:
            node = self._nodes.redirected(refused, self._nodes.of(key))
        except StoreUnavailable as error:
            return error
        if node is None:
            raise StoreError(f"{refused}; a cluster's URL begins with redis+cluster://")
        if refused.word == "MOVED":
            return self._ask(node, data, writes)
        strand = self._strand()
        if strand is None:
            try:
                turn = node.threads.exchange(ASKING + data, 2, writes)
            except StoreError as error:
                return error
            if turn.mark is not None:
                _note(self._of_thread.marks, node.threads, turn.mark)
            return turn.replies[1]
        link = node.on_loop
        assert link is not None
        reply = bridge.wait(lambda callback: link.send_many(ASKING + data, 2, callback))[1]
        if writes and not isinstance(reply, StoreUnavailable):
            _note(strand.marks, link, link.copies.mark())
        return reply

    def _look(self) -> None:
        if self.address.kind == "single":
            return
        strand = self._strand()
        if strand is None:
            self._nodes.look()
            return
        loop = strand.loop
        bridge.wait(
            lambda callback: loop.run_in_executor(None, self._nodes.look).add_done_callback(
                lambda _: callback(None)
            )
        )

    def _sleep(self, seconds: float) -> None:
        if self._strand() is None:
            time.sleep(seconds)
        else:
            bridge.sleep(seconds)

    # Copies.

    def _unsafe(self, strand: bridge.Strand | None, on_loop: bool = False) -> dict[Link, Mark]:
        """The connections that must be asked, and for what; raises if it is too late to ask."""
        now_s = time.monotonic()
        own = self._marks(strand)
        if own and not (on_loop and strand is None):
            marks = own.copy()
            own.clear()
        else:
            marks = {
                link: link.copies.now()
                for link in self._links(on_loop or strand is not None)
                if link.copies.has_open_writes
            }
        return {link: mark for link, mark in marks.items() if not link.copies.is_safe(mark, now_s)}

    def _marks(self, strand: bridge.Strand | None) -> dict[Link, Mark]:
        return strand.marks if strand is not None else self._of_thread.marks

    def _links(self, on_loop: bool) -> Iterable[Link]:
        for node in self._nodes.all():
            link: Link | None = node.on_loop if on_loop else node.threads
            if link is not None:
                yield link

    def _confirm_on_loop(self, marks: dict[Link, Mark], callback: Callable[[Any], None]) -> None:
        def answered(verdicts: list[Any]) -> None:
            error = next((verdict for verdict in verdicts if verdict is not None), None)
            if isinstance(error, StoreUnavailable):
                error = NotReplicated(error.detail)
            try:
                for link, mark in marks.items() if error is None else ():
                    link.copies.require(mark)
            except NotReplicated as reopened:
                error = reopened
            callback(error)

        collector = Collector(len(marks), answered)
        for link in marks:
            assert isinstance(link, LoopLink)
            link.confirm(collector.add)
