"""`openq doctor`: is this machine fit for a server? `openq healthcheck`: is the server well?"""

from __future__ import annotations

from .parser import CommandGroup, add_json, add_server
from .terminal import FAILED, OK, say, styled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    Finding = tuple[str, str, str]  # what, verdict (ok, warning, failed), the sentence


def add(name: str, verbs: CommandGroup, help: str) -> None:
    if name == "doctor":
        doctor = verbs.add(
            name,
            _doctor,
            help,
            [
                ("openq doctor", "everything, for ./openq-data and port 9324"),
                ("openq doctor --data /var/lib/openq", "another data directory"),
                ("openq doctor --store redis://127.0.0.1", "what this Redis may lose, and what to set"),
                ("openq doctor --json", "for programs"),
            ],
            "Exit code 1 if anything would keep a server from working. Leaves nothing behind.",
        )
        doctor.add_argument("--data", metavar="DIR", help="the data directory (OPENQ_DATA)")
        doctor.add_argument("--store", metavar="URL", help="the Redis that keeps the messages (OPENQ_STORE)")
        doctor.add_argument(
            "--profile",
            choices=("safe", "fast"),
            help="what it is to promise (default: what the URL says, or safe)",
        )
        add_json(doctor)
        add_server(doctor)
    else:
        check = verbs.add(
            name,
            _healthcheck,
            help,
            [
                ("openq healthcheck", "exit code 0: ready, perhaps degraded (it says why); 1: not"),
                ("openq healthcheck --live", "only whether it answers at all"),
                (
                    "openq healthcheck --url http://127.0.0.1:9324 --timeout 2s",
                    "for a container's health check",
                ),
            ],
        )
        check.add_argument("--live", action="store_true", help="only whether it answers at all")
        add_json(check)
        add_server(check)


def _healthcheck(options: Namespace) -> int:
    from ..client.http import TimedOut, Unreachable
    from .api import client_of
    from .output import print_json

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


def _doctor(options: Namespace) -> int:
    from .output import print_json

    findings = list(run_checks(options))
    if options.json:
        print_json([{"check": what, "verdict": verdict, "detail": text} for what, verdict, text in findings])
    else:
        for what, verdict, text in findings:
            print(f"{styled(f'{verdict:<8}', _COLOURS[verdict])}{what:<10}{text}")
    return FAILED if any(verdict == "failed" for _, verdict, _ in findings) else OK


def run_checks(options: Namespace) -> Iterator[Finding]:
    import os

    from ..config import ConfigError, find_file, load

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
    import sys

    version = ".".join(map(str, sys.version_info[:3]))
    verdict = "ok" if sys.version_info >= (3, 11) else "failed"
    yield (
        "python",
        verdict,
        f"{version} at {sys.executable}" + ("" if verdict == "ok" else "; 3.11 is needed"),
    )


def _packages() -> Iterator[Finding]:
    from importlib.util import find_spec

    missing = [name for name in ("uvloop", "httptools", "msgspec") if find_spec(name) is None]
    if missing:
        yield "packages", "failed", f"{', '.join(missing)} missing: the server needs them; pip install openq"
    else:
        yield "packages", "ok", "uvloop, httptools, msgspec"


_MIN_FREE_BYTES = 1 << 30
_SLOW_SYNC_S = 0.05


def _disk(data: str) -> Iterator[Finding]:
    import os

    from .terminal import size_text

    # The directory itself may not be there yet: then its nearest parent tells.
    folder = os.path.abspath(data)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    full = free < _MIN_FREE_BYTES
    hint = "; publishing stops when it is full" if full else ""
    yield "disk", "warning" if full else "ok", f"{size_text(free)} free at {folder}{hint}"
    if state.f_files and state.f_favail < 1000:
        yield "disk", "warning", f"only {state.f_favail} inodes free at {folder}"
    try:
        sync_s = _sync_time(folder)
    except OSError as error:
        yield "sync", "failed", f"{folder} cannot be written: {error.strerror}"
        return
    slow = sync_s > _SLOW_SYNC_S
    hint = "; every group of answers waits this long" if slow else ""
    yield "sync", "warning" if slow else "ok", f"{sync_s * 1000:.2f} ms to put a block on disk{hint}"
    holder = _lock_holder(data)
    if holder is not None:
        yield "data", "warning", f"{data} is in use by {holder}"


def _redis(store: str, profile: str | None) -> Iterator[Finding]:
    """How the servers are set that keep the messages, and what that means in words and seconds."""
    from ..errors import InvalidSetting

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
    """The median of some syncs of 4 KiB."""
    import os
    import tempfile
    import time

    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for number in range(9):
            os.pwrite(file.fileno(), bytes(4096), number * 4096)
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    return sorted(times)[4]


def _lock_holder(data: str) -> str | None:
    """Who has the data directory open, if anybody has. Looked up, not tried: the lock stays untouched."""
    import os

    from ..journal import lockfile

    pid, url = lockfile.holder(data)
    if pid is None:
        return None
    lock = os.path.realpath(os.path.join(data, lockfile.NAME))
    try:
        held = lock in _open_files(pid)
    except PermissionError:
        held = True  # it lives, and belongs to another user
    except OSError:
        held = False
    if not held:
        return None
    return f"process {pid}" + (f", which serves {url}" if url else "")


_MIN_OPEN_FILES = 4096


def _file_limit() -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reach = hard if hard != resource.RLIM_INFINITY else 1 << 30
    text = f"{soft} open files allowed, up to {reach}: one per connection"
    if reach < _MIN_OPEN_FILES:
        yield "limits", "warning", f"{text}; raise `ulimit -n` for more connections"
    else:
        yield "limits", "ok", text


def _port(host: str, port: int) -> Iterator[Finding]:
    import socket

    if not port:
        yield "port", "ok", "0: a free one will be picked"
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
    import time
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    text = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    # A journal from the future or a machine without a battery: leases are safe, timestamps are not.
    if not 2024 <= now.year < 2100:
        yield "clock", "failed", f"{text} cannot be right: set the clock of this machine"
        return
    step = time.clock_getres(time.CLOCK_MONOTONIC)
    yield "clock", "ok", f"{text}, monotonic to {step * 1e9:.0f} ns"


def _server(options: Namespace) -> Iterator[Finding]:
    from ..client.http import TimedOut, Unreachable
    from .api import UsageError, client_of

    if options.timeout is None:
        options.timeout = 3.0
    try:
        with client_of(options) as client:
            answer = client.get_text("/readyz")
    except (Unreachable, TimedOut) as error:
        # Nothing wrong with a machine on which no server runs yet.
        yield "server", "warning" if isinstance(error, TimedOut) else "ok", f"{error}"
        return
    except UsageError as error:
        yield "server", "failed", str(error)
        return
    text = answer.body[:1000].decode("utf-8", "replace").strip()
    verdict = "failed" if answer.status != 200 else "warning" if text.startswith("degraded") else "ok"
    yield "server", verdict, f"{client.url}: {text}"


def _open_files(pid: int) -> set[str]:
    """What a process has open. Raises OSError if it is gone, or not ours to look at."""
    import os

    folder = f"/proc/{pid}/fd"
    found = set()
    for name in os.listdir(folder):
        try:
            found.add(os.readlink(f"{folder}/{name}"))
        except FileNotFoundError:
            continue  # closed in this moment
    return found


def listening_process(port: int) -> str | None:
    """The process that listens on a port, as far as the system tells us (Linux, own processes)."""
    import os

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
            continue  # gone meanwhile, or not ours to look at
    return "a process of another user"
