"""From the keywords of a queue to its broker: in memory, on disk, behind a server, or in Redis."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from ..clock import Clock
from ..errors import Closed, InvalidSetting, OpenQError
from . import checks
from .codecs import Codec
from .core import QueueCore
from .handle import BrokerHandle, open_directory, open_memory, wrap_broker
from .interface import LibraryBroker
from .times import to_ms


@dataclass(frozen=True)
class Target:
    """Where a queue is, as its keywords say. With none of them: in memory.

    No environment variable is read unless a keyword names it: a program without a target has its queues in
    memory, whatever variables its surroundings set. `url="env:OPENQ_URL"` reads one.
    """

    path: str | os.PathLike[str] | None
    url: str | None
    broker: LibraryBroker | None
    clock: Clock | None
    storage: str | None
    token: str | None
    ca: str | None
    reconnect: float | None

    def resolved(self) -> Target:
        """With the values of the environment variables that it names."""
        url, path = self.url, self.path
        if url is not None:
            url = _from_environment(checks.text(url, "url"), "url")
        if isinstance(path, str):
            path = _from_environment(path, "path")
        return replace(self, url=url, path=path)


def open_queue(
    name: str, dlq: QueueCore | str | None, named: dict[str, Any], codec: Codec, target: Target
) -> QueueCore:
    """Open the broker of a target, and declare the queue and its dead-letter queue there."""
    try:
        handle = open_broker(target.resolved(), codec, dlq if isinstance(dlq, QueueCore) else None)
    except OpenQError as error:
        _add_variable_name(error, url=target.url, path=target.path)
        raise
    try:
        dead_letter = dlq.name if isinstance(dlq, QueueCore) else dlq
        if dead_letter is not None:
            if dead_letter == name:
                raise InvalidSetting(f"queue {name!r} cannot be its own dlq")
            named["dead_letter"] = dead_letter
        settings = handle.declare(name, dead_letter, named)
        return QueueCore(name, handle, codec, settings)
    except BaseException as error:
        handle.leave()
        if isinstance(error, OpenQError) and not isinstance(error, InvalidSetting):
            _add_variable_name(error, url=target.url, path=target.path)
        raise


def open_broker(target: Target, codec: Codec, dlq: QueueCore | None) -> BrokerHandle:
    """The handle of the target's broker, with one more user."""
    url = target.url
    handle: BrokerHandle | None = getattr(target.broker, "handle", None)
    if handle is None and dlq is not None and dlq.handle.is_remote:
        handle = dlq.handle
    if url is not None or handle is not None or _is_shared_store(dlq, target.broker):
        _refuse_pickle(codec)
    if url is not None and _is_redis(url):
        if [target.path, target.storage, target.broker] != [None] * 3:
            raise InvalidSetting("a Redis url excludes path, storage and broker")
        if target.token is not None:
            raise InvalidSetting("token is for an OpenQ server; Redis has user:password@ in its url")
        return _open_redis(url, target, dlq)
    if url is not None or handle is not None:
        if [target.path, target.clock, target.storage] != [None] * 3 or (
            target.broker is not None and url is not None
        ):
            raise InvalidSetting("a server has its own path, clock and storage: give either url or them")
        return _open_server(url, handle, target, dlq)
    if target.token is not None or target.ca is not None or target.reconnect is not None:
        raise InvalidSetting("token, ca and reconnect need a url")
    return _open_local(target, dlq)


_ENV_PREFIX = "env:"


def _from_environment(value: str, keyword: str) -> str:
    """The value; for `env:NAME`, the value of that environment variable."""
    if not value.startswith(_ENV_PREFIX):
        return value
    variable = value.removeprefix(_ENV_PREFIX)
    if not variable:
        raise InvalidSetting(f"{keyword}={value!r} names no environment variable; write {keyword}='env:NAME'")
    found = os.environ.get(variable)
    if not found:
        raise InvalidSetting(
            f"{keyword}={value!r} needs the environment variable {variable}, which is not set"
        )
    return found


def _add_variable_name(error: OpenQError, **keywords: object) -> None:
    """Add the environment variable that the target came from to an error about the target."""
    for keyword, value in keywords.items():
        if not isinstance(value, str) or not value.startswith(_ENV_PREFIX):
            continue
        if "environment variable" not in str(error):
            variable = value.removeprefix(_ENV_PREFIX)
            error.args = (f"{error} ({keyword} is that of the environment variable {variable})",)


def _is_shared_store(dlq: QueueCore | None, broker: LibraryBroker | None) -> bool:
    return _waits(broker) or (dlq is not None and dlq.handle.is_shared_store)


def _waits(broker: object) -> bool:
    """False too for an object that is no broker."""
    return getattr(getattr(broker, "storage", None), "waits", False)


