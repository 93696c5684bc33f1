"""Workers: list, show, quiet, stop. They register in key-values; see `broker/workers.py`.

A worker is visible to callers that may peek one of its queues, with its jobs of those queues. Commands need
`manage` on all of them. A name is that of a process, or of a worker with all its processes.
"""

from __future__ import annotations

from ..broker.kv import KvPut
from ..broker.workers import (
    COMMAND_TTL_S,
    COMMANDS,
    WORKERS,
    WorkerCommand,
    WorkerEntry,
    encode,
    list_workers,
)
from ..errors import OpenQError
from .call import RestCall
from .problems import Problem
from .routes import route
from .schemas import ReplyBody


class WorkerList(ReplyBody, kw_only=True):
    """One entry per process."""

    workers: list[WorkerEntry]


class CommandReply(ReplyBody, kw_only=True):
    """The processes that were given the command. They obey within seconds."""

    command: str
    processes: list[str]


@route(
    "GET",
    "workers",
    permission="peek",
    scope="each",
    sqs_actions=("GetQueueAttributes",),
    summary="List the processes of workers, and the jobs that they run",
    reply=WorkerList,
)
def show_workers(call: RestCall) -> None:
    call.answer_with(lambda: WorkerList(workers=_visible(call)))


@route(
    "GET",
    "workers/{name}",
    permission="peek",
    scope="worker",
    sqs_actions=("GetQueueAttributes",),
    summary="Show a worker: its processes, or one of them",
    reply=WorkerList,
)
def show_worker(call: RestCall) -> None:
    call.answer_with(lambda: WorkerList(workers=_named(call)))


@route(
    "POST",
    "workers/{name}/quiet",
    permission="manage",
    scope="worker",
    sqs_actions=("SetQueueAttributes",),
    summary="Let a worker finish what it runs, and receive nothing more",
    reply=CommandReply,
)
def quiet_worker(call: RestCall) -> None:
    call.change(lambda: _command(call, "quiet"))


@route(
    "POST",
    "workers/{name}/stop",
    permission="manage",
    scope="worker",
    sqs_actions=("SetQueueAttributes",),
    summary="Let a worker finish what it runs within its grace period, and end",
    reply=CommandReply,
)
def stop_worker(call: RestCall) -> None:
    """A process that is stopped by name is not replaced; its service ends with the last one."""
    call.change(lambda: _command(call, "stop"))


def _visible(call: RestCall) -> list[WorkerEntry]:
    found = list_workers(call.broker.kv, call.qualified(WORKERS, "bucket"))
    visible = [entry for entry in found if any(call.may("peek", queue) for queue in entry.queues)]
    for entry in visible:
        entry.running = [job for job in entry.running if call.may("peek", job.queue)]
    return visible


def _named(call: RestCall) -> list[WorkerEntry]:
    name = call.args[0]
    # web1-4711.2 is a process of web1-4711.
    found = [
        entry
        for entry in _visible(call)
        if name in (entry.name, entry.service, entry.name.rpartition(".")[0])
    ]
    if not found:
        raise Problem("worker_not_found", f"worker {name[:100]!r} does not exist, or is not yours to see")
    return found


def _command(call: RestCall, command: str) -> CommandReply:
    entries = _named(call)
    for queue in sorted({queue for entry in entries for queue in entry.queues}):
        call.require("manage", queue)
    puts = [
        KvPut(
            entry.name,
            encode(WorkerCommand(command=command, instance=entry.instance)),
            int(COMMAND_TTL_S * 1000),
            None,
        )
        for entry in entries
    ]
    for result in call.broker.kv.put_many(call.qualified(COMMANDS, "bucket"), puts):
        if isinstance(result, OpenQError):
            raise result
    return CommandReply(command=command, processes=[entry.name for entry in entries])
