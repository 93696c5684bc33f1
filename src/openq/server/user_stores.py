"""Where a server keeps users and sessions: in the data directory, or in the store that servers share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ..auth.documents import DocumentStore, ObservedDocument, SharedDocument
from ..auth.guard import write_secret_file
from ..auth.sessions import Sessions
from ..auth.store import UserStore
from ..broker.interface import Broker
from ..config import Config
from ..errors import InvalidSetting


class NoCredentials(InvalidSetting):
    code = "no_credentials"


Changed = Callable[[], None]  # called after a change, in any thread


def open_user_store(config: Config, broker: Broker, changed: Changed | None = None) -> UserStore:
    """The users shared by all servers of the store, or those in the data directory."""
    if broker.cluster is not None:
        return UserStore(place=_shared(broker, "users", "the document of users in Redis", changed))
    return UserStore(None if config.path is None else os.path.join(config.path, "users.json"))


def open_sessions(config: Config, broker: Broker, changed: Changed | None = None) -> Sessions:
    """The logins of the dashboard, beside the users."""
    limits = int(config.session_idle_s * 1000), int(config.session_max_s * 1000)
    path, place = None, None
    if broker.cluster is not None:
        place = _shared(broker, "sessions", "the document of sessions in Redis", changed)
    elif config.path is not None:
        path = os.path.join(config.path, "sessions.json")
    return Sessions(_wall_ms, path, place=place, idle_ms=limits[0], max_ms=limits[1])


def _shared(broker: Broker, key: str, name: str, changed: Changed | None) -> DocumentStore:
    assert broker.cluster is not None
    document = SharedDocument(broker.cluster, key, name)
    return document if changed is None else ObservedDocument(document, changed)


def _wall_ms() -> int:
    return int(time.time() * 1000)


def keep_first_key(config: Config, new_key: tuple[str, str, str], *, is_shown: bool) -> None:
    if config.path is not None:
        text = "AWS_ACCESS_KEY_ID={1}\nAWS_SECRET_ACCESS_KEY={2}\n".format(*new_key)
        write_secret_file(os.path.join(config.path, "first-key"), text)
    elif not is_shown:
        raise NoCredentials(
            "`--auth on` makes a first key, which `--log-format json` would show nowhere: no secret is "
            "logged; create a user first (`openq user add`), or use `--json` or `--log-format text`"
        )
