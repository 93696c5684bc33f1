"""What a worker service runs and how: the options of `openq worker run`, as they travel to its processes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

DEFAULT_THREADS = 8
DEFAULT_COROUTINES = 100
DEFAULT_GRACE_S = 30.0

# Of worker processes.
EXIT_OK = 0
EXIT_NOT_LOADED = 3  # the application cannot be loaded: another process could not either
EXIT_TIMED_OUT = 4  # a job was over its hard time limit


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Where the queues of --exec and --http are. An application has a target of its own."""

    url: str | None = None
    path: str | None = None
    token: str | None = None
    ca: str | None = None

    def keywords(self) -> dict[str, Any]:
        """The keywords of `openq.Queue`."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """One of `app`, `exec_command` and `http_url` is given. Times are seconds.

    Several services may share a `name`; `unit` is unique, and the names of processes begin with it.
    """

    name: str
    unit: str
    app: str | None = None
    exec_command: str | None = None
    http_url: str | None = None
    queues: tuple[tuple[str, int], ...] = ()  # name and weight
    target: TargetOptions = field(default_factory=TargetOptions)
    processes: int = 1
    threads: int = DEFAULT_THREADS
    coroutines: int = DEFAULT_COROUTINES
    prefetch: int | None = None  # None: fitted to how long the tasks take
    grace_s: float = DEFAULT_GRACE_S
    max_tasks: int | None = None
    max_memory: int | None = None  # bytes
    timeout_s: float | None = None  # of one command or request
    retry_delay_s: float = 30.0  # after a temporary failure
    health_port: int | None = None
    reload: bool = False
    preload: bool | None = None  # None: unless the import leaves threads or sockets behind
    as_json: bool = False
    log_level: str = "info"

    @property
    def what(self) -> str:
        """What is run, for people. The list of workers shows it: no password, and no query, may be in it."""
        if self.http_url is not None:
            from ..parsing import without_password

            return without_password(self.http_url.partition("#")[0].partition("?")[0])
        return self.app or self.exec_command or ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ServiceOptions:
        value = dict(value)
        value["target"] = TargetOptions(**value["target"])
        value["queues"] = tuple((name, weight) for name, weight in value["queues"])
        return cls(**value)
