"""A broker behind calls that can be written as JSON; as a program, in a process that can be killed.

Every call that changes something waits for the disk before it answers, as a protocol of OpenQ does. Run as
`python -m tests.crash.host DIRECTORY OPTIONS`, it reads one call per line, does those of each session in
order and the sessions side by side, and writes one answer per line.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from openq.broker.interface import only
from openq.engine.routing import Binding, Exchange
from openq.errors import OpenQError
from openq.journal.disk import DiskIo
from openq.journal.file_journal import Journal
from openq.local.broker import LocalBroker
from openq.model import Delivery, Draft, Properties, QueueSettings, plain_options

Call = dict[str, Any]
Answer = dict[str, Any]

INFO = Properties.from_amqp(b"\x80\x00\x0atext/plain", "someone")  # of every second run


class Host:
    """Does one call. The methods named `do_...` are the calls."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker

    def answer(self, call: Call) -> Answer:
        try:
            return {"ok": getattr(self, "do_" + call["do"])(call)}
        except OpenQError as error:
            return {"error": type(error).__name__, "text": str(error)}
        except Exception as error:
            # Whatever is not a typed error of OpenQ is a bug; the judge wants to hear of it.
            return {"error": "!" + type(error).__name__, "text": repr(error)}

    def sync(self, call: Call) -> None:
        self.broker.sync()

    # -- queues and exchanges

    def do_declare(self, call: Call) -> None:
        settings = QueueSettings.from_json(call["settings"])
        self.broker.declare(call["queue"], settings, change=call.get("change", False))
        self.sync(call)

    def do_delete(self, call: Call) -> int:
        count = self.broker.delete(call["queue"])
        self.sync(call)
        return count

    def do_exchange(self, call: Call) -> None:
        self.broker.exchanges.declare_exchange(Exchange(call["name"], call["kind"]))
        for queue, key in call["bindings"]:
            self.broker.exchanges.bind(Binding(call["name"], queue, key=key))
        self.sync(call)

    def do_delete_exchange(self, call: Call) -> None:
        self.broker.exchanges.delete_exchange(call["name"])
        self.sync(call)

    def do_settings(self, call: Call) -> dict[str, Any]:
        return {queue: self.broker.settings(queue).to_json() for queue in self.broker.queues()}

    def do_stats(self, call: Call) -> dict[str, int]:
        stats = self.broker.stats(call["queue"])
        return {"ready": stats.ready, "delayed": stats.delayed, "in_flight": stats.in_flight}

    def do_purge(self, call: Call) -> int:
        count = self.broker.purge(call["queue"])
        self.sync(call)
        return count

    # -- in

    def do_now(self, call: Call) -> int:
        return self.broker.now_ms()

    def do_publish(self, call: Call) -> str:
        message_id = self.broker.publish(call["queue"], _draft(call["draft"]))
        self.sync(call)
        return message_id

    def do_publish_many(self, call: Call) -> list[str | None]:
        ids = self.broker.publish_many(call["queue"], [_draft(draft) for draft in call["drafts"]])
        self.sync(call)
        return [None if isinstance(each, OpenQError) else each for each in ids]

    def do_publish_run(self, call: Call) -> int:
        bodies = [body.encode() for body in call["bodies"]]
        stamp = (INFO, plain_options(("", call["queue"]))) if len(bodies) % 2 == 0 else ()
        run = self.broker.publish_bodies(call["queue"], bodies, 0, *stamp)
        self.sync(call)
        return 0 if run is None else len(run)

    def do_route(self, call: Call) -> list[str]:
        _, reached = self.broker.exchanges.route(call["exchange"], call["key"], _draft(call["draft"]))
        self.sync(call)
        return reached

    # -- out

    def do_receive(self, call: Call) -> list[list[Any]]:
        deliveries = self.broker.receive(call["queue"], call.get("limit", 1), call.get("lease_ms"))
        if deliveries:
            deliveries = self.broker.load(deliveries)
        for delivery in deliveries:
            properties = delivery.entry.properties
            assert properties is None or properties.amqp_properties is None or properties == INFO
        return [_shown(delivery) for delivery in deliveries]

    def do_ack(self, call: Call) -> list[str | None]:
        errors = self.broker.ack(call["queue"], [tuple(receipt) for receipt in call["receipts"]])
        self.sync(call)
        return [None if error is None else type(error).__name__ for error in errors]

    def do_nack(self, call: Call) -> str:
        outcome = only(
            self.broker.nack(call["queue"], [tuple(call["receipt"])], call.get("delay_ms"), "tried")
        )
        self.sync(call)
        return outcome

    def do_reject(self, call: Call) -> str:
        outcome = only(self.broker.reject(call["queue"], [tuple(call["receipt"])], "unfit"))
        self.sync(call)
        return outcome

    def do_release(self, call: Call) -> int:
        count = self.broker.release(call["queue"], [tuple(call["receipt"])])
        self.sync(call)
        return count

    def do_extend(self, call: Call) -> int:
        until_ms = only(self.broker.extend(call["queue"], [tuple(call["receipt"])], call["lease_ms"]))
        self.sync(call)
        return until_ms

    # -- mending

    def do_cancel(self, call: Call) -> None:
        self.broker.admin.cancel(call["queue"], call["id"])
        self.sync(call)

    def do_edit(self, call: Call) -> None:
        self.broker.admin.edit(call["queue"], call["id"], Draft(call["body"].encode()))
        self.sync(call)

    def do_move(self, call: Call) -> list[str | None]:
        errors = self.broker.admin.move(call["queue"], call["ids"], call["to"])
        self.sync(call)
        return [None if error is None else type(error).__name__ for error in errors]

    def do_reschedule(self, call: Call) -> None:
        self.broker.admin.reschedule(call["queue"], call["id"], call["due_ms"])
        self.sync(call)

    def do_redrive(self, call: Call) -> int:
        count = self.broker.admin.redrive(call["queue"], call.get("to"))
        self.sync(call)
        return count

    def do_replay(self, call: Call) -> int:
        count = self.broker.admin.replay(call["queue"], 0, None, call["to"])
        self.sync(call)
        return count

    # -- the broker itself

    def do_housekeeping(self, call: Call) -> int:
        """What its thread does now and then, at once; how many segments there are afterwards."""
        housekeeper = self.broker.housekeeper
        assert housekeeper is not None
        housekeeper._guarded(housekeeper.work)
        assert self.broker.journal is not None
        return len(self.broker.journal.segments())

    def do_snapshot(self, call: Call) -> None:
        housekeeper = self.broker.housekeeper
        assert housekeeper is not None
        housekeeper._guarded(housekeeper.snapshot)

    def do_health(self, call: Call) -> dict[str, Any]:
        health = self.broker.health()
        return {"ok": health.ok, "disk_full": health.disk_full, "detail": health.detail}


