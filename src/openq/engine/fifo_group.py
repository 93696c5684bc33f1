"""One group of a FIFO queue: its ready messages, its messages in flight, and its place among the groups."""

from __future__ import annotations

from heapq import heappop, heappush

from .ready_list import GroupKey, ReadyList

NO_SEQ = 1 << 62  # after every sequence


class FifoGroup:
    """One FIFO group: its ready messages, its messages in flight, and its place among the groups."""

    __slots__ = ("_in_flight", "_in_flight_heap", "in_batch", "name", "rank", "ready_list", "ticket")

    def __init__(self, name: GroupKey) -> None:
        self.name = name
        self.ready_list = ReadyList()
        self.ticket = 0  # 0: none of its messages can be delivered
        self.rank = 0
        self.in_batch = False
        # Set only while a message is in flight: most groups of a long queue have none in flight.
        self._in_flight: set[int] | None = None
        self._in_flight_heap: list[int] = []

    @property
    def in_flight(self) -> set[int] | frozenset[int]:
        """Sequences of deliveries that are not settled."""
        return frozenset() if self._in_flight is None else self._in_flight

    def first_in_flight(self) -> int:
        """The lowest sequence in flight. Later messages of the group are held."""
        if self._in_flight is None:
            return NO_SEQ
        order = self._in_flight_heap
        while order[0] not in self._in_flight:
            heappop(order)
        return order[0]

    def mark_in_flight(self, seq: int) -> None:
        if self._in_flight is None:
            self._in_flight = {seq}
            self._in_flight_heap = [seq]
        else:
            self._in_flight.add(seq)
            heappush(self._in_flight_heap, seq)

    def clear_in_flight(self, seq: int) -> None:
        if self._in_flight is not None:
            self._in_flight.discard(seq)
            if not self._in_flight:
                self._in_flight, self._in_flight_heap = None, []


def turn_of(group: FifoGroup) -> tuple[int, int, int]:
    if group.ticket:
        return (0, -group.rank, group.ticket)
    first = group.ready_list.first()
    return (1, 0, 0 if first is None else first.seq)


def first_seq(group: FifoGroup) -> int:
    first = group.ready_list.first()
    return NO_SEQ if first is None else first.seq


def ticket_of(group: FifoGroup) -> int:
    return group.ticket or NO_SEQ
