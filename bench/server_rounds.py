"""Servers in turns: who takes part, the rounds, and the rows that come out of them."""

from __future__ import annotations

import contextlib
import itertools
import signal
import statistics
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from . import server_wrk
from .harness import BenchTarget, Lap, Row, Run
from .server_load import Drain, Repeat, Tally, drive
from .server_processes import NotAvailable, ServerProcess
from .server_requests import SqsRequests

BENCH = "server"
CONNECTIONS = 64
FULL_CORE = 0.85  # a client that takes more of one is what limits the rate

Work = Callable[[], Tally]  # what is measured
Prepare = Callable[[], Work]  # what is not, before each lap


@contextlib.contextmanager
def started(*peers: ServerProcess) -> Iterator[None]:
    """They all run at once: one that is not asked costs nothing, and turns can be short."""
    with contextlib.ExitStack() as stack, _ended_in_order():
        for peer in peers:
            stack.callback(peer.stop)
            peer.start()
        yield


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """`timeout` and the like send SIGTERM, which would end us without stopping the servers."""

    def leave(number: int, frame: types.FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def obtain(run: Run, kind: type[ServerProcess]) -> bool:
    try:
        kind.obtain()
    except NotAvailable as missing:
        run.log(f"server: NOT COMPARED WITH {kind.name}: {missing}")
        return False
    return True


@dataclass(slots=True)
class Contender:
    """A server and the work it is given. `prepare` is not measured; it returns what is."""

    peer: ServerProcess
    prepare: Prepare
    laps: list[Lap] = field(default_factory=list)
    client_cpu: list[float] = field(default_factory=list)  # cores that the load took

    def lap(self, *, counts: bool = True) -> None:
        self.peer.rested()
        work = self.prepare()
        before_s = self.peer.cpu_s()
        tally = work()
        spent_s = self.peer.worked(before_s)
        if counts:
            self.laps.append(Lap(tally.count, tally.wall_s, spent_s))
            self.client_cpu.append(tally.client_cpu_s / tally.wall_s)


def in_turns(contenders: Sequence[Contender], rounds: int) -> None:
    """One unmeasured lap each, then the rounds; who goes first changes."""
    for contender in contenders:
        contender.lap(counts=False)
    for number in range(rounds):
        first = number % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            contender.lap()


def compared(
    what: str,
    reference: str,
    ours: Contender,
    theirs: Contender,
    target: BenchTarget | None,
    *,
    by: str = "per_cpu_s",
    note: str = "",
) -> Row:
    """Our rate divided by theirs, round by round, per CPU second of the server or by the wall clock."""
    pairs = list(zip(ours.laps, theirs.laps, strict=True))
    if statistics.median(ours.client_cpu) > FULL_CORE:
        note = "; ".join(
            filter(None, [note, "the client had no core to spare: ours may be faster than this"])
        )
    return Row(
        BENCH,
        what,
        reference,
        "x",
        [getattr(us, by) / getattr(them, by) for us, them in pairs],
        target,
        {
            "per_s": [us.per_s for us, _ in pairs],
            "reference_per_s": [them.per_s for _, them in pairs],
            "per_cpu_s": [us.per_cpu_s for us, _ in pairs],
            "reference_per_cpu_s": [them.per_cpu_s for _, them in pairs],
            "server_cores": [us.cpu_s / us.wall_s for us, _ in pairs],
            "reference_cores": [them.cpu_s / them.wall_s for _, them in pairs],
            "client_cores": ours.client_cpu,
            "reference_client_cores": theirs.client_cpu,
            "background_cpu": [ours.peer.background],
        },
        note,
        side_unit="/s" if by == "per_s" else "/cpu-s",
        by=by,
    )


def fill(wire: SqsRequests, count: int) -> None:
    plan = Repeat(wire.batches(), messages=10, limit=count // 10, seconds=600.0)
    drive(wire.port, 16, plan)
    if plan.count != count:
        raise RuntimeError(f"only {plan.count} of {count} messages went in")


def repeat_requests(
    peer: ServerProcess,
    requests: list[bytes],
    seconds: float,
    *,
    messages: int = 1,
    connections: int = CONNECTIONS,
) -> Work:
    return lambda: server_wrk.repeat(peer.port, connections, requests, messages=messages, seconds=seconds)


def singles(peer: ServerProcess, seconds: float, connections: int = CONNECTIONS) -> Prepare:
    """SendMessage."""
    queues = FreshQueues(peer)
    return lambda: repeat_requests(peer, queues.next().sends(), seconds, connections=connections)


def tens(peer: ServerProcess, seconds: float, connections: int = CONNECTIONS) -> Prepare:
    """SendMessageBatch of ten."""
    queues = FreshQueues(peer)
    return lambda: repeat_requests(
        peer, queues.next().batches(), seconds, messages=10, connections=connections
    )


def drained(
    peer: ServerProcess, count: int, connections: int = CONNECTIONS, seconds: float = 60.0
) -> Prepare:
    """Receive ten, delete the ten. The queue is filled before the clock starts."""
    queues = FreshQueues(peer)

    def prepare() -> Work:
        wire = queues.next()
        fill(wire, count)
        return drain(wire, count, connections, seconds)

    return prepare


def drain(wire: SqsRequests, count: int, connections: int = CONNECTIONS, seconds: float = 60.0) -> Work:
    return lambda: drive(wire.port, connections, Drain(wire.receive(), wire.delete, count, seconds))


class FreshQueues:
    """A new queue for every lap, so that none begins with what another left behind."""

    _numbers = itertools.count(1)

    def __init__(self, peer: ServerProcess) -> None:
        self._peer = peer
        self._last: SqsRequests | None = None

    def next(self) -> SqsRequests:
        if self._last is not None:
            self._last.drop()
        self._last = self._peer.queue(f"bench-{next(self._numbers)}")
        return self._last
