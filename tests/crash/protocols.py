"""The calls of the crash tests as requests to a server, through SQS or REST.

The judge knows one language of calls and answers; each class translates it to a protocol.
SQS does not show when a lease begins and ends, so its times are bounds on the safe side: a delivery is logged
as late, and its end as early, as they can have been.
"""

from __future__ import annotations

import time
from datetime import datetime
from math import ceil
from typing import Any
from urllib.parse import quote

from tests.crash.client import UNKNOWN, Died
from tests.crash.host import Answer, Call
from tests.server.raw_http import ACCOUNT, ConnectionClosed, RawHttpClient, queue_url
from tests.server.raw_http import Answer as HttpAnswer

CLOCK_MS = 5  # by how much two looks at the clock of one machine may differ
ERRORS = {
    "visibility_timeout_expired": "VisibilityTimeoutExpired",
    "message_not_found": "MessageNotFoundError",
    "queue_in_use": "QueueInUse",
    "journal_failed": "JournalFailed",
    "closed": "Closed",
    "disk_full": "DiskFull",
    "exhausted": "Exhausted",
    "unconfirmed": "Unconfirmed",
    "MessageNotInflight": "VisibilityTimeoutExpired",
    "ReceiptHandleIsInvalid": "MessageNotFoundError",
    "PurgeQueueInProgress": "QueueInUse",
}


def now_ms() -> int:
    return int(time.time() * 1000)


