"""Plans of redrive and replay: what was chosen and how far the job is, in a file, so that it can be resumed.

A plan does not hold the messages. It holds the request and the end position of the history at that moment;
the same request has the same answer later. The server knows what a slice sends by the plan's id and the
number of the slice, so sending a slice again after a crash changes nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import InvalidSetting, OpenQError

VERSION = 1
FOLDER = "openq-pipelines"  # of plans without a name of their own
# A server remembers for a month what it has published under an id.
RESUMABLE_S = 29 * 86_400
_ID = re.compile(r"(redrive|replay)-[0-9a-f]{16}")

Progress = Callable[[int, int], None]  # messages done, of how many


class PlanBusy(OpenQError):
    code = "plan_busy"

    def __init__(self, path: Path) -> None:
        super().__init__(f"another process works on the plan {path}: wait until it is done")


@dataclass
class ResendPlan:
    """`asked` is the request; `done` counts slices, which are sent one by one."""

    kind: str
    id: str
    asked: dict[str, Any]
    journal: str
    end_position: int
    total: int
    slices: list[tuple[int, int, int]] = field(default_factory=list)  # from, to (exclusive), messages
    step: int = 0  # messages per batch; never changes, because the server knows batches by their number
    digest: str = ""
    done: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    created: float = 0.0
    touched: float = 0.0
    path: Path | None = None

    @property
    def is_done(self) -> bool:
        return self.done >= self.parts

    @property
    def parts(self) -> int:
        """The number of slices."""
        return len(self.slices) if self.slices else -(-self.total // self.step) if self.step else 0

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        del data["path"]
        return {"openq": "plan", "version": VERSION, **data}

    def save(self) -> None:
        """Atomic: a reader sees the old state or the new one, also after a crash."""
        if self.path is None:
            return
        self.touched = time.time()
        temporary = self.path.with_name(self.path.name + ".new")
        with write_errors(self.path):
            # 0600: ids and conditions may be confidential.
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(self.to_json(), file, separators=(",", ":"))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other process works on it meanwhile. Raises PlanBusy."""
        if self.path is None:
            yield
            return
        with write_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = self.path.with_name(self.path.name + ".lock")
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PlanBusy(self.path) from None
            self._reload(self.path)
            yield
            if self.is_done:
                with suppress(OSError):
                    lock.unlink()
        finally:
            os.close(handle)

    def _reload(self, path: Path) -> None:
        """Another process may have continued the plan since it was loaded."""
        found = load_plan(path, self.kind) if path.exists() else None
        if found is not None and found.id == self.id:
            self.done, self.state = found.done, found.state

    def check_journal(self, journal: str) -> None:
        if journal != self.journal:
            raise InvalidSetting(f"the plan {self.path} was made from another history: name the right one")


def make_plan(kind: str, path: str | os.PathLike[str] | None, **known: Any) -> ResendPlan:
    """A new plan, not yet on disk. Without a path it gets one below the current directory."""
    number = f"{kind}-{uuid.uuid4().hex[:16]}"
    file = Path(FOLDER, f"{number}.json") if path is None else Path(path)
    return ResendPlan(kind, number, created=time.time(), path=file, **known)


def load_plan(path: str | os.PathLike[str], kind: str) -> ResendPlan | None:
    """None if there is no such file. Raises InvalidSetting if it is something else."""
    file = Path(path)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidSetting(f"the plan {file} cannot be read: {error.strerror}") from None
    except ValueError:
        data = None
    if not isinstance(data, dict) or data.get("openq") != "plan":
        raise InvalidSetting(f"{file} is not a plan of a redrive or a replay: name another file")
    if data.get("version") != VERSION:
        raise InvalidSetting(f"the plan {file} was made by a newer OpenQ: use that, or make a new plan")
    try:
        given = {each.name: data[each.name] for each in fields(ResendPlan) if each.name != "path"}
        plan = ResendPlan(**given, path=file)
        plan.slices = [(int(first), int(end), int(rows)) for first, end, rows in plan.slices]
        if not _ID.fullmatch(plan.id) or not isinstance(plan.asked, dict):
            raise ValueError
        numbers = (plan.end_position, plan.total, plan.step, plan.done)
        if not all(isinstance(each, int) and each >= 0 for each in numbers):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise InvalidSetting(f"the plan {file} is damaged: make a new one under another name") from None
    if plan.kind != kind:
        raise InvalidSetting(f"{file} is the plan of a {plan.kind}, not of a {kind}")
    if not plan.is_done and plan.done and time.time() - plan.touched > RESUMABLE_S:
        raise InvalidSetting(
            f"the plan {file} has not been worked on for a month, and the server no longer knows how far it "
            "is: look at what was sent, and make a new plan for the rest"
        )
    return plan


def existing_plan(kind: str, path: str | os.PathLike[str] | None, asked: dict[str, Any]) -> ResendPlan | None:
    """The plan in a file, to be resumed. A caller may leave out any part of the request, but not change
    one."""
    plan = None if path is None else load_plan(path, kind)
    if plan is None:
        return None
    for name, value in asked.items():
        if value is not None and value != plan.asked.get(name):
            raise InvalidSetting(
                f"the plan {plan.path} has {name} {plan.asked.get(name)!r}, not {value!r}: leave it out to "
                "resume that plan, or name another file for a new one"
            )
    return plan


class RateLimiter:
    """At most so many messages per second. Lost time is made up for by at most one second's worth."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._next = time.monotonic()

    def wait(self, count: int) -> None:
        if self._rate is None:
            return
        now = time.monotonic()
        self._next = max(self._next, now - 1.0)
        if self._next > now:
            time.sleep(self._next - now)
        self._next += count / self._rate

    def restart(self) -> None:
        """A batch that the server had already takes no time."""
        self._next = time.monotonic()


def batch_size(rate: float | None, maximum: int) -> int:
    """Messages per batch: those of a quarter of a second."""
    return maximum if rate is None else max(1, min(maximum, int(rate / 4)))


def check_rate(rate: float | None) -> None:
    if rate is not None and not 0 < rate < 1e9:
        raise InvalidSetting(f"rate must be a number of messages per second, more than 0, not {rate}")


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except PlanBusy:
        raise
    except OSError as error:
        raise InvalidSetting(f"{path} cannot be written: {error.strerror}") from None
