"""The calls of the crash tests through AMQP: confirms, gets and consumers, acks and transactions.

An ack is not answered. What is answered after it covers it: a commit where the channel is transactional,
else the answer to a question about the queue. A lease lasts as long as its connection, which is as long as
its process lives.
"""

from __future__ import annotations

import itertools
from typing import Any

from tests.amqp.dialogue import Answer as Frame
from tests.amqp.dialogue import ConnectionEnded
from tests.amqp.raw_client import RawClientWithBodies, method, publish
from tests.crash.client import Died
from tests.crash.host import Answer, Call
from tests.crash.protocols import CLOCK_MS, RestProtocol, Unwell, now_ms

REACHED = {"fan": ["fan-a", "fan-b"]}  # a confirm does not tell where it went
PUBLISHING, TAKING = 1, 2
CHANGED_MS = 2000  # who delays for so long wants the id, which a confirm does not tell


class AmqpProtocol(RestProtocol):
    """What AMQP has, through AMQP; the rest as before."""

    def __init__(self, port: int, amqp_port: int, is_transactional: bool) -> None:
        super().__init__(port)
        self._amqp_port = amqp_port
        self._is_transactional = is_transactional
        self._talk: RawClientWithBodies | None = None
        self._turns = itertools.count()

    def close(self) -> None:
        super().close()
        if self._talk is not None:
            self._talk.close()

    def answer(self, call: Call) -> Answer:
        try:
            return super().answer(call)
        except OSError:
            raise Died() from None
        except ConnectionEnded as end:
            if "eof" in str(end) or "'reply_code': 320" in str(end):
                raise Died() from None
            return {"error": "!Ended", "text": str(end)}

    @property
    def talk(self) -> RawClientWithBodies:
        if self._talk is None:
            self._talk = talk = RawClientWithBodies(self._amqp_port)
            talk.confirming()
            talk.call("channel.open", channel=TAKING)
            if self._is_transactional:
                talk.call("tx.select", channel=TAKING)
        return self._talk

    # -- in

    def _publish(self, drafts: list[dict[str, Any]], exchange: str, key: str) -> list[str | None]:
        talk = self.talk
        out = [
            publish(
                PUBLISHING,
                key,
                draft["body"].encode(),
                exchange=exchange,
                mandatory=True,
                properties=_properties(draft),
            )
            for draft in drafts
        ]
        talk.send(b"".join(out))
        refused = set(talk.settled(len(drafts)))
        if talk.received:
            raise Unwell("!Returned", str(talk.received[:3]))
        return [None if n in refused else "sent" for n in range(1, len(drafts) + 1)]

    def do_publish(self, call: Call) -> str:
        draft = call["draft"]
        if draft.keys() & {"id", "due_ms", "ttl_ms"} or draft.get("delay_ms") == CHANGED_MS:
            return super().do_publish(call)
        if self._publish([draft], "", call["queue"]) != ["sent"]:
            raise Unwell("!Nack", "a sound disk, but a nack")
        return "sent"

    def do_publish_many(self, call: Call) -> list[str | None]:
        return self._publish(call["drafts"], "", call["queue"])

    def do_publish_run(self, call: Call) -> int:
        sent = self._publish([{"body": body} for body in call["bodies"]], "", call["queue"])
        if None in sent:
            raise Unwell("!Nack", "a sound disk, but a nack")
        return len(sent)

    def do_route(self, call: Call) -> list[str]:
        if self._publish([call["draft"]], call["exchange"], call["key"]) != ["sent"]:
            raise Unwell("!Nack", "a sound disk, but a nack")
        return REACHED[call["exchange"]]

    # -- out

    def do_receive(self, call: Call) -> list[list[Any]]:
        by_turns = (self._get, self._consume)[next(self._turns) % 2]
        found = by_turns(call["queue"], call["limit"])
        delivered_ms = now_ms() + CLOCK_MS
        return [
            [each[4], each[2]["delivery_tag"], 0, delivered_ms, 0, 1 + each[2]["redelivered"]]
            for each in found
        ]

    def _get(self, queue: str, limit: int) -> list[Frame]:
        talk = self.talk
        found: list[Frame] = []
        while len(found) < limit:
            talk.send(method(TAKING, "basic.get", queue=queue))
            [answer] = talk.next()
            if answer[1] == "basic.get-empty":
                break
            found.append(answer)
        return found

    def _consume(self, queue: str, limit: int) -> list[Frame]:
        """Whatever comes between the beginning and the end of a consumer that takes no more than asked."""
        talk = self.talk
        talk.call("basic.qos", channel=TAKING, prefetch_count=limit)
        talk.send(
            method(TAKING, "basic.consume", queue=queue, consumer_tag="c")
            + method(TAKING, "queue.declare", queue=queue, passive=True)
            + method(TAKING, "basic.cancel", consumer_tag="c")
        )
        talk.receive_methods("basic.cancel-ok", 1)
        found = [each for each in talk.received if each[1] == "basic.deliver"]
        talk.received.clear()
        return found

    def _settle(self, verb: str, call: Call, **fields: Any) -> None:
        self._settled(call["queue"], [method(TAKING, verb, delivery_tag=call["receipt"][0], **fields)])

    def _settled(self, queue: str, out: list[bytes]) -> None:
        talk = self.talk
        talk.send(b"".join(out))
        if self._is_transactional:
            talk.call("tx.commit", channel=TAKING)
        else:
            talk.call("queue.declare", channel=TAKING, queue=queue, passive=True)

    def do_ack(self, call: Call) -> list[str | None]:
        tags = [receipt[0] for receipt in call["receipts"]]
        self._settled(call["queue"], [method(TAKING, "basic.ack", delivery_tag=tag) for tag in tags])
        return [None] * len(tags)

    def do_nack(self, call: Call) -> str:
        self._settle("basic.nack", call, requeue=True)
        return "done"

    def do_reject(self, call: Call) -> str:
        self._settle("basic.reject", call, requeue=False)
        return "done"

    def do_release(self, call: Call) -> int:
        self._settle("basic.reject", call, requeue=True)
        return 1

    def do_extend(self, call: Call) -> int:
        return 0  # it has no end anyway

    def do_purge(self, call: Call) -> int:
        answer = self.talk.call("queue.purge", channel=TAKING, queue=call["queue"])
        return int(answer[2]["message_count"])

    def do_delete(self, call: Call) -> int:
        answer = self.talk.call("queue.delete", channel=TAKING, queue=call["queue"])
        return int(answer[2]["message_count"])


def _properties(draft: dict[str, Any]) -> dict[str, Any]:
    names = {"group": "x-group-id", "dedup": "x-deduplication-header", "delay_ms": "openq.delay"}
    headers = {names[name]: value for name, value in draft.items() if name in names}
    properties: dict[str, Any] = {"delivery_mode": 2}
    if headers:
        properties["headers"] = headers
    for name in ("priority", "type"):
        if name in draft:
            properties[name] = draft[name]
    return properties
