"""The servers that are measured: how each is installed, started, measured and stopped. Loopback only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .server_requests import AwsJson, AwsQuery, SignedJson, SqsRequests, ask

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / "build" / "bench-tools"
START_S = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class NotAvailable(RuntimeError):
    """A server to compare with cannot be installed or started on this machine."""


class ServerProcess:
    """A server process with its children, in its own session."""

    name = ""
    wire: type[SqsRequests] = AwsJson

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.start_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._inside_s = self._aside_s = 0.0
        self._left_at_s: float | None = None

    @classmethod
    def obtain(cls) -> None:
        """Install it into the tools folder, once. Raises NotAvailable."""

    def argv(self) -> list[str]:
        raise NotImplementedError

    def env(self) -> Mapping[str, str]:
        return {}

    def is_ready(self) -> bool:
        """Ready means that a queue was created: some servers load much of their code at the first request."""
        self.queue("ready")
        return True

    def start(self) -> None:
        log_path = os.path.join(self.folder, f"{self.name}.log")
        began_s = time.perf_counter()
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                self.argv(),
                env={**os.environ, **self.env()},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        while True:
            try:
                if self.is_ready():
                    break
            except OSError:
                pass
            spent_s = time.perf_counter() - began_s
            if self._process.poll() is not None or spent_s > START_S:
                self.stop()
                tail = Path(log_path).read_text(encoding="utf-8", errors="replace")[-2000:]
                raise NotAvailable(f"{self.name} did not start in {spent_s:.0f} s: {tail}")
            time.sleep(0.002)
        self.start_s = time.perf_counter() - began_s

    def queue(self, name: str) -> SqsRequests:
        """A new queue, and the requests to it."""
        return self.wire.create(self.port, name)

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        process = self._process
        if process is None:
            return
        for number in (with_signal, signal.SIGKILL):
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                continue
            if not self.pids():
                break
        self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def pids(self) -> list[int]:
        """The process and its descendants: all of one session."""
        return [pid for pid, fields in _processes() if int(fields[_SESSION]) == self.pid and fields[0] != "Z"]

    def cpu_s(self) -> float:
        """User and system time, of children that have ended as well."""
        ticks = 0
        for _, fields in _processes():
            if int(fields[_SESSION]) == self.pid:
                ticks += sum(int(fields[at]) for at in _TIMES)
        return ticks / _TICKS

    def worked(self, since_s: float) -> float:
        """The CPU time of a lap that has just ended."""
        self._left_at_s = self.cpu_s()
        self._inside_s += self._left_at_s - since_s
        return self._left_at_s - since_s

    def rested(self) -> None:
        """CPU time between laps is deferred work: it counts too."""
        if self._left_at_s is not None:
            self._aside_s += self.cpu_s() - self._left_at_s
            self._left_at_s = None

    @property
    def background(self) -> float:
        """CPU time between laps / inside them."""
        return self._aside_s / self._inside_s if self._inside_s else 0.0

    def rss_bytes(self) -> int:
        return (
            sum(int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) for pid in self.pids()) * _PAGE
        )


# Places in /proc/PID/stat, counted after the name of the command.
_SESSION = 3
_TIMES = (11, 12, 13, 14)


def _processes() -> Iterator[tuple[int, list[str]]]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                    yield int(entry), stat.read().rpartition(") ")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                pass


def _end_with_parent() -> None:
    """Linux: if the bench is killed, its servers end too."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def free_port() -> int:
    """Below the kernel's range of client ports, of which the load needs thousands."""
    for _ in range(1000):
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


