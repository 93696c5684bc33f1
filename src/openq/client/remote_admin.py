"""Change queued messages and exchanges of a server: `LibraryAdmin` and `LibraryExchanges` over REST."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..broker.interface import Filter
from ..engine.routing import Binding, Exchange
from ..errors import (
    InvalidSetting,
    MessageNotFoundError,
    OpenQError,
    QueueInUse,
)
from ..model import (
    Draft,
)
from . import documents
from .documents import Document
from .http import Refused
from .remote_calls import RemoteCalls
from .rest_client import path_part

_POLL_TASK_S = (0.005, 0.25)


class RemoteAdmin:
    def __init__(self, calls: RemoteCalls) -> None:
        self._calls = calls

    def _change_message(
        self, method: str, queue: str, message_id: str, body: object = None, verb: str = ""
    ) -> None:
        if not message_id:
            raise MessageNotFoundError(message_id, queue)
        path = f"queues/{path_part(queue)}/messages/{path_part(message_id)}{verb}"
        self._calls.api.call(method, path, body, queue=queue, message_id=message_id)

    def cancel(self, queue: str, message_id: str) -> None:
        self._change_message("DELETE", queue, message_id)

    def edit(self, queue: str, message_id: str, draft: Draft) -> None:
        body = documents.payload_document(draft)
        body["message_type"] = draft.type
        body["attributes"] = dict(draft.attributes or {})
        self._change_message("PATCH", queue, message_id, body)

    def move(self, queue: str, message_ids: Sequence[str], to: str) -> list[OpenQError | None]:
        errors: list[OpenQError | None] = []
        for message_id in message_ids:
            try:
                self._change_message("POST", queue, message_id, {"to": to}, "/move")
                errors.append(None)
            except (MessageNotFoundError, QueueInUse, InvalidSetting) as error:
                errors.append(error)
        return errors

    def reschedule(self, queue: str, message_id: str, due_ms: int) -> None:
        self._change_message("PATCH", queue, message_id, {"at": documents.time_text(max(due_ms, 0))})

    def redrive(
        self,
        queue: str,
        to: str | None = None,
        filter: Filter | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
    ) -> int:
        body: Document = {"to": to, "rate": rate}
        if filter is not None:
            body["filter"] = documents.filter_document(filter)
        return self._await_task(queue, self._calls.post(queue, "redrive", body).value, progress)

    def replay(
        self,
        queue: str,
        since_ms: int | None,
        since_id: str | None,
        to: str | None = None,
        *,
        include_purged: bool = False,
    ) -> int:
        since = None if since_ms is None else documents.time_text(max(since_ms, 0))
        body: Document = {"since": since, "since_id": since_id, "to": to}
        if include_purged:
            body["include_purged"] = True
        return self._await_task(queue, self._calls.post(queue, "replay", body).value, None)

    def _await_task(self, queue: str, task: Document, progress: Callable[[int], bool] | None) -> int:
        """Wait for a task on the server. Returns its number of messages."""
        path = f"tasks/{task['id']}"
        pause_s, longest_s = _POLL_TASK_S
        reported = 0
        while True:
            if progress is not None and task["done"] != reported:
                reported = task["done"]
                if not progress(reported) and task["state"] == "running":
                    self._calls.api.call("DELETE", path, queue=queue, idempotent=True)
                    progress = None
            if task["state"] != "running":
                break
            self._calls.api.sleep(pause_s)
            pause_s = min(pause_s * 2, longest_s)
            task = self._calls.get(path, queue)
        if task["state"] == "failed":
            raise documents.parse_error(Refused(0, task.get("code", "task_failed"), task["error"]), queue)
        done: int = task["done"]
        return done


class RemoteExchanges:
    def __init__(self, calls: RemoteCalls) -> None:
        self._calls = calls

    def route(self, exchange: str, key: str, draft: Draft) -> tuple[str, list[str]]:
        body = {**documents.message_document(draft), "routing_key": key}
        reply = self._calls.api.call("POST", f"exchanges/{path_part(exchange)}/publish", body, queue=exchange)
        return reply.value["id"], reply.value["queues"]

    def declare_exchange(self, exchange: Exchange) -> bool:
        body = {
            "kind": exchange.kind,
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "alternate": exchange.alternate,
            "arguments": dict(exchange.arguments),
        }
        known = {each["name"] for each in self._calls.get("exchanges")["exchanges"]}
        self._calls.api.call(
            "PUT", f"exchanges/{path_part(exchange.name)}", body, queue=exchange.name, idempotent=True
        )
        return exchange.name not in known

    def delete_exchange(self, name: str, if_unused: bool = False) -> None:
        path = f"exchanges/{path_part(name)}?if_unused={str(if_unused).lower()}"
        self._calls.api.call("DELETE", path, queue=name)

    def exchange(self, name: str) -> Exchange:
        return documents.parse_exchange(self._calls.get(f"exchanges/{path_part(name)}", name))

    def list_exchanges(self) -> list[Exchange]:
        return [documents.parse_exchange(each) for each in self._calls.get("exchanges")["exchanges"]]

    def bindings(self, source: str | None = None, destination: str | None = None) -> list[Binding]:
        found = self._calls.get("bindings", source=source, destination=destination)["bindings"]
        return [Binding(**each) for each in found]

    def bind(self, binding: Binding) -> bool:
        changed: bool = self._calls.api.call(
            "POST", "bindings", documents.binding_document(binding), idempotent=True
        ).value["changed"]
        return changed

    def unbind(self, binding: Binding) -> bool:
        try:
            self._calls.api.call("DELETE", "bindings", documents.binding_document(binding), idempotent=True)
        except Refused as refused:
            if refused.code != "binding_not_found":
                raise
            return False
        return True
