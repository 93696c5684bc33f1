"""`openq worker --exec`: one program per message. Its exit code decides.

The body is on stdin, the rest of the message in the environment. Exit code 0 acks; 75 (EX_TEMPFAIL of
sysexits.h) returns the message for later; any other nacks it with the last lines of stderr as the reason.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Any

from ..client.message import ReceivedMessage
from ..client.times import iso
from ..http_text import attribute_text
from ..trace_context import outgoing_headers
from .message_worker import ACK, HandlerOutcome

EX_TEMPFAIL = 75
KILL_AFTER_S = 5.0  # between SIGTERM and SIGKILL
STDERR_WAIT_S = 1.0  # for the rest of stderr, which a program in the background may keep open
MAX_LINES = 20
MAX_LINE = 500
MAX_REASON = 4000
MAX_VARIABLE = 65536  # bytes: Linux refuses a program with a variable of more than 128 KiB
MAX_VARIABLES = 512 << 10  # bytes of all variables of a message: a program gets only so much


class ExecHandler:
    """Runs the command in a process group of its own, so that all of it can be killed."""

    def __init__(
        self,
        command: str,
        *,
        timeout_s: float | None,
        retry_delay_s: float,
        report: Callable[[int, bool], None] = lambda group, is_running: None,
    ) -> None:
        self._command = command
        self._timeout_s = timeout_s
        self._retry_delay_s = retry_delay_s
        self._report = report  # called with the process group of a command at its start and end
        self._process: subprocess.Popen[bytes] | None = None
        self._aborted = False  # for good: a worker aborts when it stops

    def handle(self, message: ReceivedMessage) -> HandlerOutcome:
        # A file, not a pipe: a command that does not read its input cannot block us.
        with tempfile.TemporaryFile() as body:
            body.write(message.delivery.entry.body or b"")
            body.seek(0)
            try:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", self._command],
                    stdin=body,
                    stderr=subprocess.PIPE,
                    env={**os.environ, **variables(message)},
                    start_new_session=True,
                )
            except OSError as error:
                return HandlerOutcome(reason=f"the command could not be started: {error}")
        self._process = process
        self._report(process.pid, True)
        if self._aborted:
            kill_group(process)
        assert process.stderr is not None
        tail = _Tail(process.stderr)
        try:
            code = process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            kill_group(process)
            return HandlerOutcome(reason=_reason(f"timed out after {self._timeout_s:g} s", tail))
        finally:
            self._process = None
            self._report(process.pid, False)
            tail.finish()
        return self._outcome(code, tail)

    def _outcome(self, code: int, tail: _Tail) -> HandlerOutcome:
        if code == 0:
            return ACK
        if code == EX_TEMPFAIL:
            return HandlerOutcome(_reason("exit code 75 (temporary failure)", tail), self._retry_delay_s)
        if code < 0:
            return HandlerOutcome(_reason(f"killed by {_signal_name(-code)}", tail))
        return HandlerOutcome(_reason(f"exit code {code}", tail))

    def abort(self) -> None:
        self._aborted = True
        process = self._process
        if process is not None:
            kill_group(process)


class _Tail:
    """Passes stderr on to our own, and keeps its last lines."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._thread = threading.Thread(target=self._run, name="openq-stderr", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._stream as stream:
            # In bounded pieces: a line may have no end.
            for line in iter(lambda: stream.readline(MAX_VARIABLE), b""):
                text = line.decode(errors="replace").rstrip("\r\n")
                self._lines.append(text[:MAX_LINE])
                print(text, file=sys.stderr, flush=True)

    def finish(self) -> None:
        self._thread.join(STDERR_WAIT_S)

    @property
    def text(self) -> str:
        return "\n".join(list(self._lines)).strip()


def _reason(what: str, tail: _Tail) -> str:
    tail.finish()
    text = tail.text.encode("utf-8", "replace").decode()
    return f"{what}: {text[-MAX_REASON:]}" if text else what


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to all processes of the command, and SIGKILL to what is left of them."""
    _signal_group(process, signal.SIGTERM)
    deadline = time.monotonic() + KILL_AFTER_S
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # ended already


def variables(message: ReceivedMessage) -> dict[str, str]:
    """A message as environment variables. What an environment cannot hold is left out."""
    named: dict[str, Any] = {
        "OPENQ_QUEUE": message.queue.name,
        "OPENQ_MESSAGE_ID": message.id,
        "OPENQ_MESSAGE_TYPE": message.message_type,
        "OPENQ_RECEIVE_COUNT": message.receive_count,
        "OPENQ_PRIORITY": message.priority,
        "OPENQ_GROUP": message.group,
        "OPENQ_SENT": iso(message.timestamp),
        "OPENQ_ATTRIBUTES": json.dumps(message.to_dict()["attributes"], ensure_ascii=False),
    }
    # The names that programs with OpenTelemetry read their context from.
    for name, text in outgoing_headers(message.attributes).items():
        named[name.upper()] = text
    for name, value in message.attributes.items():
        named[f"OPENQ_ATTRIBUTE_{re.sub('[^A-Z0-9]', '_', name.upper())}"] = attribute_text(value)
    found: dict[str, str] = {}
    room = MAX_VARIABLES
    for name, value in named.items():
        size = None if value is None else _variable_size(text := str(value))
        if size is not None and len(name) + size <= room:
            found[name] = text
            room -= len(name) + size
    return found


def _variable_size(text: str) -> int | None:
    """In bytes; None for a text that cannot be a variable."""
    if "\0" in text or len(text) > MAX_VARIABLE:
        return None
    try:
        size = len(os.fsencode(text))
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    return size if size <= MAX_VARIABLE else None
