"""Servers of tests, forked from a process that has imported everything a server needs.

An interpreter spends a quarter of a second of CPU on the imports of a server, and a run of all tests starts
about 700. A forked server begins with the imports done. Apart from that it is the process that `python -m
openq serve` would be: with its own pid, environment, directory and output; it can be stopped, killed and
waited for.

The template is a child of the process that runs the tests, and the servers are children of the template. It
reports how they ended, because only a parent can wait for a process.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import itertools
import json
import locale
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parent.parent
MAX_REQUEST = 1 << 20
# What the interpreter itself reads at its start cannot be changed in a fork.
_OF_INTERPRETERS = ("PYTHON", "LD_", "MALLOC_", "LC_", "LANG")
_USUAL = {"PYTHONUNBUFFERED": "1"}


def can_fork(env: Mapping[str, str]) -> bool:
    """Whether a server with these additions to the environment is the same when it is forked."""
    return sys.platform == "linux" and not any(name.startswith(_OF_INTERPRETERS) for name in env)


class ForkedServer:
    """What tests use of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        self.args = ["openq", "serve", *words]
        self.returncode: int | None = None
        self._ended = threading.Event()
        stdout, to_stdout = os.pipe()
        stderr, to_stderr = os.pipe()
        try:
            request = {"words": self.args, "env": {**env, **_USUAL}, "directory": os.getcwd()}
            self.pid = _template().fork(request, (to_stdout, to_stderr), self)
        finally:
            os.close(to_stdout)
            os.close(to_stderr)
        self.stdout: IO[str] = os.fdopen(stdout, encoding=locale.getencoding())
        self.stderr: IO[str] = os.fdopen(stderr, encoding=locale.getencoding())

    def ended(self, returncode: int) -> None:
        self.returncode = returncode
        self._ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        # The template keeps the pid until it has reported the end, so it names no other process.
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Template:
    """The side of the tests."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.server_template", str(other.fileno())],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={name: value for name, value in os.environ.items() if not name.startswith("OPENQ_")},
            )
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[ForkedServer, threading.Event]] = {}
        self._pids: dict[int, int] = {}  # number -> pid, until its caller has read it
        self._running: dict[int, ForkedServer] = {}
        self._reader = threading.Thread(target=self._read, name="server-template", daemon=True)
        self._reader.start()

    def fork(self, request: dict[str, Any], outputs: Sequence[int], server: ForkedServer) -> int:
        number = next(self._numbers)
        started = threading.Event()
        with self._lock:
            self._waiting[number] = server, started
            socket.send_fds(self._socket, [json.dumps({"number": number, **request}).encode()], list(outputs))
        assert started.wait(120), "the template of the servers does not answer"
        return self._pids.pop(number)

    def _read(self) -> None:
        while data := self._socket.recv(MAX_REQUEST):
            report = json.loads(data)
            pid = report["pid"]
            if "number" in report:
                server, started = self._waiting.pop(report["number"])
                self._running[pid] = server
                self._pids[report["number"]] = pid
                started.set()
            else:
                self._running.pop(pid).ended(report["returncode"])

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(10)
        self._socket.close()
        self._process.wait(10)


_templates: list[_Template] = []
_starting = threading.Lock()


def _template() -> _Template:
    with _starting:
        if not _templates:
            _templates.append(_Template())
            atexit.register(_templates[0].close)
        return _templates[0]


# -- the process of the template ---------------------------------------------------------------------


def _serve_forks(requests: socket.socket) -> dict[str, Any] | None:
    """Fork until the tests are over (None). In a forked process: its request."""
    wakeup, woken = socket.socketpair()
    wakeup.setblocking(False)
    woken.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    while woken.recv(4096):
                        pass
                _report_ends(requests)
            if requests in ready:
                data, outputs, _, _ = socket.recv_fds(requests, MAX_REQUEST, 2)
                if not data:
                    return None
                request: dict[str, Any] = json.loads(data)
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for each in (wakeup, woken):
                        each.close()
                    return {**request, "outputs": outputs}
                for each in outputs:
                    os.close(each)
                requests.send(json.dumps({"number": request["number"], "pid": pid}).encode())


def _report_ends(requests: socket.socket) -> None:
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None:
            return
        killed = found.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
        returncode = -found.si_status if killed else found.si_status
        requests.send(json.dumps({"pid": found.si_pid, "returncode": returncode}).encode())
        os.waitpid(found.si_pid, 0)


def _become(request: dict[str, Any]) -> None:
    """Output, directory, environment and words of the server, in the forked process."""
    for number, output in zip((1, 2), request["outputs"], strict=True):
        os.dup2(output, number)
        os.close(output)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        raw = io.FileIO(number, "w", closefd=False)  # as with PYTHONUNBUFFERED
        setattr(sys, name, io.TextIOWrapper(raw, locale.getencoding(), errors, write_through=True))  # type: ignore[type-var]
        setattr(sys, f"__{name}__", getattr(sys, name))
    sys.argv = [str(ROOT / "src/openq/__main__.py"), *request["words"][1:]]


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end the template
    import openq.cli.serve
    import openq.redis.broker
    import openq.server.app  # noqa: F401
    from openq.cli.main import main as run

    with socket.socket(fileno=int(sys.argv[1])) as requests:
        request = _serve_forks(requests)
    if request is None:
        return 0
    _become(request)
    return run()


if __name__ == "__main__":
    sys.exit(main())
