"""Which place the keywords of a queue name: memory, a directory, a server, or Redis."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..clock import Clock
from ..errors import Closed, InvalidSetting, OpenQError
from ..local.broker import LocalBroker
from . import checks
from . import handle as brokers
from .codecs import Codec
from .handle import BrokerHandle
from .interface import LibraryBroker
from .times import to_ms

if TYPE_CHECKING:
    from .queues import Queue


def open_broker(
    codec: Codec,
    dlq: Queue | None,
    *,
    path: str | os.PathLike[str] | None,
    url: str | None,
    broker: LibraryBroker | None,
    clock: Clock | None,
    storage: str | None,
    token: str | None,
    ca: str | None,
    reconnect: float | None,
) -> BrokerHandle:
    """The place, with one more user: whoever asks.

    No environment variable names a place by itself: a program that says nothing of a place has its queues in
    memory, whatever variables the commands beside it use. `url="env:OPENQ_URL"` asks for one.
    """
    if url is not None:
        url = _from_environment(checks.text(url, "url"), "url")
    if isinstance(path, str):
        path = _from_environment(path, "path")
    handle: BrokerHandle | None = getattr(broker, "handle", None)
    if handle is None and dlq is not None and dlq._handle.is_remote:
        handle = dlq._handle
    if url is not None or handle is not None or _is_network(dlq, broker):
        _refuse_pickle(codec)
    if url is not None and _is_redis(url):
        if [path, storage, broker] != [None] * 3:
            raise InvalidSetting("Redis is a place of its own: give either url or path, storage and broker")
        if token is not None:
            raise InvalidSetting("token is for a server of ours; Redis has user:password@ in its url")
        return _open_redis(dlq, url, clock, ca, reconnect)
    if url is not None or handle is not None:
        if [path, clock, storage] != [None] * 3 or (broker is not None and url is not None):
            raise InvalidSetting("a server has its own path, clock and storage: give either url or them")
        return _open_server(dlq, url, handle, token, ca, reconnect)
    if token is not None or ca is not None or reconnect is not None:
        raise InvalidSetting("token, ca and reconnect are about a server: they need a url")
    return _open_local(dlq, path, broker, clock, storage)


_ENV_PREFIX = "env:"


def _from_environment(value: str, keyword: str) -> str:
    """The value, or that of the environment variable it names as `env:NAME`."""
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


def add_variable_name(error: OpenQError, **targets: object) -> None:
    """An error about a place that came from an environment variable says which variable that is."""
    for keyword, value in targets.items():
        if not isinstance(value, str) or not value.startswith(_ENV_PREFIX):
            continue
        if "environment variable" not in str(error):
            variable = value.removeprefix(_ENV_PREFIX)
            error.args = (f"{error} ({keyword} is that of the environment variable {variable})",)


def _is_network(dlq: Queue | None, broker: LibraryBroker | None) -> bool:
    return getattr(broker, "waits", False) or (dlq is not None and dlq._handle.is_shared_store)


def _refuse_pickle(codec: Codec) -> None:
    if codec.name == "pickle" and codec.custom is None:
        raise InvalidSetting(
            "codec 'pickle' is not for the network: whoever reads a pickle runs its writer's code"
        )


def _is_redis(url: str) -> bool:
    if url.startswith(("http://", "https://")):
        return False
    from ..redis.net.url import is_redis_url

    return is_redis_url(url)


def _open_redis(
    dlq: Queue | None, url: str, clock: Clock | None, ca: str | None, reconnect: float | None
) -> BrokerHandle:
    from .redis_target import open_redis

    checks.text_or_none(ca, "ca")
    if reconnect is not None:
        to_ms(reconnect, "reconnect")
    _check_clock(clock)
    if dlq is not None and dlq._closed:
        raise Closed()
    handle = open_redis(url, clock, ca, reconnect)
    return _check_dlq_target(handle, dlq, "in the Redis of its queue, opened with the same url")


def _open_server(
    dlq: Queue | None,
    url: str | None,
    handle: BrokerHandle | None,
    token: str | None,
    ca: str | None,
    reconnect: float | None,
) -> BrokerHandle:
    """The server of the address, or the one where a broker or a dlq is already."""
    checks.text_or_none(token, "token")
    checks.text_or_none(ca, "ca")
    if reconnect is not None:
        to_ms(reconnect, "reconnect")
    if dlq is not None and dlq._closed:
        raise Closed()
    if url is None:
        assert handle is not None
        handle = handle.join()
    else:
        from .remote import open_server

        handle = open_server(url, token, ca, reconnect)
    return _check_dlq_target(handle, dlq, "on the server of its queue, opened with the same url and token")


def _check_dlq_target(handle: BrokerHandle, dlq: Queue | None, where: str) -> BrokerHandle:
    if dlq is not None and dlq._handle is not handle:
        handle.leave()
        raise InvalidSetting(f"queue {dlq.name!r} is in {dlq._handle.where}: a dlq must be {where}")
    return handle


def _open_local(
    dlq: Queue | None,
    path: str | os.PathLike[str] | None,
    broker: LibraryBroker | None,
    clock: Clock | None,
    storage: str | None,
) -> BrokerHandle:
    """The place without an address that the keywords name."""
    if storage not in (None, "memory", "journal"):
        raise InvalidSetting(f"storage must be 'memory' or 'journal', not {storage!r}")
    if storage == "memory" and path is not None:
        raise InvalidSetting("storage='memory' keeps nothing on disk: leave out path, or storage")
    if path is not None:
        path = checks.file_path(path)
    if broker is not None and not (isinstance(broker, LocalBroker) or getattr(broker, "waits", False)):
        raise InvalidSetting(f"broker must be a LocalBroker or a RedisBroker, not {broker!r}")
    _check_clock(clock)
    if dlq is not None:
        return _join_dlq(dlq, path, broker, clock)
    if broker is not None:
        if path is not None or clock is not None:
            raise InvalidSetting("a broker has its own path and clock: give either it or them")
        return _wrap(broker)
    if path is not None:
        return brokers.open_directory(path, clock)
    if storage == "journal":
        raise InvalidSetting("storage='journal' needs a path")
    return brokers.open_memory(clock)


def _check_clock(clock: Clock | None) -> None:
    if clock is not None and not (callable(getattr(clock, "now_ms", None)) and hasattr(clock, "on_advance")):
        raise InvalidSetting(f"clock must be a Clock, as openq.VirtualClock is one, not {clock!r}")


def _wrap(broker: LibraryBroker) -> BrokerHandle:
    if not broker.waits:
        return brokers.wrap_broker(broker)
    from .redis_target import wrap_redis_broker

    return wrap_redis_broker(broker)


def _join_dlq(
    dlq: Queue, path: str | os.PathLike[str] | None, broker: LibraryBroker | None, clock: Clock | None
) -> BrokerHandle:
    """A queue and its dead letters are in one place: a move between them is one record."""
    if dlq._closed:
        raise Closed()
    handle = dlq._handle
    if path is not None and os.path.realpath(path) != handle.path:
        raise InvalidSetting(
            f"queue {dlq.name!r} is in {handle.where}: a dlq must have the same path as its queue"
        )
    if broker is not None and broker is not handle.broker:
        raise InvalidSetting(f"queue {dlq.name!r} is on another broker: a dlq must be on that of its queue")
    if clock is not None and clock is not handle.broker.clock:
        raise InvalidSetting(f"queue {dlq.name!r} has another clock: a dlq and its queue share one")
    return handle.join()