def _refuse_pickle(codec: Codec) -> None:
    if codec.name == "pickle" and codec.custom is None:
        raise InvalidSetting(
            "codec 'pickle' is not for the network: reading a pickle runs code chosen by its writer"
        )


def _is_redis(url: str) -> bool:
    if url.startswith(("http://", "https://")):
        return False
    from ..redis.net.url import is_redis_url

    return is_redis_url(url)


def _open_redis(url: str, target: Target, dlq: QueueCore | None) -> BrokerHandle:
    from .redis_target import open_redis

    _check_network_keywords(target)
    _check_clock(target.clock)
    _check_open(dlq)
    handle = open_redis(url, target.clock, target.ca, target.reconnect)
    return _check_dlq_target(handle, dlq, "in the Redis of its queue, opened with the same url")


def _open_server(
    url: str | None, existing: BrokerHandle | None, target: Target, dlq: QueueCore | None
) -> BrokerHandle:
    """The server of the url, or that of the given broker or dlq."""
    _check_network_keywords(target)
    checks.text_or_none(target.token, "token")
    _check_open(dlq)
    if url is None:
        assert existing is not None
        handle = existing.join()
    else:
        from .server_target import open_server

        handle = open_server(url, target.token, target.ca, target.reconnect)
    return _check_dlq_target(handle, dlq, "on the server of its queue, opened with the same url and token")


def _check_network_keywords(target: Target) -> None:
    checks.text_or_none(target.ca, "ca")
    if target.reconnect is not None:
        to_ms(target.reconnect, "reconnect")


def _check_open(dlq: QueueCore | None) -> None:
    if dlq is not None and dlq.closed:
        raise Closed()


def _check_dlq_target(handle: BrokerHandle, dlq: QueueCore | None, where: str) -> BrokerHandle:
    if dlq is not None and dlq.handle is not handle:
        handle.leave()
        raise InvalidSetting(f"queue {dlq.name!r} is in {dlq.handle.where}: a dlq must be {where}")
    return handle


def _open_local(target: Target, dlq: QueueCore | None) -> BrokerHandle:
    """In memory, on disk, or around a given broker."""
    path, storage, broker, clock = target.path, target.storage, target.broker, target.clock
    if storage not in (None, "memory", "journal"):
        raise InvalidSetting(f"storage must be 'memory' or 'journal', not {storage!r}")
    if storage == "memory" and path is not None:
        raise InvalidSetting("storage='memory' keeps nothing on disk: leave out path, or storage")
    if path is not None:
        path = checks.file_path(path)
    if broker is not None and not (_waits(broker) or _is_local(broker)):
        raise InvalidSetting(f"broker must be a LocalBroker or a RedisBroker, not {broker!r}")
    _check_clock(clock)
    if dlq is not None:
        return _join_dlq(dlq, path, broker, clock)
    if broker is not None:
        if path is not None or clock is not None:
            raise InvalidSetting("a broker has its own path and clock: give either it or them")
        return _wrap(broker)
    if path is not None:
        return open_directory(path, clock)
    if storage == "journal":
        raise InvalidSetting("storage='journal' needs a path")
    return open_memory(clock)


def _is_local(broker: LibraryBroker) -> bool:
    from ..local.broker import LocalBroker

    return isinstance(broker, LocalBroker)


def _check_clock(clock: Clock | None) -> None:
    if clock is not None and not (callable(getattr(clock, "now_ms", None)) and hasattr(clock, "on_advance")):
        raise InvalidSetting(f"clock must be a Clock such as openq.VirtualClock, not {clock!r}")


def _wrap(broker: LibraryBroker) -> BrokerHandle:
    if not broker.storage.waits:
        return wrap_broker(broker)
    from .redis_target import wrap_redis_broker

    return wrap_redis_broker(broker)


def _join_dlq(
    dlq: QueueCore,
    path: str | os.PathLike[str] | None,
    broker: LibraryBroker | None,
    clock: Clock | None,
) -> BrokerHandle:
    """A queue and its dead-letter queue share one broker: a move between them is one record."""
    _check_open(dlq)
    handle = dlq.handle
    if path is not None and os.path.realpath(path) != handle.path:
        raise InvalidSetting(
            f"queue {dlq.name!r} is in {handle.where}: a dlq must have the same path as its queue"
        )
    if broker is not None and broker is not handle.broker:
        raise InvalidSetting(f"queue {dlq.name!r} is on another broker: a dlq must be on that of its queue")
    if clock is not None and clock is not handle.broker.clock:
        raise InvalidSetting(f"queue {dlq.name!r} has another clock: a dlq and its queue share one")
    return handle.join()
