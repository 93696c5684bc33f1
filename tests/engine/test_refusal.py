"""A log that refuses, at any record of any verb: what was logged is done, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from openq.engine import admin
from openq.engine.engine import Engine
from openq.engine.queue import QueueState
from openq.engine.routing import Binding, Exchange
from openq.errors import DiskFull, OpenQError
from openq.model import Draft, MessageFilter, QueueSettings, RetryPolicy
from tests.budget import examples

from .support import PREFIX, Tape, assert_same, dump

NAMES = ("standard", "fifo", "tight", "dead")
SETTINGS = {
    "standard": QueueSettings(
        visibility_ms=10, max_receives=2, dead_letter="dead", ttl_ms=50, dead_letter_expired=True
    ),
    "fifo": QueueSettings(fifo=True, visibility_ms=10, max_receives=2, dead_letter="tight", retention_ms=60),
    "tight": QueueSettings(max_length=2, overflow="dead-letter", dead_letter="dead"),
    "dead": QueueSettings(max_length=3, retry=RetryPolicy("fixed", base_ms=5)),
}

Verb = Callable[["World", QueueState, int], object]


class World:
    def __init__(self, stored: bool) -> None:
        self.tape = Tape(stored=stored)
        self.engine = Engine(PREFIX, log=self.tape)
        self.now_ms = 1_000
        for name, each in SETTINGS.items():
            self.engine.create_queue(name, each, self.now_ms)

    def any_id(self, queue: QueueState, which: int) -> str:
        entries = list(admin.browse(self.engine, queue))
        return self.engine.id_of(entries[which % len(entries)]) if entries else "none"

    def receipt(self, queue: QueueState, which: int) -> tuple[int, int]:
        leases = list(queue.leases.values())
        return (
            (leases[which % len(leases)].entry.seq, leases[which % len(leases)].number) if leases else (1, 1)
        )


def _draft(which: int) -> Draft:
    return Draft(
        b"x" * (which % 5),
        group=("g", "h", None)[which % 3],
        priority=which % 2,
        type="t" if which % 4 else None,
        dedup=f"d{which}" if which % 7 == 0 else None,
        delay_ms=which % 6 if which % 5 == 0 else None,
    )


VERBS: dict[str, Verb] = {
    "publish": lambda w, q, n: w.engine.publish(q, _draft(n), w.now_ms),
    "publish again": lambda w, q, n: w.engine.publish(q, _draft(n + 1), w.now_ms),
    "publish plain": lambda w, q, n: w.engine.publish_plain(q, b"p", 0, w.now_ms) if q.is_plain else None,
    "publish run": lambda w, q, n: (
        w.engine.publish_run(q, [b"a", b"bb"], 0, w.now_ms) if q.is_plain else None
    ),
    "route": lambda w, q, n: w.engine.route("amq.fanout", "", _draft(n), w.now_ms),
    "bind": lambda w, q, n: admin.bind(w.engine, Binding("amq.fanout", q.name), w.now_ms),
    "unbind": lambda w, q, n: admin.unbind(w.engine, Binding("amq.fanout", q.name), w.now_ms),
    "exchange": lambda w, q, n: admin.declare_exchange(w.engine, Exchange(f"x{n % 2}", "topic"), w.now_ms),
    "no exchange": lambda w, q, n: admin.delete_exchange(w.engine, f"x{n % 2}", w.now_ms),
    "receive": lambda w, q, n: w.engine.receive(q, n % 4, w.now_ms),
    "receive one": lambda w, q, n: w.engine.receive(q, 1, w.now_ms),
    "receive typed": lambda w, q, n: w.engine.receive(q, 2, w.now_ms, wanted=MessageFilter.of(["t"])),
    "ack": lambda w, q, n: w.engine.ack(q, *w.receipt(q, n), w.now_ms),
    "ack many": lambda w, q, n: w.engine.ack_many(q, [w.receipt(q, n), w.receipt(q, n + 1)], w.now_ms),
    "ack late": lambda w, q, n: w.engine.ack_late(q, *w.receipt(q, n), w.now_ms),
    "extend late": lambda w, q, n: w.engine.extend_late(q, *w.receipt(q, n), w.now_ms, 50),
    "nack": lambda w, q, n: w.engine.nack(q, *w.receipt(q, n), w.now_ms, None, "bad"),
    "reject": lambda w, q, n: w.engine.reject(q, *w.receipt(q, n), w.now_ms),
    "nack many": lambda w, q, n: w.engine.nack_many(q, [w.receipt(q, n), w.receipt(q, n + 1)], w.now_ms),
    "reject many": lambda w, q, n: w.engine.reject_many(q, [w.receipt(q, n), w.receipt(q, n + 1)], w.now_ms),
    "route to": lambda w, q, n: w.engine.route_to(["tight", q.name], _draft(n), w.now_ms),
    "purge waiting": lambda w, q, n: admin.purge(w.engine, q, w.now_ms, True) if n % 4 == 0 else None,
    "sort": lambda w, q, n: w.engine.change_queue(q.name, q.settings.with_(max_priority=n % 2), w.now_ms),
    "release": lambda w, q, n: w.engine.release(q, *w.receipt(q, n), w.now_ms),
    "extend": lambda w, q, n: w.engine.extend(q, *w.receipt(q, n), w.now_ms, 20),
    "cancel": lambda w, q, n: admin.cancel(w.engine, q, w.any_id(q, n), w.now_ms),
    "edit": lambda w, q, n: admin.edit(w.engine, q, w.any_id(q, n), w.now_ms, Draft(b"edited")),
    "reschedule": lambda w, q, n: admin.reschedule(w.engine, q, w.any_id(q, n), w.now_ms + n % 5, w.now_ms),
    "move": lambda w, q, n: admin.move(w.engine, q, [w.any_id(q, n)], w.engine.queue("tight"), w.now_ms),
    "redrive": lambda w, q, n: admin.redrive(w.engine, q, list(q.ready), None, w.now_ms),
    "purge": lambda w, q, n: admin.purge(w.engine, q, w.now_ms) if n % 4 == 0 else None,
    "change": lambda w, q, n: w.engine.change_queue(q.name, q.settings.with_(paused=n % 4 == 0), w.now_ms),
    "delete": lambda w, q, n: w.engine.delete_queue(q.name, w.now_ms) if n % 16 == 0 else None,
    "create": lambda w, q, n: w.engine.create_queue(f"new{n % 3}", QueueSettings(), w.now_ms),
    "time": lambda w, q, n: w.engine.advance(w.now_ms),
}

steps = st.tuples(
    st.sampled_from(sorted(VERBS)),
    st.sampled_from(NAMES),
    st.integers(0, 60),
    st.sampled_from((0, 0, 1, 11, 70)),  # milliseconds that pass before
    st.sampled_from((None, None, 0, 1, 2)),  # records that the log still takes
)


@given(stored=st.booleans(), life=st.lists(steps, min_size=5, max_size=40))
@settings(max_examples=examples(200))
def test_a_verb_that_the_log_refuses_leaves_what_the_records_tell(
    stored: bool, life: list[tuple[str, str, int, int, int | None]]
) -> None:
    world = World(stored)
    engine, tape = world.engine, world.tape
    for verb, name, which, ms, room in life:
        world.now_ms += ms
        queue = engine.queues.get(name)
        if queue is None:
            continue
        before, logged = dump(tape, engine, world.now_ms), len(tape.records)
        tape.refuse_from = None if room is None else logged + room
        refused = False
        try:
            VERBS[verb](world, queue, which)
        except DiskFull:
            refused = True
        except OpenQError:
            pass
        tape.refuse_from = None
        after = dump(tape, engine, world.now_ms)
        if (
            refused
            and len(tape.records) == logged
            and verb not in ("receive", "receive one", "receive typed")
        ):
            # A receive first lets delays end that are over, which leaves no record.
            assert_same(after, before)
        assert_same(_still(tape, tape.rebuilt(), engine, world.now_ms), after)


def _still(tape: Tape, rebuilt: Engine, engine: Engine, now_ms: int) -> dict[str, object]:
    """The rebuilt state, with only those delays ended that the live engine has ended."""
    for queue in rebuilt.queues.values():
        live = engine.queues[queue.name]
        for entry in list(queue.delayed.values()):
            if entry.seq not in live.delayed:
                rebuilt.expiry.come_due(queue, entry, now_ms)
    return dump(tape, rebuilt, now_ms)


def test_a_deadline_that_cannot_be_logged_is_tried_again() -> None:
    tape = Tape()
    engine = Engine(PREFIX, log=tape)
    queue = engine.create_queue("q", QueueSettings(visibility_ms=10), 1)
    engine.publish_plain(queue, b"x", 0, 1)
    engine.receive(queue, 1, 1)
    tape.refuse_from = len(tape.records)

    assert engine.advance(11) == 0
    tape.refuse_from = None

    assert engine.advance(11 + 200) == 1
    assert queue.ready_count == 1