class OpenQ(ServerProcess):
    name = "openq"

    def __init__(self, folder: str, *flags: str, durable: bool = False) -> None:
        super().__init__(folder)
        self.data = os.path.join(folder, "data")
        self._flags = [*flags, *(("--data", self.data) if durable else ("--memory",))]
        self.durable = durable

    def argv(self) -> list[str]:
        amqp = () if "--amqp-port" in self._flags else ("--amqp-port", "off")
        return [sys.executable, "-m", "openq", "serve", "--port", str(self.port), *amqp, *self._flags]

    def is_ready(self) -> bool:
        return ask(self.port, b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")[0] == 200


class OpenQSigned(OpenQ):
    """In memory; every request is signed with the key that the server creates for its first user."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, "--auth", "on")

    def queue(self, name: str) -> SqsRequests:
        text = Path(self.folder, f"{self.name}.log").read_text(encoding="utf-8")
        key, secret = (re.findall(rf"{variable}=(\S+)", text)[-1] for variable in _KEY_VARIABLES)
        return SignedJson.create_with_key(self.port, name, key, secret)


_KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


class Granian(ServerProcess):
    """The fastest Python server that is not ours, with a handler that does nothing."""

    name = "granian"

    @classmethod
    def obtain(cls) -> None:
        pip_install("granian", "granian", "uvloop")

    def argv(self) -> list[str]:
        options = (
            "--interface rsgi --workers 1 --http 1 --no-ws --loop uvloop --no-access-log --log-level error"
        )
        address = f"--host 127.0.0.1 --port {self.port}"
        return [sys.executable, "-m", "granian", *options.split(), *address.split(), "bench.server_empty:app"]

    def env(self) -> Mapping[str, str]:
        return {"PYTHONPATH": f"{TOOLS / 'granian'}{os.pathsep}{ROOT}"}

    def is_ready(self) -> bool:
        return ask(self.port, b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")[0] == 200


class FauxQs(ServerProcess):
    name = "fauxqs"

    @classmethod
    def obtain(cls) -> None:
        # Later ones need a newer Node than many machines have.
        _npm("fauxqs", "fauxqs@1.9.2")

    def argv(self) -> list[str]:
        # Its own command logs every request; without that it is much faster, and so the better rival.
        app = TOOLS / "fauxqs" / "node_modules" / "fauxqs" / "dist" / "app.js"
        script = f"import {{ startFauxqs }} from {str(app)!r}; startFauxqs({{ logger: false }});"
        return ["node", "--input-type=module", "-e", script]

    def env(self) -> Mapping[str, str]:
        return {"FAUXQS_PORT": str(self.port), "FAUXQS_HOST": "127.0.0.1"}


class ElasticMq(ServerProcess):
    name = "ElasticMQ"
    wire = AwsQuery

    @classmethod
    def obtain(cls) -> None:
        if shutil.which("java") is None:
            raise NotAvailable("ElasticMQ needs java")
        _npm("elasticmq", "elasticmq@0.7.1")

    def argv(self) -> list[str]:
        config = os.path.join(self.folder, "elasticmq.conf")
        Path(config).write_text(
            f'node-address {{ protocol = http, host = "127.0.0.1", port = {self.port}, context-path = "" }}\n'
            f'rest-sqs {{ enabled = true, bind-port = {self.port}, bind-hostname = "127.0.0.1" }}\n',
            encoding="utf-8",
        )
        [jar] = (TOOLS / "elasticmq" / "node_modules" / "elasticmq").glob("*.jar")
        opened = ["--add-opens", "java.base/java.util.regex=ALL-UNNAMED"]
        return ["java", *opened, f"-Dconfig.file={config}", "-jar", str(jar)]


class MiniStack(ServerProcess):
    name = "MiniStack"

    @classmethod
    def obtain(cls) -> None:
        pip_install("ministack", "ministack")

    def argv(self) -> list[str]:
        return [sys.executable, "-m", "ministack"]

    def env(self) -> Mapping[str, str]:
        return {
            "PYTHONPATH": str(TOOLS / "ministack"),
            "GATEWAY_PORT": str(self.port),
            "MINISTACK_HOST": "127.0.0.1",
            "SERVICES": "sqs",
            "LOG_LEVEL": "WARNING",
            "HOME": self.folder,
        }


class Moto(ServerProcess):
    name = "moto"

    @classmethod
    def obtain(cls) -> None:
        pip_install("moto", "moto[server]")

    def argv(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def env(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(TOOLS / "moto"), "HOME": self.folder}


RIVALS: list[type[ServerProcess]] = [FauxQs, ElasticMq, MiniStack, Moto]


def pip_install(name: str, *packages: str) -> None:
    call = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _install(name, lambda folder: [*call, "--target", folder, *packages])


def _npm(name: str, package: str) -> None:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise NotAvailable(f"{name} needs {program}")
    options = ["--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts"]
    _install(name, lambda folder: ["npm", "install", *options, "--prefix", folder, package])


def _install(name: str, call: Callable[[str], list[str]]) -> None:
    """Into a temporary folder, renamed at the end: an incomplete installation must not be used."""
    if (TOOLS / name).exists():
        return
    TOOLS.mkdir(parents=True, exist_ok=True)
    half = str(TOOLS / f".{name}-{os.getpid()}")
    try:
        done = subprocess.run(call(half), capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise NotAvailable(f"{name} could not be installed: {done.stderr[-500:]}")
        os.rename(half, TOOLS / name)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAvailable(f"{name} could not be installed: {error}") from None
    finally:
        shutil.rmtree(half, ignore_errors=True)
