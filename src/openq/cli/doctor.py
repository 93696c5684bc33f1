"""`openq doctor` checks this machine, `openq healthcheck` a server."""

from __future__ import annotations

import os
import resource
import socket
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..client.http import TimedOut, Unreachable
from ..config import ConfigError, find_file, load
from ..errors import InvalidSetting
from ..journal import lockfile
from .api import UsageError, client_of
from .output import print_json
from .terminal import FAILED, OK, say, size_text, styled

if TYPE_CHECKING:
    Finding = tuple[str, str, str]


def healthcheck(options: Namespace) -> int:
    with client_of(options) as client:
        try:
            answer = client.get_text("/livez" if options.live else "/readyz")
            ok, detail = answer.status == 200, answer.body.decode("utf-8", "replace").strip()
        except (TimedOut, Unreachable) as error:
            ok, detail = False, str(error)
    if options.json:
        print_json({"ok": ok, "detail": detail, "url": client.url})
    elif ok:
        print(detail)
    else:
        say(detail)
    return OK if ok else FAILED


# -- doctor -------------------------------------------------------------------------------------

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


def doctor(options: Namespace) -> int:
    if options.plan is not None:
        return _plan(options)
    findings = list(run_checks(options))
    if options.json:
        print_json([{"check": what, "verdict": verdict, "detail": text} for what, verdict, text in findings])
    else:
        _print(findings)
    return _exit_code(findings)


def _print(findings: Iterable[Finding]) -> None:
    for what, verdict, text in findings:
        print(f"{styled(f'{verdict:<8}', _COLOURS[verdict])}{what:<10}{text}")


def _exit_code(findings: Iterable[Finding]) -> int:
    return FAILED if any(verdict == "failed" for _, verdict, _ in findings) else OK


def _plan(options: Namespace) -> int:
    from .plan import Load, as_document, plan

    if options.store is not None:
        raise UsageError("a plan is about a journal on this disk; for Redis see docs/CAPACITY.md")
    config = load({"data": options.data}, os.environ, find_file(os.environ))
    wanted = Load(options.plan, options.size, options.retention)
    folder = _nearest(config.data)
    if not options.json:
        say(f"measuring at {folder} for a few seconds; other load on this machine makes the figures worse")
    measured, findings = plan(folder, wanted, config.history_bytes)
    if options.json:
        print_json(as_document(wanted, measured, findings))
    else:
        _print(findings)
    return _exit_code(findings)


def run_checks(options: Namespace) -> Iterator[Finding]:
    try:
        config = load({"data": options.data}, os.environ, find_file(os.environ))
    except (ConfigError, OSError) as error:
        yield "config", "failed", str(error)
        return
    yield "config", "ok", config.file or "no file: environment and defaults"
    store = options.store or config.store
    profile = options.profile or (None if options.store else config.profile)
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python,
        _packages,
        (lambda: _redis(store, profile)) if store else (lambda: _disk(config.data)),
        _file_limit,
        lambda: _port(config.host, config.port),
        _clock,
        lambda: _server(options),
    )
    for check in checks:
        try:
            yield from check()
        except OSError as error:
            yield check.__name__.strip("_<>"), "failed", str(error)


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    verdict = "ok" if sys.version_info >= (3, 11) else "failed"
    yield (
        "python",
        verdict,
        f"{version} at {sys.executable}" + ("" if verdict == "ok" else "; 3.11 is needed"),
    )


def _packages() -> Iterator[Finding]:
    missing = [name for name in ("uvloop", "httptools", "msgspec", "websockets") if find_spec(name) is None]
    if missing:
        yield "packages", "failed", f"{', '.join(missing)} missing: the server needs them; pip install openq"
    else:
        yield "packages", "ok", "uvloop, httptools, msgspec, websockets"


_MIN_FREE_BYTES = 1 << 30
_SLOW_SYNC_S = 0.05


def _nearest(data: str) -> str:
    """The data directory, or its nearest parent while it does not exist yet."""
    folder = os.path.abspath(data)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def _disk(data: str) -> Iterator[Finding]:
    folder = _nearest(data)
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    full = free < _MIN_FREE_BYTES
    hint = "; publishing is rejected when the disk is full" if full else ""
    yield "disk", "warning" if full else "ok", f"{size_text(free)} free at {folder}{hint}"
    if state.f_files and state.f_favail < 1000:
        yield "disk", "warning", f"only {state.f_favail} inodes free at {folder}"
    try:
        sync_s = _sync_time(folder)
    except OSError as error:
        yield "sync", "failed", f"{folder} cannot be written: {error.strerror}"
        return
    slow = sync_s > _SLOW_SYNC_S
    hint = "; every group commit takes this long" if slow else ""
    yield "sync", "warning" if slow else "ok", f"{sync_s * 1000:.2f} ms to sync a block{hint}"
    holder = _lock_holder(data)
    if holder is not None:
        yield "data", "warning", f"{data} is in use by {holder}"