def _draft(fields: dict[str, Any]) -> Draft:
    fields = dict(fields)
    return Draft(fields.pop("body").encode(), **fields)


def _shown(delivery: Delivery) -> list[Any]:
    entry = delivery.entry
    body = (entry.body or b"").decode("utf-8", "replace")
    return [body, entry.seq, delivery.number, delivery.delivered_ms, delivery.until_ms, delivery.count]


class HastyHost(Host):
    """A planted fault: answers before the commit."""

    def sync(self, call: Call) -> None:
        pass


class ForgetfulHost(Host):
    """A planted fault: acks are answered before the commit, all else is right."""

    def sync(self, call: Call) -> None:
        if call["do"] != "ack":
            super().sync(call)


class QuietIo(DiskIo):
    """The disk without its waiting. Where power cuts are the question it is a planted fault."""

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync(self, fd: int) -> None:
        pass

    def fsync_dir(self, path: str) -> None:
        pass


HOSTS: dict[str, type[Host]] = {"honest": Host, "hasty": HastyHost, "forgetful": ForgetfulHost}


def main(path: str, options: dict[str, Any]) -> None:
    journal = Journal(
        path,
        segment_bytes=options.get("segment_bytes", 1 << 16),
        first_segment_bytes=options.get("first_segment_bytes", 1 << 14),
        reserve_bytes=options.get("reserve_bytes", 1 << 16),
        io=QuietIo() if options.get("io") == "quiet" else DiskIo(),
    )
    broker = LocalBroker(journal=journal, history_bytes=options.get("history_bytes", 1 << 30))
    host = HOSTS[options.get("host", "honest")](broker)
    sessions: dict[int, SimpleQueue[Call | None]] = {}
    writing = threading.Lock()

    def work(session: SimpleQueue[Call | None]) -> None:
        while (call := session.get()) is not None:
            tell({"number": call["number"], **host.answer(call)})

    def tell(answer: Answer) -> None:
        line = json.dumps(answer) + "\n"
        with writing:
            sys.stdout.write(line)
            sys.stdout.flush()

    threads = []
    tell({"number": 0, "ok": "ready"})
    for line in sys.stdin:
        call: Call = json.loads(line)
        number = call["session"]
        if number not in sessions:
            sessions[number] = SimpleQueue()
            thread = threading.Thread(target=work, args=(sessions[number],), daemon=True)
            thread.start()
            threads.append(thread)
        sessions[number].put(call)
    for session in sessions.values():
        session.put(None)
    for thread in threads:
        thread.join()
    broker.close()


Caller = Callable[[Call], Answer]

if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
