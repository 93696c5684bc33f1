"""What each protocol did: messages, refusals, times from publish to ack. Counted on the loop.

A protocol adds to its `ProtocolTraffic` where it calls the broker: one addition for a whole batch. No lock is
needed.
"""

from __future__ import annotations

from ..broker.statistics import MessageTimes
from ..errors import OpenQError
from ..metrics import Family

MAX_REASONS = 200  # codes are ours, so this is never reached; it bounds a mistake


class ProtocolTraffic:
    __slots__ = ("_times", "acked", "delivered", "nacked", "publish_to_ack", "published", "refusals")

    def __init__(self, name: str, times: MessageTimes) -> None:
        self.published = 0
        self.delivered = 0
        self.acked = 0
        self.nacked = 0
        self.refusals: dict[str, int] = {}
        self.publish_to_ack = times.of_protocol(name)
        self._times = times

    def acking(self) -> None:
        """Call it right before an ack: the time from publish to ack is that of this protocol."""
        self._times.total = self.publish_to_ack

    def count_nacks(self, results: list[str | OpenQError]) -> list[str | OpenQError]:
        """Count those that succeeded, and pass all on."""
        self.nacked += sum([isinstance(each, str) for each in results])
        return results

    def refuse(self, reason: str) -> None:
        """A request was answered with an error."""
        if reason in self.refusals or len(self.refusals) < MAX_REASONS:
            self.refusals[reason] = self.refusals.get(reason, 0) + 1


class Traffic:
    def __init__(self, times: MessageTimes) -> None:
        self.times = times
        self.sqs = ProtocolTraffic("sqs", times)
        self.amqp = ProtocolTraffic("amqp", times)
        self.rest = ProtocolTraffic("rest", times)
        self.push = ProtocolTraffic("push", times)
        self.webhooks = ProtocolTraffic("webhooks", times)
        self._all = {
            "amqp": self.amqp,
            "push": self.push,
            "rest": self.rest,
            "sqs": self.sqs,
            "webhooks": self.webhooks,
        }

    def families(self) -> list[Family]:
        return [
            Family(
                "openq_protocol_messages_total",
                "counter",
                "Messages by protocol and action: published, delivered, acked (completed), nacked (failed).",
                [
                    ({"protocol": name, "action": action}, getattr(each, action))
                    for name, each in self._all.items()
                    for action in ("published", "delivered", "acked", "nacked")
                ],
            ),
            Family(
                "openq_refusals_total",
                "counter",
                "Requests answered with an error, by protocol and code.",
                [
                    ({"protocol": name, "reason": reason}, count)
                    for name, each in self._all.items()
                    for reason, count in sorted(each.refusals.items())
                ],
            ),
            Family(
                "openq_message_wait_seconds",
                "histogram",
                "Time from the arrival of a message in its queue to its first delivery, delays included.",
                [({}, self.times.wait.value())],
            ),
            Family(
                "openq_message_processing_seconds",
                "histogram",
                "Time from a delivery to its ack.",
                [({}, self.times.processing.value())],
            ),
            Family(
                "openq_message_publish_to_ack_seconds",
                "histogram",
                "Time from the arrival of a message in its queue to its ack, by the protocol that acked it.",
                [({"protocol": name}, each.value()) for name, each in sorted(self.times.totals.items())],
            ),
        ]
