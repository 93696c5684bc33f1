"""The schedules of a broker behind a server, over its REST API."""

from __future__ import annotations

from ..broker.schedules import Schedule
from . import documents
from .documents import Document
from .rest_client import path_part
from .server_api import ServerApi

_MAX_RUNS = 0  # the library computes the next runs itself


class RemoteSchedules:
    """`openq.broker.schedules.Schedules` of a server."""

    def __init__(self, api: ServerApi) -> None:
        self._api = api

    def put(self, schedule: Schedule) -> Schedule:
        document = documents.schedule_document(schedule)
        return self._one("PUT", schedule.name, "", document, idempotent=True)

    def get(self, name: str) -> Schedule:
        return self._one("GET", name, "", idempotent=True)

    def list(self) -> list[Schedule]:
        found = self._api.call("GET", f"schedules?next_runs={_MAX_RUNS}", idempotent=True).value
        return [documents.parse_schedule(each) for each in found["schedules"]]

    def delete(self, name: str) -> None:
        self._api.call("DELETE", _path(name))

    def pause(self, name: str) -> Schedule:
        return self._one("POST", name, "/pause", idempotent=True)

    def resume(self, name: str) -> Schedule:
        return self._one("POST", name, "/resume", idempotent=True)

    def run(self, name: str) -> str:
        message_id: str = self._api.call("POST", f"{_path(name)}/run", {}).value["id"]
        return message_id

    def _one(
        self, method: str, name: str, verb: str, body: Document | None = None, *, idempotent: bool
    ) -> Schedule:
        path = f"{_path(name)}{verb}?next_runs={_MAX_RUNS}"
        body = {} if body is None and method == "POST" else body
        return documents.parse_schedule(self._api.call(method, path, body, idempotent=idempotent).value)


def _path(name: str) -> str:
    return f"schedules/{path_part(name)}"