class Unwell(Exception):
    """The server said no; `name` as the library would call it."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class RestProtocol:
    """Not thread-safe; one connection, opened anew for each life of the server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._wire: RawHttpClient | None = None

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def answer(self, call: Call) -> Answer:
        """Raises Died."""
        try:
            if self._wire is None:
                self._wire = RawHttpClient(self._port)
            return {"ok": getattr(self, "do_" + call["do"])(call)}
        except ConnectionClosed:
            raise Died() from None
        except Unwell as unwell:
            return {"error": unwell.name, "text": str(unwell)}
        except (AssertionError, LookupError, TypeError, ValueError) as error:
            # An answer that cannot be read; a driver that died of it would go unnoticed.
            return {"error": f"!{type(error).__name__}", "text": repr(error)}

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        assert self._wire is not None
        return self._checked(self._wire.rest(method, path, body))

    def _checked(self, answer: HttpAnswer) -> Any:
        if answer.status < 300:
            return answer.json()
        reported = answer.json() if answer.body[:1] == b"{" else {}
        code = reported.get("code") or str(reported.get("__type", "")).rpartition("#")[2]
        if answer.status >= 500 and code not in ERRORS:
            code = f"!{code or answer.status}"  # a bug, and the judge wants to hear of it
        raise Unwell(ERRORS.get(code, code), f"{answer.status} {answer.body[:300]!r}")

    def _task(self, path: str, body: Any) -> Any:
        """Long work, to its end."""
        task = self.rest("POST", path, body)
        while task["state"] == "running":
            time.sleep(0.005)
            task = self.rest("GET", f"tasks/{task['id']}")
        if task["state"] != "done":
            raise Unwell("!TaskFailed", str(task))
        return task["done"]

    # -- queues and exchanges

    def do_declare(self, call: Call) -> None:
        self.rest("PUT", f"queues/{call['queue']}", _settings(call["settings"]))

    def do_delete(self, call: Call) -> int:
        count: int = self.rest("DELETE", f"queues/{call['queue']}")["messages"]
        return count

    def do_exchange(self, call: Call) -> None:
        self.rest("PUT", f"exchanges/{call['name']}", {"kind": call["kind"]})
        for queue, key in call["bindings"]:
            self.rest("POST", "bindings", {"source": call["name"], "destination": queue, "key": key})

    def do_settings(self, call: Call) -> list[str]:
        return [queue["name"] for queue in self.rest("GET", "queues?limit=1000")["queues"]]

    def do_stats(self, call: Call) -> dict[str, int]:
        stats = self.rest("GET", f"queues/{call['queue']}/stats")
        return {name: stats[name] for name in ("ready", "delayed", "in_flight")}

    def do_purge(self, call: Call) -> int:
        count: int = self.rest("POST", f"queues/{call['queue']}/purge")["messages"]
        return count

    # -- in

    def do_now(self, call: Call) -> int:
        return now_ms() - CLOCK_MS

    def do_publish(self, call: Call) -> str:
        return str(self.rest("POST", f"queues/{call['queue']}/messages", _message(call["draft"]))["id"])

    def do_publish_many(self, call: Call) -> list[str | None]:
        items = {"messages": [_message(draft) for draft in call["drafts"]]}
        reply = self.rest("POST", f"queues/{call['queue']}/messages/batch", items)
        if "results" in reply:
            return [each.get("id") for each in reply["results"]]
        assert reply["count"] == len(call["drafts"])
        return [reply["first_id"]] * reply["count"]

    def do_publish_run(self, call: Call) -> int:
        count: int = self.rest("POST", f"queues/{call['queue']}/messages/batch", call["bodies"])["count"]
        return count

    def do_route(self, call: Call) -> list[str]:
        body = {**_message(call["draft"]), "routing_key": call["key"]}
        queues: list[str] = self.rest("POST", f"exchanges/{call['exchange']}/publish", body)["queues"]
        return queues

    # -- out

    def do_receive(self, call: Call) -> list[list[Any]]:
        wanted = {"max": call["limit"], "visibility_timeout": call["lease_ms"] / 1000}
        found = self.rest("POST", f"queues/{call['queue']}/receive", wanted)["messages"]
        return [
            [
                each["payload"],
                each["receipt_id"],
                0,
                _ms(each["received_at"]),
                _ms(each["deadline"]),
                each["receive_count"],
            ]
            for each in found
        ]

    def do_ack(self, call: Call) -> list[str | None]:
        receipts = [receipt[0] for receipt in call["receipts"]]
        reply = self.rest("POST", f"queues/{call['queue']}/ack", {"receipts": receipts})
        failed = {each["receipt_id"]: ERRORS[each["code"]] for each in reply["failed"]}
        return [failed.get(receipt) for receipt in receipts]

    def _settle(self, verb: str, call: Call, **fields: Any) -> None:
        body = {"receipt_id": call["receipt"][0], **fields}
        self.rest("POST", f"queues/{call['queue']}/{verb}", body)

    def do_nack(self, call: Call) -> str:
        delay_ms = call.get("delay_ms")
        self._settle("nack", call, delay=None if delay_ms is None else delay_ms / 1000, reason="tried")
        return "done"

    def do_reject(self, call: Call) -> str:
        self._settle("nack", call, reject=True, reason="unfit")
        return "done"

    def do_release(self, call: Call) -> int:
        self._settle("nack", call, delay=0)
        return 1

    def do_extend(self, call: Call) -> int:
        until_ms = now_ms() - CLOCK_MS + int(call["lease_ms"])
        self._settle("extend", call, seconds=call["lease_ms"] / 1000)
        return until_ms

    # -- mending

    def do_cancel(self, call: Call) -> None:
        self.rest("DELETE", self._path(call))

    def do_edit(self, call: Call) -> None:
        self.rest("PATCH", self._path(call), {"payload": call["body"]})

    def do_reschedule(self, call: Call) -> None:
        # The end of a millisecond: rounding must not make it earlier than the judge was reported.
        self.rest("PATCH", self._path(call), {"at": (call["due_ms"] + 0.5) / 1000})

    def do_move(self, call: Call) -> list[str | None]:
        self.rest("POST", f"queues/{call['queue']}/messages/{quote(call['ids'][0])}/move", {"to": call["to"]})
        return [None]

    @staticmethod
    def _path(call: Call) -> str:
        return f"queues/{call['queue']}/messages/{quote(call['id'])}"

    def do_redrive(self, call: Call) -> int:
        count: int = self._task(f"queues/{call['queue']}/redrive", {})
        return count

    def do_replay(self, call: Call) -> int:
        count: int = self._task(f"queues/{call['queue']}/replay", {"since": 0, "to": call["to"]})
        return count

    # -- what a server does by itself

    def do_housekeeping(self, call: Call) -> None:
        pass

    do_snapshot = do_housekeeping