def _redis(store: str, profile: str | None) -> Iterator[Finding]:
    """The settings of the Redis servers, and how many seconds of messages they can lose."""

    try:
        from ..redis.net.url import parse
        from ..redis.safety import loss_window
        from ..redis.server_check import check_servers
    except ModuleNotFoundError as error:
        yield "redis", "failed", f"{error.name} is missing: pip install 'openq[redis]'"
        return
    try:
        address = parse(store)
        report = check_servers(address, profile)
    except (InvalidSetting, OSError) as error:
        yield "redis", "failed", str(error)
        return
    yield "redis", "ok", f"{address}, profile {report.profile}"
    for finding in report.findings:
        yield "redis", "warning" if finding.verdict == "unknown" else finding.verdict, str(finding)
    for line in loss_window(report):
        yield "loss", "warning" if line.seconds else "ok", str(line)


def _sync_time(folder: str) -> float:
    """The median time of nine syncs of 4 KiB."""

    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for number in range(9):
            os.pwrite(file.fileno(), bytes(4096), number * 4096)
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    return sorted(times)[4]


def _lock_holder(data: str) -> str | None:
    """The process that uses the data directory, if any. The lock itself is not touched."""

    pid, url = lockfile.holder(data)
    if pid is None:
        return None
    lock = os.path.realpath(os.path.join(data, lockfile.NAME))
    try:
        held = lock in _open_files(pid)
    except PermissionError:
        held = True  # it runs as another user
    except OSError:
        held = False
    if not held:
        return None
    return f"process {pid}" + (f", which serves {url}" if url else "")


_MIN_OPEN_FILES = 4096


def _file_limit() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reach = hard if hard != resource.RLIM_INFINITY else 1 << 30
    text = f"{soft} open files allowed, up to {reach}: one per connection"
    if reach < _MIN_OPEN_FILES:
        yield "limits", "warning", f"{text}; raise `ulimit -n` for more connections"
    else:
        yield "limits", "ok", text


def _port(host: str, port: int) -> Iterator[Finding]:
    if not port:
        yield "port", "ok", "0: a free port will be chosen"
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            holder = listening_process(port)
            taken = f"taken by {holder}" if holder else f"not free: {error.strerror}"
            yield "port", "warning", f"{port} is {taken}; another server needs another --port"
            return
    yield "port", "ok", f"{port} is free"


def _clock() -> Iterator[Finding]:
    now = datetime.now(UTC)
    text = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    # Leases do not depend on the wall clock, timestamps do.
    if not 2024 <= now.year < 2100:
        yield "clock", "failed", f"{text} cannot be right: set the clock of this machine"
        return
    step = time.clock_getres(time.CLOCK_MONOTONIC)
    yield "clock", "ok", f"{text}, monotonic to {step * 1e9:.0f} ns"


def _server(options: Namespace) -> Iterator[Finding]:
    if options.timeout is None:
        options.timeout = 3.0
    try:
        with client_of(options) as client:
            answer = client.get_text("/readyz")
    except (Unreachable, TimedOut) as error:
        # The server may not be started yet.
        yield "server", "warning" if isinstance(error, TimedOut) else "ok", f"{error}"
        return
    except UsageError as error:
        yield "server", "failed", str(error)
        return
    text = answer.body[:1000].decode("utf-8", "replace").strip()
    verdict = "failed" if answer.status != 200 else "warning" if text.startswith("degraded") else "ok"
    yield "server", verdict, f"{client.url}: {text}"


def _open_files(pid: int) -> set[str]:
    """The open files of a process. Raises OSError if it ended, or belongs to another user."""

    folder = f"/proc/{pid}/fd"
    found = set()
    for name in os.listdir(folder):
        try:
            found.add(os.readlink(f"{folder}/{name}"))
        except FileNotFoundError:
            continue  # closed meanwhile
    return found


def listening_process(port: int) -> str | None:
    """The process that listens on a port, as far as it can be found (Linux, own processes)."""

    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as rows:
                for row in rows:
                    cells = row.split()
                    if len(cells) > 9 and cells[3] == "0A" and cells[1].endswith(f":{port:04X}"):
                        inodes.add(f"socket:[{cells[9]}]")
        except OSError:
            continue
    if not inodes:
        return None
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if not inodes.isdisjoint(_open_files(int(pid))):
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as name:
                    return f"process {pid} ({name.read().strip()})"
        except OSError:
            continue  # ended meanwhile, or of another user
    return "a process of another user"