class SqsProtocol(RestProtocol):
    """What SQS has, through SQS; the rest as before."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._ends_ms: dict[str, int] = {}  # of leases, as the broker cannot have ended them before

    def sqs(self, action: str, queue: str, **members: Any) -> Any:
        assert self._wire is not None
        answer = self._wire.sqs(action, QueueUrl=queue_url(queue), **members)
        return self._checked(answer) if answer.body else {}

    def do_delete(self, call: Call) -> int:
        self.sqs("DeleteQueue", call["queue"])
        return 0

    def do_purge(self, call: Call) -> int:
        self.sqs("PurgeQueue", call["queue"])
        return 0

    def do_publish(self, call: Call) -> str:
        draft = call["draft"]
        if draft.keys() & {"priority", "type", "id"} or ("dedup" in draft and "group" not in draft):
            return super().do_publish(call)
        reply = self.sqs("SendMessage", call["queue"], **_sqs_message(draft))
        return str(reply["MessageId"])

    def do_publish_many(self, call: Call) -> list[str | None]:
        entries = [{"Id": str(n), **_sqs_message(draft)} for n, draft in enumerate(call["drafts"])]
        reply = self.sqs("SendMessageBatch", call["queue"], Entries=entries)
        ids = {each["Id"]: each["MessageId"] for each in reply.get("Successful", ())}
        return [ids.get(entry["Id"]) for entry in entries]

    def do_publish_run(self, call: Call) -> int:
        done = 0
        for start in range(0, len(call["bodies"]), 10):
            drafts = [{"body": body} for body in call["bodies"][start : start + 10]]
            ids = self.do_publish_many({**call, "drafts": drafts})
            if None in ids:
                raise Unwell("!HalfABatch", str(ids))
            done += len(ids)
        return done

    def do_receive(self, call: Call) -> list[list[Any]]:
        lease_s = ceil(call["lease_ms"] / 1000)
        until_ms = now_ms() - CLOCK_MS + lease_s * 1000
        reply = self.sqs(
            "ReceiveMessage",
            call["queue"],
            MaxNumberOfMessages=min(10, call["limit"]),
            VisibilityTimeout=lease_s,
            MessageSystemAttributeNames=["All"],
        )
        delivered_ms = now_ms() + CLOCK_MS
        found = []
        for each in reply.get("Messages", ()):
            handle = each["ReceiptHandle"]
            self._ends_ms[handle] = until_ms
            count = int(each["Attributes"]["ApproximateReceiveCount"])
            found.append([each["Body"], handle, 0, delivered_ms, until_ms, count])
        return found

    def do_ack(self, call: Call) -> list[str | None]:
        handles = [receipt[0] for receipt in call["receipts"]]
        failed: set[str] = set()
        for start in range(0, len(handles), 10):
            entries = [
                {"Id": str(n), "ReceiptHandle": handle}
                for n, handle in enumerate(handles[start : start + 10])
            ]
            reply = self.sqs("DeleteMessageBatch", call["queue"], Entries=entries)
            failed |= {handles[start + int(each["Id"])] for each in reply.get("Failed", ())}
        is_over = now_ms()
        return [
            "VisibilityTimeoutExpired"
            if handle in failed
            # A late delete is answered well and does nothing if somebody else has the message.
            else (UNKNOWN if self._ends_ms.pop(handle) <= is_over else None)
            for handle in handles
        ]

    def _change(self, call: Call, seconds: int) -> None:
        receipt = call["receipt"][0]
        try:
            self.sqs(
                "ChangeMessageVisibility", call["queue"], ReceiptHandle=receipt, VisibilityTimeout=seconds
            )
        except Unwell as unwell:
            # What SQS says of a receipt whose message is gone.
            if unwell.name == "InvalidParameterValueException" and "ReceiptHandle" in str(unwell):
                raise Unwell("MessageNotFoundError", str(unwell)) from None
            raise

    def do_nack(self, call: Call) -> str:
        # A lease that ends later is how SQS clients wait before the next attempt.
        self._change(call, ceil((call.get("delay_ms") or 0) / 1000))
        return "done"

    def do_reject(self, call: Call) -> str:
        self._change(call, 0)
        return "done"

    def do_release(self, call: Call) -> int:
        self._change(call, 0)
        return 1

    def do_extend(self, call: Call) -> int:
        seconds: int = ceil(call["lease_ms"] / 1000)
        until_ms = now_ms() - CLOCK_MS + seconds * 1000
        self._change(call, seconds)
        self._ends_ms[call["receipt"][0]] = until_ms
        return until_ms

    def do_redrive(self, call: Call) -> int:
        arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{call['queue']}"
        assert self._wire is not None
        answer = self._wire.sqs("StartMessageMoveTask", SourceArn=arn)
        if answer.status == 400 and b"already a task" in answer.body:
            return 0
        self._checked(answer)
        while True:
            tasks = self._checked(self._wire.sqs("ListMessageMoveTasks", SourceArn=arn))["Results"]
            if tasks[0]["Status"] != "RUNNING":
                return 0
            time.sleep(0.005)


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


_SECONDS = {"history_ms": "history", "dedup_window_ms": "dedup_window"}


def _settings(fields: dict[str, Any]) -> dict[str, Any]:
    named = {}
    for name, value in fields.items():
        if name in _SECONDS:
            named[_SECONDS[name]] = value / 1000
        else:
            named["dlq" if name == "dead_letter" else name] = value
    return named


def _message(draft: dict[str, Any]) -> dict[str, Any]:
    message = {"payload": draft["body"]}
    for name, value in draft.items():
        if name == "delay_ms":
            message["delay"] = value / 1000
        elif name == "dedup":
            message["dedup_id"] = value
        elif name == "type":
            message["message_type"] = value
        elif name != "body":
            message[name] = value
    return message


def _sqs_message(draft: dict[str, Any]) -> dict[str, Any]:
    message = {"MessageBody": draft["body"]}
    if "delay_ms" in draft:
        message["DelaySeconds"] = ceil(draft["delay_ms"] / 1000)
    if "group" in draft:
        message["MessageGroupId"] = draft["group"]
        message["MessageDeduplicationId"] = draft["dedup"]
    return message
